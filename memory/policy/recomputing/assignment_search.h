// Which assignment of prices (rerun_choice.h) is planned next. In this order:
//   1. those that were good before (alsoTry());
//   2. one price everywhere, for segment groups of one, two and four;
//   3. the best of these and "keep all" in mixtures of two: the first part of
//      the step with one, the rest with the other, or every second or third;
//   4. small changes of the best: a range of segments to a neighbouring price,
//      borders dropped or put back, two segments swapped.
// The search is deterministic.
//
// Tests: joint_planner_test.cpp.
//
// Thread safety: none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "memory/policy/recomputing/rerun_choice.h"

namespace chameleon::memory {

class AssignmentSearch {
 public:
  // `link_ns_per_byte`: of a byte that is moved out and in again. REQUIRES:
  // `choices` outlives it.
  AssignmentSearch(const RerunChoices& choices, double link_ns_per_byte)
      : choices_(choices), link_ns_per_byte_(link_ns_per_byte) {}

  // Tried before all others, if it is of the same segments.
  void alsoTry(Assignment assignment);
  // Nothing: there is none left, or none was better for long.
  std::optional<Assignment> next();
  // A step takes so long with it. True: it is the best so far.
  bool tookTime(double duration_ns, const Assignment& assignment);

  Assignment keepAll() const { return uniform(0, 1); }
  bool hasBest() const noexcept { return !top_.empty(); }
  // REQUIRES: hasBest().
  const Assignment& best() const noexcept { return top_.front().assignment; }
  double best_ns() const noexcept { return top_.front().duration_ns; }
  // What takes longer is of no use to the search, not even to start from.
  double limit_ns() const noexcept;
  // Not even one price everywhere was tried for all prices.
  bool isEarly() const noexcept { return uniform_at_ < kSteps; }

 private:
  // Prices are steps of a sixth of a decade around what a byte costs that is
  // moved out and in again.
  static constexpr int kLowestStep = -15;
  static constexpr int kHighestStep = 5;
  static constexpr int kSteps = kHighestStep - kLowestStep + 1;

  struct Tried {
    double duration_ns;
    Assignment assignment;
  };
  std::optional<Assignment> nextUniform();
  std::optional<Assignment> nextSplit();
  Assignment nextMove();
  void listSplits();
  Assignment uniform(double price, std::size_t segments_per_group) const;
  double price(int step) const;
  std::uint32_t random(std::uint32_t below);

  const RerunChoices& choices_;
  const double link_ns_per_byte_;
  std::vector<Assignment> hints_;
  std::vector<Tried> top_; // the best first
  std::uint32_t uniform_at_ = 0;
  std::optional<std::vector<Assignment>> splits_; // the next one last
  std::uint64_t random_ = 1;
  std::uint32_t moves_ = 0; // since the last better one
};

} // namespace chameleon::memory
