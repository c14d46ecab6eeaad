#include "memory/invariants.h"

#include <cstring>
#include <vector>

#include "backend/runtime/check.h"
#include "memory/pager_impl.h"

namespace chameleon::memory {

void PagerImpl::check(int level) {
  const Lock lock(*this);
  InvariantWalker(*this).walk(level);
}

void PagerImpl::checkOperands(const Call& call) const {
  for (const auto [block, access] : call.pins_) {
    CHAMELEON_CHECK(
        block->state() == BlockState::kResident && block->pins() > 0,
        "an operand is not pinned in HBM");
    CHAMELEON_CHECK(block->device_address == arena_->address(*block->device) &&
                        block->device->bytes >= block->bytes,
                    "an operand is not where its extent is");
    CHAMELEON_CHECK(!block->lost, "an operand's bytes are lost");
  }
}

// Comparing copies waits for the device: now and then will do.
void PagerImpl::checkNow() {
  constexpr std::uint64_t kCopiesEvery = 64;
  const std::uint64_t every = check_every_.load(std::memory_order_relaxed);
  const std::uint64_t number =
      calls_checked_.fetch_add(1, std::memory_order_relaxed);
  if (every == 0 || number % every != 0) return;
  check(number / every % kCopiesEvery == 0 ? 3 : 2);
}

void InvariantWalker::walk(int level) {
  checkLevels();
  if (level < 2) return;
  pager_.arena_->check();
  pager_.host_pool_->check();
  pager_.logical_space_->check();
  pager_.spares_.check();
  checkBlocks();
  checkExtents();
  checkCommitted();
  if (level >= 3 && pager_.runtime_.holdsData()) checkCopies();
}

void InvariantWalker::checkLevels() const {
  CHAMELEON_CHECK(pager_.arena_->usedBytes() <= pager_.limits_.hbm_budget_bytes,
                  "P1: resident bytes exceed the HBM budget");
  CHAMELEON_CHECK(
      pager_.host_pool_->reservedBytes() <= pager_.host_pool_->budgetBytes(),
      "P1: host bytes exceed the host budget");
}

void InvariantWalker::checkBlocks() const {
  std::size_t device_bytes = 0;
  std::size_t host_bytes = 0;
  std::size_t resident = 0;
  std::size_t copies = 0;
  std::size_t live = 0;
  std::size_t held_bytes = 0;
  const Block* previous = nullptr;
  for (const Block* block = pager_.live_; block != nullptr;
       previous = block, block = block->next_live) {
    const std::uint64_t word = block->word.load(std::memory_order_acquire);
    const BlockState state = Block::stateOf(word);
    const bool has_copy = (word & Block::kHostCopyBit) != 0;
    CHAMELEON_CHECK(block->previous_live == previous,
                    "a broken list of blocks");
    CHAMELEON_CHECK(block->pager == &pager_.owner_ && block->bytes > 0 &&
                        block->bytes <= block->rounded_bytes,
                    "a block that is not one");
    CHAMELEON_CHECK(state != BlockState::kFetching && block->claims == 0,
                    "a move or a begin() was left half done");
    pager_.recreation_.check(*block);
    if (Recreation::isHeld(*block)) held_bytes += block->bytes;
    CHAMELEON_CHECK(
        (block->device != nullptr) == (state == BlockState::kResident),
        "B1: a device extent in the wrong state");
    const bool on_host =
        state == BlockState::kHost || state == BlockState::kEvicting;
    CHAMELEON_CHECK((block->host != nullptr) == (on_host || has_copy),
                    "B2: a host extent in the wrong state");
    CHAMELEON_CHECK(!has_copy || state == BlockState::kResident,
                    "B2: the host-copy bit outside of Resident");
    CHAMELEON_CHECK(Block::pinsOf(word) == 0 || state == BlockState::kResident,
                    "B3: pins outside of Resident");
    if (block->device != nullptr) {
      CHAMELEON_CHECK(
          block->device->block == block &&
              block->device->use == ExtentUse::kBlock &&
              block->device->bytes == block->rounded_bytes &&
              block->device_address == pager_.arena_->address(*block->device),
          "B4: a block and its device extent disagree");
      device_bytes += block->device->bytes;
      ++resident;
    } else {
      CHAMELEON_CHECK(block->device_address == nullptr,
                      "B1: an address without an extent");
    }
    if (block->host != nullptr) {
      CHAMELEON_CHECK(
          block->host->bytes == block->rounded_bytes &&
              block->host_address == pager_.host_pool_->address(*block->host),
          "B4: a block and its host extent disagree");
      host_bytes += block->host->bytes;
    }
    if (has_copy) ++copies;
    ++live;
  }
  CHAMELEON_CHECK(held_bytes == pager_.recreation_.heldBytes(),
                  "held bytes do not add up");
  CHAMELEON_CHECK(device_bytes == pager_.arena_->blockBytes(),
                  "device extents that no block has");
  // A host thread may hold a place for a block until its bytes are there.
  CHAMELEON_CHECK(pager_.admission_.load().calls > 0
                      ? host_bytes <= pager_.host_pool_->usedBytes()
                      : host_bytes == pager_.host_pool_->usedBytes(),
                  "host extents that no block has");
  CHAMELEON_CHECK(resident == pager_.policy_->size(),
                  "the policy knows other blocks than the resident ones");
  CHAMELEON_CHECK(live == pager_.logical_space_->liveCount(),
                  "logical addresses that no block has");

  std::size_t linked = 0;
  const Block* older = nullptr;
  for (const Block* block = pager_.oldest_copy_; block != nullptr;
       older = block, block = block->newer_copy) {
    CHAMELEON_CHECK(block->older_copy == older && block->hasHostCopy(),
                    "a broken list of host copies");
    ++linked;
  }
  CHAMELEON_CHECK(linked == copies && pager_.newest_copy_ == older,
                  "a host copy that is not listed");
}

void InvariantWalker::checkExtents() const {
  std::size_t in_call_bytes = pager_.hole_bytes_;
  for (const Call* call = pager_.calls_; call != nullptr; call = call->next_) {
    std::size_t bytes = 0;
    for (const Extent* extent : call->in_call_) {
      CHAMELEON_CHECK(extent->use == ExtentUse::kInCall,
                      "a call lists an extent that is not in-call");
      bytes += extent->bytes;
    }
    CHAMELEON_CHECK(call->listed_ && bytes == call->in_call_bytes_ &&
                        bytes <= call->room_bytes_,
                    "a call's in-call bytes do not add up");
    in_call_bytes += bytes;
  }
  CHAMELEON_CHECK(in_call_bytes == pager_.arena_->inCallBytes(),
                  "in-call extents that no call has");
  std::size_t foreign = 0;
  for (const Extent* extent = pager_.arena_->extents().first();
       extent != nullptr; extent = extent->next) {
    if (extent->use == ExtentUse::kForeign) ++foreign;
    CHAMELEON_CHECK(
        extent->use != ExtentUse::kBlock ||
            (extent->block != nullptr && extent->block->device == extent),
        "a device extent whose block is elsewhere");
  }
  CHAMELEON_CHECK(foreign <= pager_.fixed_extents_.load(),
                  "foreign extents are miscounted");
}

// Only when no call is in flight: pins change without the lock.
void InvariantWalker::checkCommitted() const {
  const Admission::Load before = pager_.admission_.load();
  std::size_t bytes = pager_.arena_->foreignBytes();
  for (const Block* block = pager_.live_; block != nullptr;
       block = block->next_live) {
    if (block->pins() > 0) bytes += block->rounded_bytes;
  }
  const Admission::Load after = pager_.admission_.load();
  if (before.calls != 0 || after.calls != 0 || before.bytes != after.bytes) {
    return;
  }
  CHAMELEON_CHECK(bytes == after.bytes,
                  "committed bytes differ from what is pinned and foreign");
  CHAMELEON_CHECK(pager_.hole_bytes_ == 0, "a hole is held by no call");
}

void InvariantWalker::checkCopies() const {
  std::vector<std::byte> bytes;
  for (Block* block = pager_.oldest_copy_; block != nullptr;
       block = block->newer_copy) {
    bytes.resize(block->bytes);
    const runtime::Copy copy{bytes.data(), block->device_address, block->bytes};
    Position done;
    const bool copied =
        !pager_.transfers_.out({&copy, 1}, pager_.writesOf(*block), done) &&
        !pager_.timelines_.synchronize(done) &&
        !pager_.timelines_.synchronize(block->host_ready);
    if (!copied) continue; // an injected failure
    CHAMELEON_CHECK(
        std::memcmp(bytes.data(), block->host_address, block->bytes) == 0,
        "a clean host copy differs from the device bytes");
  }
}

} // namespace chameleon::memory
