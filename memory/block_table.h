// Birth and death of blocks, and the list of those that live. A dead block
// waits without the lock, as a spare one (SpareBlocks) or released, until
// somebody who has the lock destroys it.
//
// Tests: pager_test.cpp.
//
// Thread safety: methods with a Locked need the pager's lock; the others may be
// called by any thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "memory/pager_core.h"
#include "memory/residency.h"
#include "memory/space/logical_space.h"
#include "memory/spare_blocks.h"

namespace chameleon::memory {

class Pager;

class BlockTable {
 public:
  // REQUIRES: `core` and `residency` outlive it. `owner`: what its blocks call
  // their pager.
  BlockTable(PagerCore& core, Residency& residency, Pager* owner,
             std::unique_ptr<LogicalSpace> space);
  ~BlockTable();
  BlockTable(const BlockTable&) = delete;
  BlockTable& operator=(const BlockTable&) = delete;

  // ---- birth ---------------------------------------------------------------
  // A storage's block, Unbacked. kOutOfLogicalMemory past the logical limit.
  runtime::Result<Block*> create(const Locked& locked, std::size_t bytes)
      REQUIRES(pager_lock);
  // The same, counted nowhere: what a kernel makes, or a re-run.
  runtime::Result<Block*> newBlock(const Locked& locked, std::size_t bytes,
                                   std::size_t rounded_bytes)
      REQUIRES(pager_lock);
  // A new identity for a block, or for a spare one that is born again.
  std::uint64_t nextIdentity() noexcept {
    return identities_.fetch_add(1, std::memory_order_relaxed) + 1;
  }
  // An error: so much more would be past the logical limit, by more than
  // `rounding_bytes`.
  runtime::Error refuseBeyondLimit(const Locked& locked, std::size_t bytes,
                                   std::size_t rounding_bytes = 0) const
      REQUIRES(pager_lock);
  // Counts a block as logical memory.
  void addLogical(const Block& block) noexcept;

  // ---- death ---------------------------------------------------------------
  // The storage died. Logical bytes fall at once.
  void release(Block& block) noexcept;
  // A dead block that nobody pins, kept whole if there is a place for it.
  void spare(Block& block) noexcept;
  // A spare block of exactly this size, pinned once; null: there is none.
  Block* takeSpare(std::size_t rounded_bytes) noexcept;
  void pushReleased(Block* block) noexcept;
  // Destroys what was released, but for what a record holds.
  void drainReleased(const Locked& locked) noexcept REQUIRES(pager_lock);
  // False: results lie where they were planned, and not where the last one of
  // their size did. Any thread.
  void keepSpares(bool keep) noexcept {
    keeps_spares_.store(keep, std::memory_order_relaxed);
  }
  // Makes all spare blocks free memory. False: there were none.
  bool giveBackSpares(const Locked& locked) noexcept REQUIRES(pager_lock);
  // Destroys what no record holds any more.
  void freeUnheld(const Locked& locked) noexcept REQUIRES(pager_lock);
  void destroy(const Locked& locked, Block& block) noexcept
      REQUIRES(pager_lock);
  // REQUIRES: no call is in flight, and the device does nothing any more.
  void destroyAll(const Locked& locked) noexcept REQUIRES(pager_lock);
  // The storage of this identity is gone for the profiler, if there was one.
  void forgetDead(Block& block) noexcept;

  // ---- figures -------------------------------------------------------------
  Block* firstLive(const Locked& /*locked*/) const noexcept
      REQUIRES(pager_lock) {
    return live_;
  }
  bool hasReleased() const noexcept {
    return released_.load(std::memory_order_relaxed) != nullptr;
  }
  std::size_t releasedBytes() const noexcept { // rounded
    return released_bytes_.load(std::memory_order_relaxed);
  }
  std::size_t spareBytes() const noexcept { return spares_.bytes(); }
  std::size_t logicalBytes() const noexcept {
    return logical_bytes_.load(std::memory_order_relaxed);
  }
  std::size_t logicalRoundedBytes() const noexcept {
    return logical_rounded_bytes_.load(std::memory_order_relaxed);
  }
  void setLogicalLimit(std::size_t bytes) noexcept {
    logical_limit_bytes_.store(bytes, std::memory_order_relaxed);
  }
  // What blocks and calls have in HBM, as of the last time that the lock was
  // given up / at this very moment. (Spares come and go without the lock, and
  // some may be evicted already.)
  std::size_t residentBytes() const noexcept {
    return withoutSpares(core_.used_bytes.hbm.load(std::memory_order_relaxed));
  }
  std::size_t residentNow(const Locked& /*locked*/) const noexcept
      REQUIRES(pager_lock) {
    return withoutSpares(core_.arena->usedBytes());
  }

 private:
  friend class InvariantWalker;

  std::size_t withoutSpares(std::size_t used_bytes) const noexcept {
    return used_bytes - std::min(used_bytes, spares_.bytes());
  }

  PagerCore& core_;
  Residency& residency_;
  Pager* const owner_;
  SpareBlocks spares_;
  std::atomic<bool> keeps_spares_{true};
  std::atomic<Block*> released_{nullptr};
  std::atomic<std::size_t> released_bytes_{0};
  std::atomic<std::uint64_t> identities_{0};
  std::atomic<std::size_t> logical_bytes_{0};
  std::atomic<std::size_t> logical_rounded_bytes_{0};
  std::atomic<std::size_t> logical_limit_bytes_;

  std::unique_ptr<LogicalSpace> space_ GUARDED_BY(pager_lock);
  Block* live_ GUARDED_BY(pager_lock) = nullptr;     // by next_live
  Block* recycled_ GUARDED_BY(pager_lock) = nullptr; // by next_live
};

// ---- what an op call runs through, inline ----------------------------------

[[gnu::always_inline]] inline void BlockTable::addLogical(
    const Block& block) noexcept {
  logical_rounded_bytes_.fetch_add(ExtentMap::round(block.bytes),
                                   std::memory_order_relaxed);
  const auto now = static_cast<std::int64_t>(
      logical_bytes_.fetch_add(block.bytes, std::memory_order_relaxed) +
      block.bytes);
  raise(core_.counters.peak_logical_bytes, now);
}

[[gnu::always_inline]] inline Block* BlockTable::takeSpare(
    std::size_t rounded_bytes) noexcept {
  for (;;) {
    Block* const block = spares_.take(rounded_bytes);
    if (block == nullptr) return nullptr;
    std::uint64_t word = Block::kIdle;
    if (block->word.compare_exchange_strong(word, Block::kIdle + 1,
                                            std::memory_order_acq_rel)) {
      return block;
    }
    pushReleased(block); // evicted or moved just now
  }
}

[[gnu::always_inline]] inline void BlockTable::spare(Block& block) noexcept {
  // At most this share of HBM that is open; but a small training may have as
  // much as if more were.
  constexpr std::size_t kSpareShare = 32;
  constexpr std::size_t kSmallBytes = std::size_t{2} << 30;
  // One with a host copy is no use to anybody, and the host may need the room.
  if (block.word.load(std::memory_order_acquire) != Block::kIdle ||
      !keeps_spares_.load(std::memory_order_relaxed)) [[unlikely]] {
    pushReleased(&block);
    return;
  }
  const std::size_t open_bytes =
      std::max(core_.used_bytes.open_hbm.load(std::memory_order_relaxed),
               std::min(core_.admission.budgetBytes(), kSmallBytes));
  Block* rejected = spares_.put(block, open_bytes / kSpareShare);
  while (rejected != nullptr) {
    Block* const next = rejected->next_released;
    pushReleased(rejected);
    rejected = next;
  }
}

} // namespace chameleon::memory
