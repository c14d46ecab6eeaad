// Steps without a marker. The run is a sequence of *rounds*, each one walk
// along a path; this class sees the rounds go by and answers two questions.
//
//   What comes next?  What followed the longest equal sequence of rounds
//                     before (train train train train eval: after four), by
//                     majority where there were several.
//   What is a step?   One round, as a rule. When rounds of several paths
//                     repeat as a group (micro-batches and then an optimizer;
//                     train and eval in turn), the group is the step, and
//                     shall become one path. So shall a short round that
//                     repeats on and on, some hundred ops of it.
//
// Where a round ends is decided where ops are matched (Rounds, Rejoiner): at
// the end of the path, where the run jumps to the beginning of another one, and
// where a recording is seen to repeat itself. In a run that calls step(), only
// there.
//
// Bounded: the last kRuns runs of equal rounds. Cost of a round: O(1) while one
// path repeats, else up to kRuns x kContext comparisons.
//
// Thread safety: none; the caller synchronises.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "profiler/op_path.h"

namespace chameleon::profiler {

class StepFinder {
 public:
  static constexpr std::size_t kRuns = 128;
  static constexpr std::size_t kContext = 16;
  static constexpr std::uint64_t kMaxGroupOps = 1 << 16;
  // A round shorter than this that has repeated for so many ops becomes a
  // group of itself of about so many: the end of a round costs as much as ten
  // ops.
  static constexpr std::uint32_t kShortRound = 64;
  static constexpr std::uint64_t kSteadyOps = 1 << 12;
  static constexpr std::uint32_t kUnrolledOps = 256;
  // What repeated less often than that before it ended is no group.
  static constexpr std::size_t kLongRepetition = 8;

  void roundEnded(PathId path, std::uint32_t ops);
  // What comes next, 0: unknown.
  PathId next() const;
  // What comes after a round of `path`, which is still running. Its last answer
  // is kept.
  PathId nextAfter(PathId path);
  // The group of rounds that just ended for the second time in a row, or a
  // short one that went on and on, in order; or empty. Asked once after each
  // round.
  std::vector<PathId> group() const;
  // The group was recorded as this path; its rounds are forgotten.
  void grouped(PathId path, std::uint32_t ops);

 private:
  struct Run { // of equal rounds
    PathId path;
    std::uint32_t ops; // of one round
    std::uint32_t rounds;
    friend bool operator==(const Run&, const Run&) = default;
  };

  bool endedSoon(std::size_t period) const;
  PathId findNextAfter(PathId path);

  std::vector<Run> runs_; // neighbours differ in path
  PathId after_of_ = 0;   // nextAfter()'s last question, and its answer; 0:
  PathId after_ = 0;      // none since the last round
};

} // namespace chameleon::profiler
