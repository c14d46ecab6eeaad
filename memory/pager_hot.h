// What an op call runs through when all is Resident, and nothing waits: kept
// inline, so that each of begin(), allocate(), adopt(), end() and release() is
// one function: half of what a small function costs is its call. All of it runs
// without the lock, on the call's thread.
//
// Private to memory/pager*.cpp.
#pragma once

#include <algorithm>
#include <array>
#include <optional>

#include "memory/pager_impl.h"

namespace chameleon::memory {

inline constexpr std::size_t kReleasedShare = 16; // of the budget, unfreed
inline constexpr std::size_t kSpareShare = 32;    // of the budget, at most
inline constexpr std::size_t kLargeShare = 512;   // of the budget, at least
inline constexpr std::uint64_t kIdle = Block::stateBits(BlockState::kResident);

// ---- the profiler ----------------------------------------------------------

// By Access.
inline constexpr std::array<std::uint32_t, 4> kUseFlags{
    0, profiler::Operand::kReads,
    profiler::Operand::kReads | profiler::Operand::kWrites,
    profiler::Operand::kWrites | profiler::Operand::kOverwrites};

// Operands as the profiler asks for them.
struct UsesOf {
  std::span<const Operand> operands;
  std::size_t size() const noexcept { return operands.size(); }
  std::uint64_t identity(std::size_t i) const noexcept {
    return operands[i].block->identity.load(std::memory_order_relaxed);
  }
  profiler::Use use(std::size_t i) const noexcept {
    const auto [block, access] = operands[i];
    return {identity(i), block->profiler_slot.load(std::memory_order_relaxed),
            kUseFlags[static_cast<std::size_t>(access)]};
  }
};

// True: a step ended before it.
[[gnu::always_inline]] inline bool PagerImpl::observe(
    Call& call, const OpIdentity& identity,
    const std::span<const Operand>& operands) {
  profiler_.observe(
      identity.name, identity.quick, UsesOf{operands},
      [&] { return identity.whole(); }, call.ticket_);
  return profiler_.steps() != steps_seen_.load(std::memory_order_relaxed);
}

// At the latest when the block leaves HBM or dies.
[[gnu::always_inline]] inline void PagerImpl::countPrefetch(
    Block& block) noexcept {
  if (block.prefetched_tick == 0) return;
  if (block.last_use_tick.load(std::memory_order_relaxed) >=
      block.prefetched_tick) {
    counters_.prefetch_hits.fetch_add(1, std::memory_order_relaxed);
  }
  block.prefetched_tick = 0;
}

// A result of the op is a block from now on; a spare block was another before.
[[gnu::always_inline]] inline void PagerImpl::introduce(Call& call,
                                                        Block& block) noexcept {
  const std::uint64_t identity = block.identity.load(std::memory_order_relaxed);
  const profiler::BlockSlot slot =
      block.profiler_slot.load(std::memory_order_relaxed);
  if (slot != profiler::kNoSlot && call.observed_) [[likely]] {
    const std::uint64_t died =
        block.released_at.load(std::memory_order_relaxed);
    block.released_at.store(Block::kAlive, std::memory_order_relaxed);
    countPrefetch(block);
    profiler_.resultInPlaceOf(slot, died, call.ticket_, identity);
    return;
  }
  forgetDead(block);
  block.released_at.store(Block::kAlive, std::memory_order_relaxed);
  block.profiler_slot.store(
      call.observed_ ? profiler_.result(call.ticket_, identity,
                                        block.rounded_bytes, &block)
                     : profiler_.born(identity, block.rounded_bytes, &block),
      std::memory_order_relaxed);
}

// ---- the way in ------------------------------------------------------------

[[gnu::always_inline]] inline bool PagerImpl::hasSeen(
    const OpMemory* memory, std::size_t bytes) noexcept {
  return memory == nullptr ||
         (memory->known.load(std::memory_order_acquire) &&
          bytes <= memory->operand_bytes.load(std::memory_order_relaxed));
}

// The room to commit for what the kernel will allocate.
[[gnu::always_inline]] inline std::size_t PagerImpl::roomWished(
    const OpMemory* memory, std::size_t bytes) {
  if (memory == nullptr) return 0;
  if (!hasSeen(memory, bytes)) [[unlikely]]
    return roomGuessed(*memory, bytes);
  return ExtentMap::round(memory->peak_bytes.load(std::memory_order_relaxed));
}

// Pins without the lock: all operands are Resident, none needs its host copy
// dropped, all fits beside the other calls, and nobody waits.
[[gnu::always_inline]] inline bool PagerImpl::beginFast(
    Call& call, const std::span<const Operand>& operands, bool must_not_fail,
    Fence& waits) {
  // Released blocks lie where they are until somebody needs the lock anyway;
  // a lot of them is a reason to take it.
  if (admission_.closed() || released_bytes_.load(std::memory_order_relaxed) >
                                 admission_.budgetBytes() / kReleasedShare) {
    return false;
  }
  std::size_t bytes = 0;
  for (const Operand& operand : operands) {
    bytes += operand.block->rounded_bytes;
  }
  // What it needs may be much more than is guessed: see roomForUnseen().
  if (must_not_fail && !hasSeen(call.memory_, bytes)) [[unlikely]]
    return false;
  const std::size_t room = roomWished(call.memory_, bytes);
  const std::size_t large = large_room_.load(std::memory_order_relaxed);
  if (room > large && spans_.find(call.quick_) > large) [[unlikely]] {
    return false; // see makeLargeRoom()
  }
  std::optional<std::size_t> splits;
  if (must_not_fail) {
    splits = operands.size() + fixed_extents_.load(std::memory_order_relaxed);
  }
  const Admission::Entry entry = admission_.enter(bytes, room, splits);
  if (!entry.admitted) return false;

  Operand* const pins = call.pins_.resize(operands.size());
  std::size_t shared_bytes = 0; // committed already, by earlier pins
  std::size_t pinned = 0;
  bool good = true;
  for (; good && pinned < operands.size(); ++pinned) {
    const Operand& operand = operands[pinned];
    Block& block = *operand.block;
    std::uint64_t word = block.word.load(std::memory_order_relaxed);
    do {
      good = Block::stateOf(word) == BlockState::kResident &&
             (operand.access == Access::kRead ||
              (word & (Block::kHostCopyBit | Block::kRecordedBit)) == 0);
    } while (good && !block.word.compare_exchange_weak(
                         word, word + 1, std::memory_order_acquire,
                         std::memory_order_relaxed));
    if (!good) break;
    pins[pinned] = operand;
    if (Block::pinsOf(word) > 0) shared_bytes += block.rounded_bytes;
    block.last_use_tick.store(call.tick_, std::memory_order_relaxed);
    const Position written{block.last_write.load(std::memory_order_acquire)};
    if (!inOrder(written, call.stream_)) addTo(waits, written);
  }
  if (good) {
    if (shared_bytes != 0) {
      admission_.subtract(0, shared_bytes);
      admission_.wake();
    }
    call.operand_bytes_ = bytes;
    call.room_bytes_ = entry.room_bytes;
    call.exclusive_ = entry.exclusive;
    call.hole_due_ = entry.exclusive;
    call.spares_left_ = entry.exclusive ? entry.more_splits : SIZE_MAX;
    return true;
  }

  backOut(operands, pinned, entry, shared_bytes);
  call.pins_.clear();
  waits.clear();
  return false;
}

// ---- memory inside the call ------------------------------------------------

[[gnu::always_inline]] inline void PagerImpl::addLogical(
    const Block& block) noexcept {
  logical_rounded_bytes_.fetch_add(ExtentMap::round(block.bytes),
                                   std::memory_order_relaxed);
  const auto now = static_cast<std::int64_t>(
      logical_bytes_.fetch_add(block.bytes, std::memory_order_relaxed) +
      block.bytes);
  raise(counters_.peak_logical_bytes, now);
}

// What was committed as the call's room is now committed as a pinned block.
[[gnu::always_inline]] inline void PagerImpl::adopted(Call& call,
                                                      Block& block) noexcept {
  note(Decision::kAdopt, block, block.bytes);
  block.last_use_tick.store(call.tick_, std::memory_order_relaxed);
  call.room_bytes_ -= block.rounded_bytes;
  call.adopted_bytes_ += block.rounded_bytes;
  call.adopted_.push_back(&block);
  if (call.rerun_) [[unlikely]] { // it will be another block's bytes
    forgetDead(block);
    block.released_at.store(Block::kAlive, std::memory_order_relaxed);
    return;
  }
  addLogical(block);
  introduce(call, block);
}

[[gnu::always_inline]] inline std::size_t PagerImpl::indexOfSpare(
    const Call& call, const std::byte* address) noexcept {
  return call.spares_.findIf(
      [=](const Block* block) { return block->device_address == address; });
}

// The call has it no more. It is still pinned: by nobody, unless it is adopted.
[[gnu::always_inline]] inline Block& PagerImpl::removeSpare(
    Call& call, std::size_t index) noexcept {
  Block& block = *call.spares_[index];
  call.spares_.remove(index);
  call.spare_bytes_ -= block.rounded_bytes;
  return block;
}

// The kernel returned it: another block, in the same place.
[[gnu::always_inline]] inline Block& PagerImpl::adoptSpare(
    Call& call, std::size_t index, std::size_t bytes) noexcept {
  Block& block = removeSpare(call, index);
  block.bytes.store(bytes, std::memory_order_relaxed);
  block.identity.store(nextIdentity(), std::memory_order_relaxed);
  adopted(call, block);
  return block;
}

// Null: there is none, or none that the call may have.
[[gnu::always_inline]] inline Block* PagerImpl::takeSpare(
    Call& call, std::size_t rounded_bytes) noexcept {
  // Within the room that was committed for it: nobody is asked for more.
  if (call.spares_left_ == 0 ||
      call.live_bytes() + rounded_bytes > call.room_bytes_) {
    return nullptr;
  }
  Block* block = nullptr;
  for (;;) {
    block = spares_.take(rounded_bytes);
    if (block == nullptr) return nullptr;
    std::uint64_t word = kIdle;
    if (block->word.compare_exchange_strong(word, kIdle + 1,
                                            std::memory_order_acq_rel)) {
      break;
    }
    pushReleased(block); // evicted or moved just now
  }
  --call.spares_left_;
  call.spares_.push_back(block);
  call.spare_bytes_ += rounded_bytes;
  raise(counters_.peak_resident_bytes, residentBytes());
  if (checks_callers_) [[unlikely]] {
    // As fresh as any other memory: poison, where that is asked for.
    const runtime::ByteRange range{block->device_address, rounded_bytes};
    runtime_.discarded(range);
    runtime_.revived(range);
  }
  return block;
}

// A dead block that nobody pins.
[[gnu::always_inline]] inline void PagerImpl::spare(Block& block) noexcept {
  // One with a host copy is no use to anybody, and the host may need the room.
  if (block.word.load(std::memory_order_acquire) != kIdle) [[unlikely]] {
    pushReleased(&block);
    return;
  }
  Block* rejected = spares_.put(block, admission_.budgetBytes() / kSpareShare);
  while (rejected != nullptr) {
    Block* const next = rejected->next_released;
    pushReleased(rejected);
    rejected = next;
  }
}

// ---- the way out -----------------------------------------------------------

[[gnu::always_inline]] inline void PagerImpl::learn(Call& call) noexcept {
  call.failures_ = call.failed_ ? call.failures_ : 0;
  if (call.memory_ == nullptr) return;
  raise(call.memory_->operand_bytes, call.operand_bytes_);
  // The peak, if its pieces may lie anywhere.
  std::size_t needed = call.peak_bytes_;
  bool is_span = needed > large_room_.load(std::memory_order_relaxed);
  if (call.must_not_fail_ && needed > 0) {
    needed = call.layout_.span();
    is_span = true;
  }
  if (is_span && call.quick_ != 0) spans_.raise(call.quick_, needed);
  raise(call.memory_->peak_bytes, needed);
  if (!call.failed_ && !call.memory_->known.load(std::memory_order_relaxed)) {
    call.memory_->known.store(true, std::memory_order_release);
  }
}

// What the call had committed is given back: `freed` bytes of its pins too.
[[gnu::always_inline]] inline void PagerImpl::retire(
    Call& call, std::size_t freed) noexcept {
  if (call.held_) {
    fixed_extents_.fetch_sub(call.pins_.size(), std::memory_order_relaxed);
  }
  call.pins_.clear();
  if (!call.hole_.empty()) {
    const Lock lock(*this);
    freeHole(call);
  }
  if (call.must_not_fail_) call.layout_.clear();
  admission_.subtract(call.held_ ? 0 : 1, freed + call.room_bytes_,
                      call.exclusive_);
  admission_.wake();
  if (!call.held_) --*call.depth_;
  // As a new one, but for what it remembers of failures.
  call.active_ = false;
  call.exclusive_ = false;
  call.chooses_ = false;
  call.has_all_ = false;
  call.held_ = false;
  call.hole_due_ = false;
  call.room_bytes_ = 0;
  call.adopted_bytes_ = 0;
  call.peak_bytes_ = 0;
}

} // namespace chameleon::memory
