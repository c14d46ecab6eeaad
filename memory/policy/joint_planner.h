// Keep, move or run again, for a whole cycle: which values are dropped is
// searched for, and what is left is swapped as planner.h plans it.
//
// Each assignment of prices to segments (rerun_choice.h) is a plan: the values
// that it drops, the cycle with its re-runs (extended_cycle.h), swaps for that,
// and the time that the plan model says, re-runs included. Tried are, in this
// order:
//   1. one price everywhere, for segment groups of one, two and four;
//   2. the best of these and "keep all" in mixtures of two: the first part of
//      the step with one, the rest with the other, or every second or third;
//   3. small changes of the best: a range of segments to a neighbouring price,
//      borders dropped or put back, two segments swapped.
// A plan that only swaps is always one of the candidates. Each assignment is
// planned with the two sets of swap parameters that were best for the best so
// far, a new best one with all of them: which are best differs from model to
// model and from link to link.
//
// Whoever has time calls tryNext() again and again; best() is a plan at any
// time. The search is deterministic.
//
// Thread safety: none.
#pragma once

#include <cstdint>
#include <optional>
#include <unordered_set>
#include <utility>
#include <vector>

#include "memory/policy/extended_cycle.h"
#include "memory/policy/plan.h"
#include "memory/policy/planner.h"
#include "memory/policy/rerun_choice.h"
#include "memory/policy/rerun_graph.h"

namespace chameleon::memory {

class JointPlanner {
 public:
  // `swapping`: what plan_cycle() made of the same. Null: it cannot be planned
  // by swaps alone. REQUIRES: the cycle stays.
  JointPlanner(const profiler::Cycle& cycle, const PlannerOptions& options,
               PlanPtr swapping);

  // An assignment that was good for the same ops under another budget or link:
  // tried before all others.
  void alsoTry(Assignment assignment) {
    // One from a file may be of other segments.
    if (assignment.joins.size() != choices_.segments() ||
        assignment.price_ns_per_byte.size() != choices_.segments()) {
      return;
    }
    hints_.push_back(std::move(assignment));
  }
  // Tries one more assignment. False: there is none left, or no better plan.
  bool tryNext();
  // The best plan so far, in the program's positions; made anew, with the whole
  // portfolio, where the search went on since. Null: none yet.
  PlanPtr best();
  // What best() was made from; nothing: it only swaps.
  const Assignment& bestAssignment() const { return best_assignment_; }
  // Per value: best() drops it.
  const std::vector<std::uint8_t>& bestDropped() const { return best_dropped_; }
  // As a cycle of its own; for tests and figures.
  const ExtendedCycle* bestCycle() const {
    return best_cycle_ ? &*best_cycle_ : nullptr;
  }
  PlanPtr bestExtendedPlan() const { return best_extended_; }

  // Not even one price everywhere was tried for all prices.
  bool isEarly() const noexcept { return uniform_at_ < kSteps; }
  // What the search takes for the best, with few candidates and few steps.
  double searched_ns() const {
    return top_.empty() ? 0 : top_.front().duration_ns;
  }
  double rerun_ns() const {
    return best_ == nullptr ? 0 : best_->modelled.compute_ns - compute_ns_;
  }
  // Assignments that were planned, and that were not worth it.
  std::uint32_t planned() const noexcept { return planned_; }
  std::uint32_t skipped() const noexcept { return skipped_; }

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

  std::optional<Assignment> next();
  std::optional<Assignment> nextUniform();
  std::optional<Assignment> nextSplit();
  Assignment nextMove();
  void listSplits();
  void tryOne(const Assignment& assignment);
  void keep(double duration_ns, const Assignment& assignment);
  double model(const ExtendedCycle& extended);
  Assignment uniform(double price, std::size_t segments_per_group) const;
  double price(int step) const;
  std::uint32_t random(std::uint32_t below);

  const profiler::Cycle& cycle_;
  const PlannerOptions options_;
  const RerunGraph graph_;
  const RerunChoices choices_;
  double compute_ns_ = 0;
  double link_ns_per_byte_ = 0; // out and in again

  std::vector<PlanParameters> portfolio_; // best for the best first
  std::vector<Assignment> hints_;
  std::vector<Tried> top_; // the best first
  std::unordered_set<std::uint64_t> seen_;
  std::uint32_t planned_ = 0;
  std::uint32_t skipped_ = 0;

  std::uint32_t uniform_at_ = 0;
  std::optional<std::vector<Assignment>> splits_; // the next one last
  std::uint64_t random_ = 1;
  std::uint32_t moves_ = 0; // since the last better plan

  // Of the assignment that was best then.
  std::vector<std::uint8_t> best_dropped_;
  PlanPtr best_;
  PlanPtr best_extended_;
  Assignment best_assignment_;
  std::optional<ExtendedCycle> best_cycle_;
  bool stale_ = false;
};

} // namespace chameleon::memory
