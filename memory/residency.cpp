#include "memory/residency.h"

#include <utility>

#include "backend/runtime/check.h"
#include "memory/phase_range.h"

namespace chameleon::memory {

using runtime::Error;

namespace {

// Of the budget: a piece of so much counts as large.
constexpr std::size_t kLargeRoomShare = 512;

} // namespace

Residency::Residency(PagerCore& core, OpTimer& timer)
    : core_(core), host_(core), transfers_(core.runtime, core.streams, timer) {}

void Residency::giveUpPlaces(const Locked& locked, Block& block,
                             bool host_copy) noexcept {
  if (block.host.extent != nullptr) {
    if (block.host.read.none()) {
      (void)host_.cancelCopyOut(locked, block.host.ready, block.host.address,
                                block.bytes);
    }
    if (host_copy) host_.copies(locked).remove(block);
    Extent* const place = block.host.extent;
    const Fence host_uses = core_.uses().hostUsesOf(block);
    HostPlaces::forget(locked, block);
    core_.host_pool->free(place, host_uses);
  }
  if (block.device != nullptr) {
    freeExtent(locked, block, core_.uses().usesOf(block));
  }
  block.copied_ahead = false;
  BlockUses::clearUses(block);
  block.last_write.store(0, std::memory_order_release);
}

bool Residency::evictable(const Block& block) noexcept {
  const std::uint64_t word = block.word.load(std::memory_order_relaxed);
  return Block::stateOf(word) == BlockState::kResident &&
         Block::pinsOf(word) == 0;
}

Residency::Evicted Residency::evict(const Locked& locked, Block& block,
                                    Shortage& shortage, Decision why) {
  const Evicted result = beginEvict(locked, block, shortage, why);
  return copyOut(locked, shortage) ? result : Evicted::kFailed;
}

Residency::Evicted Residency::beginEvict(const Locked& locked, Block& block,
                                         Shortage& shortage, Decision why) {
  std::uint64_t word = block.word.load(std::memory_order_acquire);
  if (Block::stateOf(word) != BlockState::kResident ||
      Block::pinsOf(word) != 0) {
    return Evicted::kBusy;
  }
  const bool clean = (word & Block::kHostCopyBit) != 0;
  HostPool::Place place;
  if (!clean) {
    place = host_.place(locked, block.rounded_bytes, shortage);
    if (place.extent == nullptr) return Evicted::kHostFull;
  }
  // From here on no thread without the lock can pin it; one that was faster
  // makes this fail.
  if (!block.word.compare_exchange_strong(
          word,
          Block::stateBits(BlockState::kEvicting) | (word & Block::kKeptBits),
          std::memory_order_acq_rel)) {
    if (!clean) core_.host_pool->free(place.extent, {});
    return Evicted::kBusy;
  }
  if (clean) {
    host_.copies(locked).remove(block);
    core_.counters.clean_evictions.fetch_add(1, std::memory_order_relaxed);
    core_.note(why, block, 0);
    vacate(locked, block, {});
  } else {
    outs_.push_back({&block, place, why});
  }
  return Evicted::kDone;
}

bool Residency::copyOut(const Locked& locked, Shortage& shortage) {
  if (outs_.empty()) return true;
  copies_.clear();
  Fence before;
  for (const CopyOut& out : outs_) {
    const Block& block = *out.block;
    // mutant: victim-writes
    core_.uses().addTo(before, core_.uses().writesOf(block));
    // mutant: host-place-fence
    core_.uses().addTo(before, out.place.extent->fence);
    copies_.push_back({out.place.address, block.device_address, block.bytes});
  }
  Position done;
  Error error = transfers_.out(copies_, before, done);
  for (const CopyOut& out : outs_) {
    Block& block = *out.block;
    const bool leaves = out.why != Decision::kWriteBack;
    if (error) {
      // A part may be under way: it reads the block and writes the place.
      if (!done.none()) core_.uses().stamp(block, done);
      Fence maybe;
      core_.uses().addTo(maybe, done);
      core_.host_pool->free(out.place.extent, maybe);
      if (leaves) {
        block.become(Block::kIdle);
      } else {
        block.word.fetch_and(~Block::kHostCopyBit, std::memory_order_acq_rel);
      }
      continue;
    }
    out.place.extent->fence.clear();
    host_.put(locked, block, {out.place.extent, out.place.address, done, {}});
    core_.note(out.why, block, block.bytes);
    core_.counters.bytes_out.fetch_add(static_cast<std::int64_t>(block.bytes),
                                       std::memory_order_relaxed);
    if (leaves) {
      vacate(locked, block, done);
    } else {
      // mutant: write-back-use
      core_.uses().stamp(block, done); // who gets the extent next waits
      // mutant: copied-ahead
      block.copied_ahead = true;
      host_.copies(locked).push(block);
    }
  }
  outs_.clear();
  if (!error) return true;
  shortage.failure = std::move(error);
  return false;
}

// From now on it matters what lies where.
void Residency::blocksLeave(const Locked& /*locked*/) noexcept {
  core_.arena->keepFreedApart();
  large_room_bytes_.store(core_.admission.budgetBytes() / kLargeRoomShare,
                          std::memory_order_relaxed);
}

// The block has a host copy, or will have after `copied`; its extent goes.
void Residency::vacate(const Locked& locked, Block& block, Position copied) {
  Fence uses = core_.uses().usesOf(block);
  // mutant: victim-copied
  core_.uses().addTo(uses, copied);
  core_.counters.evictions.fetch_add(1, std::memory_order_relaxed);
  block.copied_ahead = false; // the extent's next owner waits for it
  blocksLeave(locked);
  freeExtent(locked, block, uses);
  BlockUses::clearUses(block);
  if (core_.streams.passed(block.host.ready)) {
    block.become(Block::stateBits(BlockState::kHost));
  }
}

void Residency::freeExtent(const Locked& /*locked*/, Block& block,
                           const Fence& uses) {
  countPrefetch(block);
  core_.policy->left(block);
  core_.arena->free(block.device, uses);
  block.device = nullptr;
  block.device_address = nullptr;
}

bool Residency::movable(const Extent& extent) noexcept {
  if (extent.use != ExtentUse::kBlock) return false;
  const Block& block = *extent.block;
  const std::uint64_t word = block.word.load(std::memory_order_relaxed);
  return Block::stateOf(word) != BlockState::kResident ||
         Block::pinsOf(word) == block.claims;
}

// A Resident block that nobody but the call that begins has pinned: no thread
// without the lock takes it, until its `word` is put back. False: there is one.
bool Residency::takeForMove(Block& block, std::uint64_t& word) noexcept {
  const std::uint64_t moving = word - Block::stateBits(BlockState::kResident) +
                               Block::stateBits(BlockState::kFetching);
  return Block::pinsOf(word) == block.claims &&
         block.word.compare_exchange_strong(word, moving,
                                            std::memory_order_acq_rel);
}

void Residency::movedTo(const Locked& /*locked*/, Block& block, Extent& extent,
                        Position moved) {
  BlockUses::clearUses(block);
  // mutant: moved-write
  block.last_write.store(moved.word, std::memory_order_release);
  block.device = &extent;
  block.device_address = core_.arena->address(extent);
  core_.note(Decision::kMove, block, block.bytes);
}

bool Residency::relocate(const Locked& locked, Extent& extent, Extent& target,
                         Shortage& shortage) {
  Block& block = *extent.block;
  target.block = &block;
  std::uint64_t word = block.word.load(std::memory_order_acquire);
  if (!takeForMove(block, word)) {
    core_.arena->free(&target, {});
    return false;
  }
  // mutant: move-uses
  runtime::Result<Position> moved =
      core_.arena->move(&extent, &target, core_.uses().usesOf(block));
  if (moved.ok()) {
    movedTo(locked, block, target, *moved);
  } else {
    shortage.failure = moved.takeError();
    core_.arena->free(&target, {});
  }
  block.word.store(word, std::memory_order_release);
  return moved.ok();
}

bool Residency::slide(const Locked& locked, Extent& extent, std::size_t offset,
                      Shortage& shortage) {
  Block& block = *extent.block;
  std::uint64_t word = block.word.load(std::memory_order_acquire);
  const bool resident = Block::stateOf(word) == BlockState::kResident;
  Fence uses;
  if (resident) {
    if (!takeForMove(block, word)) return false;
    // mutant: slide-uses
    uses = core_.uses().usesOf(block);
  }
  runtime::Result<Position> moved =
      core_.arena->slideDown(&extent, offset, uses);
  if (!moved.ok()) {
    shortage.failure = moved.takeError();
  } else if (resident) {
    extent.fence.clear(); // last_write says it from now on
    movedTo(locked, block, extent, *moved);
  }
  if (resident) block.word.store(word, std::memory_order_release);
  return moved.ok();
}

void Residency::beginWriteBack(const Locked& locked, Block& block) {
  std::uint64_t word = block.word.load(std::memory_order_acquire);
  if ((word & ~Block::kKeptBits) != Block::kIdle) return; // or in use
  Shortage shortage;
  const HostPool::Place place = host_.hole(locked, block.rounded_bytes);
  if (place.extent == nullptr) return;
  if (!block.word.compare_exchange_strong(word, word | Block::kHostCopyBit,
                                          std::memory_order_acq_rel)) {
    core_.host_pool->free(place.extent, {});
    return;
  }
  outs_.push_back({&block, place, Decision::kWriteBack});
}

bool Residency::drop(const Locked& locked, Block& block) {
  std::uint64_t word = block.word.load(std::memory_order_acquire);
  const BlockState state = Block::stateOf(word);
  const bool has_bytes = state == BlockState::kResident ||
                         state == BlockState::kHost ||
                         state == BlockState::kEvicting;
  if (!has_bytes || Block::pinsOf(word) > 0 || block.claims > 0 ||
      block.awaited > 0 || block.host_pins > 0 || block.host_writing ||
      block.isMirrored() || !core_.records.droppable(block) ||
      !fits(RecomputeRecords::makerOf(block), core_.admission.budgetBytes()) ||
      !block.word.compare_exchange_strong(
          word,
          Block::stateBits(BlockState::kDropped) | (word & Block::kRecordedBit),
          std::memory_order_acq_rel)) {
    return false;
  }
  core_.note(Decision::kDrop, block, block.bytes);
  core_.counters.dropped_bytes.fetch_add(static_cast<std::int64_t>(block.bytes),
                                         std::memory_order_relaxed);
  blocksLeave(locked);
  giveUpPlaces(locked, block, (word & Block::kHostCopyBit) != 0);
  return true;
}

bool Residency::fits(const Record& record, std::size_t budget_bytes) noexcept {
  return RecomputeRecords::neededBytes(record) <= budget_bytes;
}

bool Residency::fetch(const Locked& /*locked*/,
                      std::span<const WantedBlock> wanted_blocks,
                      Shortage& shortage) {
  copies_.clear();
  Fence before;
  std::int64_t bytes = 0;
  for (const WantedBlock& wanted : wanted_blocks) {
    if (!wanted.fetched()) continue;
    Block& block = *wanted.block;
    copies_.push_back({core_.arena->address(*wanted.extent), block.host.address,
                       block.bytes});
    // mutant: fetch-fence
    core_.uses().addTo(before, wanted.extent->fence);
    // mutant: host-ready
    core_.uses().addTo(before, block.host.ready);
    bytes += static_cast<std::int64_t>(block.bytes);
  }
  Position fetched;
  if (!copies_.empty()) {
    const PhaseRange range("fetch");
    Error error = transfers_.in(copies_, before, fetched);
    if (error) {
      // Some of the copies may be under way, from and to all these places.
      for (const WantedBlock& wanted : wanted_blocks) {
        if (!wanted.fetched()) continue;
        core_.uses().addTo(wanted.extent->fence, fetched);
        if (!fetched.none()) wanted.block->host.read = fetched;
      }
      shortage.failure = std::move(error);
      return false;
    }
    core_.counters.bytes_in.fetch_add(bytes, std::memory_order_relaxed);
  }
  for (const WantedBlock& wanted : wanted_blocks) {
    if (!wanted.missing) continue;
    if (wanted.fetched()) wanted.block->host.read = fetched;
    Fence& earlier = wanted.extent->fence;
    const Position ready =
        wanted.fetched() ? fetched : core_.uses().join(earlier);
    earlier.clear();
    wanted.block->last_write.store(ready.word, std::memory_order_release);
  }
  return true;
}

void Residency::takeOver(const Locked& locked, Block& block, Block& fresh) {
  CHAMELEON_CHECK(block.bytes == fresh.bytes &&
                      block.rounded_bytes == fresh.rounded_bytes &&
                      fresh.pins() == 0,
                  "an op that ran again created another result");
  settle(locked, fresh);
  if (fresh.device != nullptr) {
    core_.policy->left(fresh);
    fresh.device->block = &block;
  }
  if (fresh.hasHostCopy()) {
    host_.copies(locked).remove(fresh);
    host_.copies(locked).push(block);
  }
  block.device = std::exchange(fresh.device, nullptr);
  block.device_address = std::exchange(fresh.device_address, nullptr);
  block.host = std::exchange(fresh.host, {});
  if (block.host.extent != nullptr) block.host.extent->block = &block;
  block.copied_ahead = fresh.copied_ahead;
  // mutant: remade-write
  block.last_write.store(fresh.last_write.load());
  for (std::size_t i = 0; i < Block::kUseSlots; ++i) {
    block.last_use[i].store(fresh.last_use[i].load());
  }
  block.last_use_tick.store(fresh.last_use_tick.load());
  block.become(fresh.word.load() & ~Block::kRecordedBit);
  fresh.become(Block::stateBits(BlockState::kUnbacked));
  if (block.device != nullptr) core_.policy->entered(block);
  core_.note(Decision::kRerun, block, block.bytes);
}

void Residency::markResident(const Locked& locked, const WantedBlock& wanted,
                             std::uint64_t pins, Decision why) {
  Block& block = *wanted.block;
  const bool fetched = block.host.extent != nullptr;
  block.lost = false;
  block.device = wanted.extent;
  block.device_address = core_.arena->address(*wanted.extent);
  block.become(Block::kIdle | (fetched ? Block::kHostCopyBit : 0) | pins);
  if (fetched) {
    host_.copies(locked).push(block);
    core_.note(why, block, block.bytes);
  }
  core_.policy->entered(block);
}

void Residency::adoptExtent(const Locked& /*locked*/, Block& block,
                            Extent* extent) {
  core_.arena->adopt(extent, &block);
  block.device = extent;
  block.device_address = core_.arena->address(*extent);
  block.word.store(Block::kIdle | 1, std::memory_order_release);
  core_.policy->entered(block);
}

void Residency::orphanExtent(const Locked& /*locked*/, Block& block,
                             Position position) noexcept {
  block.device->fence.add(position);
  core_.policy->left(block);
  core_.arena->orphan(block.device);
  block.device = nullptr;
  block.device_address = nullptr;
  block.word.store(Block::stateBits(BlockState::kUnbacked),
                   std::memory_order_release);
}

bool Residency::evictTo(const Locked& locked, Block& block, std::uint64_t pins,
                        const HostPlace& place, const Fence& uses,
                        bool complete) noexcept {
  std::uint64_t word = Block::kIdle | pins;
  if (!block.word.compare_exchange_strong(
          word, Block::stateBits(BlockState::kEvicting),
          std::memory_order_acq_rel)) {
    return false;
  }
  for (const Position position : uses.slots()) {
    core_.uses().stamp(block, position);
  }
  if (complete) {
    host_.put(locked, block, place);
    vacate(locked, block, place.ready);
    return true;
  }
  Fence all = uses;
  core_.uses().addTo(all, place.ready);
  vacate(locked, block, place.ready);
  core_.host_pool->free(place.extent, all);
  // mutant: lost-value
  block.lost = true;
  block.word.store(Block::stateBits(BlockState::kUnbacked),
                   std::memory_order_release);
  return true;
}

void Residency::writtenOnHost(const Locked& locked, Block& block,
                              const HostPool::Place& place) noexcept {
  if (block.host.extent == nullptr) {
    place.extent->fence.clear();
    host_.put(locked, block, {place.extent, place.address, {}, {}});
    block.lost = false;
  }
  block.become(Block::stateBits(BlockState::kHost));
  block.host.ready = {};
  block.host.read = {};
}

void Residency::settle(const Locked& /*locked*/, Block& block) noexcept {
  if (block.state() != BlockState::kEvicting ||
      !core_.streams.poll(block.host.ready)) {
    return;
  }
  block.become(Block::stateBits(BlockState::kHost));
}

} // namespace chameleon::memory
