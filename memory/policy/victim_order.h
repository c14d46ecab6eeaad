// The blocks in HBM, in the order in which they are given up where no plan says
// which.
//
// Uses more than half a cycle away, and unknown ones, are all far away, and
// among those the one used longest ago goes first. Nearer ones go by distance,
// a clean one as if it were twice as far (its eviction costs one copy, not
// two). What the program has let go, while ops that run again will
// read it, counts as used in the middle of what is left of the cycle. Blocks
// that are too small to be worth a copy are victims only where there is no
// other. Where one piece is wanted, and enough is free in many, a victim that
// is larger than the piece would leave for too little: the smallest that makes
// it is taken, of those that are not needed much sooner.
//
// Half a cycle of look-ahead is enough, and beyond it Belady's order does harm:
// a study found that, which simulated swap schedules on the traces of
// tests/benchmarks/policy/, and is not in the repository. No other constant
// below has a source; RESULTS.md there shows what all of them give.
//
// Cost: blocks are put in order for many ops at a time, since that takes as
// long as there are blocks. What is used meanwhile is no victim before the next
// time.
//
// Thread safety: as Policy says.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "memory/block.h"
#include "memory/policy/policy.h"
#include "profiler/forecast.h"

namespace chameleon::memory {

class VictimOrder {
 public:
  // How often blocks are put in order in one cycle, at most; off all paths, in
  // as many ops as there are blocks.
  static constexpr std::uint32_t kRanksPerCycle = 64;

  struct Victim {
    Block* block;
    std::uint64_t identity;
    bool small;
    bool far;
    std::uint64_t tick;         // of the last use
    std::uint64_t next_use;     // number of that op, if it is near
    std::uint32_t distance_ops; // near ones: to the next use, as it counts
  };

  // REQUIRES: `profiler` outlives it.
  explicit VictimOrder(const profiler::Profiler& profiler)
      : profiler_(profiler), forecast_(profiler) {}

  // A block is known from now on / no more; an unknown one is ignored.
  void add(Block& block);
  void remove(Block& block) noexcept;
  std::size_t size() const noexcept { return blocks_.size(); }

  // The first one that `usable` accepts, until the next call of find() or
  // take(); null: there is none, or all others are needed at need.needed_at or
  // before. `small_bytes`: a block of no more is small. `reruns`: ops run again
  // that read what the program has let go.
  const Victim* find(Policy::Usable usable, const Policy::Need& need,
                     std::uint64_t small_bytes, bool reruns);
  // That one is not known any more.
  Block& take(const Victim& victim) noexcept;

 private:
  // A victim of a better size is taken if its next use is at least this part as
  // far away as that of the best one.
  static constexpr double kAsFar = 0.5;

  static bool better(const Victim& a, const Victim& b) noexcept;
  static bool isVictim(const Victim& victim, Policy::Usable usable) noexcept;
  const Victim& fitting(Policy::Usable usable,
                        std::size_t piece_bytes) const noexcept;
  void rank(std::uint64_t small_bytes, bool reruns);

  const profiler::Profiler& profiler_;
  profiler::Forecast forecast_;
  std::vector<Block*> blocks_;  // known ones, at their policy_slot
  std::vector<Victim> ranked_;  // the best victim last
  std::uint64_t ranked_at_ = 0; // opCount()
  // Scratch, to spare the heap.
  std::vector<profiler::BlockSlot> slots_;
  std::vector<profiler::NextUse> uses_;
};

} // namespace chameleon::memory
