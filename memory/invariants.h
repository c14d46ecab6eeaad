// Walks everything the pager knows and aborts with a sentence on the first
// thing that does not hold: B1..B4 of block.h, P1 of pager.h, R1 of
// recompute_records.h, the invariants of the arena, the host pool and the
// logical addresses, and that all counts add up. Calls may be in flight; what
// is only true without them is checked when there are none.
//
//   level 1  counters, O(1)
//   level 2  every block and every extent
//   level 3  also compares clean host copies with the device bytes
//
// Thread safety: any thread; takes the pager's lock. Level 3 waits on the host.
#pragma once

#include <atomic>
#include <cstdint>

#include "memory/block_table.h"
#include "memory/call/call_memory.h"
#include "memory/mirror/mirror.h"
#include "memory/pager_core.h"
#include "memory/residency.h"

namespace chameleon::memory {

class InvariantWalker {
 public:
  // REQUIRES: all outlive it.
  InvariantWalker(PagerCore& core, Residency& residency, BlockTable& table,
                  const Mirror& mirror, CallMemory& memory)
      : core_(core),
        residency_(residency),
        table_(table),
        mirror_(mirror),
        memory_(memory) {}

  void check(int level);

  // ---- after every n-th call, for bug reports ------------------------------
  // Then each op's operands are looked at before it runs, too. 0: neither.
  void checkEvery(std::uint64_t calls) noexcept {
    every_ = calls;
    if (calls != 0) core_.watched = true;
  }
  bool isOn() const noexcept { return every_ != 0; }
  void checkOperands(const CallState& call) const; // of a call that has begun
  void checkNow();                                 // a call ended

 private:
  void checkLevels(const Locked& locked) const REQUIRES(pager_lock);
  void checkBlocks(const Locked& locked) const REQUIRES(pager_lock);
  void checkExtents(const Locked& locked) const REQUIRES(pager_lock);
  void checkCopies(const Locked& locked) const REQUIRES(pager_lock);
  void checkCommitted(const Locked& locked) const REQUIRES(pager_lock);

  PagerCore& core_;
  Residency& residency_;
  BlockTable& table_;
  const Mirror& mirror_;
  CallMemory& memory_;
  std::atomic<std::uint64_t> every_{0};
  std::atomic<std::uint64_t> calls_checked_{0};
};

} // namespace chameleon::memory
