#include "memory/invariants.h"

#include <cstring>
#include <vector>

#include "backend/runtime/check.h"

namespace chameleon::memory {

void InvariantWalker::checkOperands(const CallState& call) const {
  for (const auto [block, access] : call.pins) {
    CHAMELEON_CHECK(
        block->state() == BlockState::kResident && block->pins() > 0,
        "an operand is not pinned in HBM");
    CHAMELEON_CHECK(
        core_.offsetOf(block->device_address) == block->device->offset &&
            block->device->bytes >= block->bytes,
        "an operand is not where its extent is");
    CHAMELEON_CHECK(!block->lost, "an operand's bytes are lost");
  }
}

// Comparing copies waits for the device: now and then will do.
void InvariantWalker::checkNow() {
  constexpr std::uint64_t kCopiesEvery = 64;
  const std::uint64_t every = every_.load(std::memory_order_relaxed);
  const std::uint64_t number =
      calls_checked_.fetch_add(1, std::memory_order_relaxed);
  if (every == 0 || number % every != 0) return;
  check(number / every % kCopiesEvery == 0 ? 3 : 2);
}

void InvariantWalker::check(int level) {
  const PagerLock locked(core_);
  checkLevels(locked);
  if (level < 2) return;
  core_.arena->check();
  core_.host_pool->check();
  table_.space_->check();
  table_.spares_.check();
  checkBlocks(locked);
  checkExtents(locked);
  checkCommitted(locked);
  if (level >= 3 && core_.runtime.holdsData()) checkCopies(locked);
}

void InvariantWalker::checkLevels(const Locked& /*locked*/) const {
  CHAMELEON_CHECK(core_.arena->usedBytes() <= core_.limits.hbm_budget_bytes,
                  "P1: resident bytes exceed the HBM budget");
  CHAMELEON_CHECK(
      core_.host_pool->reservedBytes() <= core_.host_pool->budgetBytes(),
      "P1: host bytes exceed the host budget");
}

void InvariantWalker::checkBlocks(const Locked& locked) const {
  std::size_t device_bytes = 0;
  std::size_t host_bytes = 0;
  std::size_t resident = 0;
  std::size_t copies = 0;
  std::size_t live = 0;
  std::size_t held_bytes = 0;
  const Block* previous = nullptr;
  for (const Block* block = table_.firstLive(locked); block != nullptr;
       previous = block, block = block->next_live) {
    const std::uint64_t word = block->word.load(std::memory_order_acquire);
    const BlockState state = Block::stateOf(word);
    const bool has_copy = (word & Block::kHostCopyBit) != 0;
    CHAMELEON_CHECK(block->previous_live == previous,
                    "a broken list of blocks");
    CHAMELEON_CHECK(block->pager == table_.owner_ && block->bytes > 0 &&
                        block->bytes <= block->rounded_bytes,
                    "a block that is not one");
    CHAMELEON_CHECK(state != BlockState::kFetching && block->claims == 0,
                    "a move or a begin() was left half done");
    core_.records.check(*block);
    mirror_.check(locked, *block);
    if (RecomputeRecords::isHeld(*block)) held_bytes += block->bytes;
    CHAMELEON_CHECK(
        (block->device != nullptr) == (state == BlockState::kResident),
        "B1: a device extent in the wrong state");
    const bool on_host =
        state == BlockState::kHost || state == BlockState::kEvicting;
    CHAMELEON_CHECK((block->host.extent != nullptr) == (on_host || has_copy),
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
              core_.offsetOf(block->device_address) == block->device->offset,
          "B4: a block and its device extent disagree");
      device_bytes += block->device->bytes;
      ++resident;
    } else {
      CHAMELEON_CHECK(block->device_address == nullptr,
                      "B1: an address without an extent");
    }
    if (block->host.extent != nullptr) {
      CHAMELEON_CHECK(block->host.extent->block == block &&
                          block->host.extent->bytes == block->rounded_bytes &&
                          block->host.address ==
                              core_.host_pool->address(*block->host.extent),
                      "B4: a block and its host extent disagree");
      host_bytes += block->host.extent->bytes;
    }
    if (has_copy) ++copies;
    ++live;
  }
  CHAMELEON_CHECK(held_bytes == core_.records.heldBytes(),
                  "held bytes do not add up");
  CHAMELEON_CHECK(device_bytes == core_.arena->blockBytes(),
                  "device extents that no block has");
  // A host thread may hold a place for a block until its bytes are there.
  CHAMELEON_CHECK(core_.admission.load().calls > 0
                      ? host_bytes <= core_.host_pool->usedBytes()
                      : host_bytes == core_.host_pool->usedBytes(),
                  "host extents that no block has");
  CHAMELEON_CHECK(resident == core_.policy->size(),
                  "the policy knows other blocks than the resident ones");
  CHAMELEON_CHECK(live == table_.space_->liveCount(),
                  "logical addresses that no block has");

  std::size_t linked = 0;
  const Block* older = nullptr;
  for (const Block* block = residency_.host().copies(locked).oldest();
       block != nullptr; older = block, block = block->newer_copy) {
    CHAMELEON_CHECK(block->older_copy == older && block->hasHostCopy(),
                    "a broken list of host copies");
    ++linked;
  }
  CHAMELEON_CHECK(
      linked == copies && residency_.host().copies(locked).newest() == older,
      "a host copy that is not listed");
}

void InvariantWalker::checkExtents(const Locked& /*locked*/) const {
  std::size_t in_call_bytes = memory_.hole_bytes_;
  for (const CallState* call = memory_.calls_; call != nullptr;
       call = call->in_call.next) {
    std::size_t bytes = 0;
    for (const Extent* extent : call->in_call.extents) {
      CHAMELEON_CHECK(extent->use == ExtentUse::kInCall,
                      "a call lists an extent that is not in-call");
      bytes += extent->bytes;
    }
    CHAMELEON_CHECK(call->in_call.listed && bytes == call->in_call.bytes &&
                        bytes <= call->room_bytes,
                    "a call's in-call bytes do not add up");
    in_call_bytes += bytes;
  }
  CHAMELEON_CHECK(in_call_bytes == core_.arena->inCallBytes(),
                  "in-call extents that no call has");
  std::size_t foreign = 0;
  for (const Extent* extent = core_.arena->extents().first(); extent != nullptr;
       extent = extent->next) {
    if (extent->use == ExtentUse::kForeign) ++foreign;
    CHAMELEON_CHECK(
        extent->use != ExtentUse::kBlock ||
            (extent->block != nullptr && extent->block->device == extent),
        "a device extent whose block is elsewhere");
  }
  for (const Extent* extent = core_.host_pool->extents().first();
       extent != nullptr; extent = extent->next) {
    CHAMELEON_CHECK(
        extent->block == nullptr || extent->block->host.extent == extent,
        "a host extent whose block is elsewhere");
  }
  CHAMELEON_CHECK(foreign <= memory_.fixedExtents(),
                  "foreign extents are miscounted");
}

// Only when no call is in flight: pins change without the lock.
void InvariantWalker::checkCommitted(const Locked& locked) const {
  const Admission::Load before = core_.admission.load();
  std::size_t bytes = core_.arena->foreignBytes();
  for (const Block* block = table_.firstLive(locked); block != nullptr;
       block = block->next_live) {
    if (block->pins() > 0) bytes += block->rounded_bytes;
  }
  const Admission::Load after = core_.admission.load();
  if (before.calls != 0 || after.calls != 0 || before.bytes != after.bytes) {
    return;
  }
  CHAMELEON_CHECK(bytes == after.bytes,
                  "committed bytes differ from what is pinned and foreign");
  CHAMELEON_CHECK(memory_.hole_bytes_ == 0, "a hole is reserved by no call");
}

void InvariantWalker::checkCopies(const Locked& locked) const {
  std::vector<std::byte> bytes;
  for (Block* block = residency_.host().copies(locked).oldest();
       block != nullptr; block = block->newer_copy) {
    bytes.resize(block->bytes);
    const runtime::Copy copy{bytes.data(), block->device_address, block->bytes};
    Position done;
    const bool copied = !residency_.transfers().out(
                            {&copy, 1}, core_.uses().writesOf(*block), done) &&
                        !core_.streams.synchronize(done) &&
                        !core_.streams.synchronize(block->host.ready);
    if (!copied) continue; // an injected failure
    CHAMELEON_CHECK(
        std::memcmp(bytes.data(), block->host.address, block->bytes) == 0,
        "a clean host copy differs from the device bytes");
  }
}

} // namespace chameleon::memory
