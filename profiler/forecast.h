// What the profiler expects, as answers: what comes next, when is this block
// used again, how long until then. No decisions.
//
// All distances count ops from the one that comes next (0: the very next op).
// What is not known is said to be unknown, never guessed: after a divergence,
// before a place in the history was found again, everything is.
//
// Cost: O(log u) per block with u uses a step; a few dozen instructions.
//
// Thread safety: any thread; each answer takes the profiler's LeafLock, so an
// answer is right at the moment it was given.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "profiler/cycle.h"
#include "profiler/profiler.h"

namespace chameleon::profiler {

enum class NextUseKind : std::uint8_t {
  kUnknown, // nothing is known about this block here
  kNoMore,  // this sequence and the one after it do not use it again
  kKnown,
};

struct NextUse {
  NextUseKind kind = NextUseKind::kUnknown;
  // kKnown: ops before the use. Else: ops for which it surely is not used.
  std::uint32_t distance_ops = 0;
  std::int64_t in_ns = 0; // estimated compute time until then
  // The next use overwrites every byte unread: no need to fetch it, and what
  // it holds need not be saved.
  bool overwritten_first = false;
};

// A position in a known sequence: what a plan is made for and looked up by.
struct PathPosition {
  PathId path = 0; // 0: unknown
  std::uint32_t next_op = 0;
  std::uint32_t ops = 0; // of the path
};

class Forecast {
 public:
  explicit Forecast(const Profiler& profiler) : profiler_(profiler) {}

  PathPosition position() const;
  // The sequence that follows this one, 0: unknown. For plans made ahead.
  PathId following() const;
  NextUse nextUse(BlockSlot slot) const; // kNoSlot: unknown
  // The same for many blocks, kNoSlot: unknown. One lock for some hundred.
  void nextUses(std::span<const BlockSlot> slots,
                std::span<NextUse> answers) const;
  // The live blocks that values of a path are bound to; none: identity 0.
  struct Bound {
    void* owner = nullptr;
    std::uint64_t identity = 0;
  };
  void bound(PathId path, std::span<const std::uint32_t> values,
             std::span<Bound> answers) const;
  // The live blocks that values of a path are bound to, or were when it was
  // walked last, where the first op from `begin` on that uses them comes before
  // `end` and needs what they hold; in order of these ops.
  struct Need {
    void* owner;
    std::uint64_t identity;
    std::uint32_t value;
    std::uint32_t op;
  };
  void needs(PathId path, std::uint32_t begin, std::uint32_t end,
             std::vector<Need>& list) const;
  // The block that op `next_op + distance` of the path followed uses as its
  // n-th operand; identity 0: unknown, or not born yet.
  struct Expected {
    BlockSlot slot = kNoSlot;
    std::uint64_t identity = 0;
    std::uint32_t flags = 0;
  };
  std::vector<Expected> expected(std::uint32_t distance) const;

  // The value that a block is on the path followed; its number leads into a
  // CycleMap of that path. path 0: none that is known.
  struct Known {
    PathId path = 0;
    std::uint32_t value = kNone;
  };
  Known valueOf(BlockSlot slot) const;

 private:
  NextUse answer(BlockSlot slot) const; // REQUIRES the profiler's lock

  const Profiler& profiler_;
};

} // namespace chameleon::profiler
