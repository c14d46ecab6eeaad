// Keep, move or run again, for a whole cycle: which values are dropped is
// searched for, and what is left is swapped as planner.h plans it.
//
// Each assignment of prices to segments (rerun_choice.h) is a plan: the values
// that it drops, the cycle with its re-runs (extended_cycle.h), swaps for that,
// and the time that the plan model says, re-runs included. AssignmentSearch
// says which is next; a plan that only swaps is always one of them. Each is
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

#include "memory/policy/plan/plan.h"
#include "memory/policy/recomputing/assignment_search.h"
#include "memory/policy/recomputing/extended_cycle.h"
#include "memory/policy/recomputing/rerun_choice.h"
#include "memory/policy/recomputing/rerun_graph.h"
#include "memory/policy/swapping/planner.h"

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
    search_.alsoTry(std::move(assignment));
  }
  // Tries one more assignment. False: there is none left, or no better plan.
  bool tryNext();
  // The best plan so far, in the program's positions; made anew, with the whole
  // portfolio, where the search went on since. Null: none yet.
  PlanPtr best();
  // What best() was made from; nothing: it only swaps.
  const Assignment& bestAssignment() const { return best_.assignment; }
  // Per value: best() drops it.
  const std::vector<std::uint8_t>& bestDropped() const { return best_.dropped; }
  // As a cycle of its own; for tests and figures.
  const ExtendedCycle* bestCycle() const {
    return best_.cycle ? &*best_.cycle : nullptr;
  }
  PlanPtr bestExtendedPlan() const { return best_.extended; }

  // Not even one price everywhere was tried for all prices.
  bool isEarly() const noexcept { return search_.isEarly(); }
  // What the search takes for the best, with few candidates and few steps.
  double searched_ns() const {
    return search_.hasBest() ? search_.best_ns() : 0;
  }
  double rerun_ns() const {
    return best_.plan == nullptr
               ? 0
               : best_.plan->modelled.compute_ns - compute_ns_;
  }
  // Assignments that were planned, and that were not worth it.
  std::uint32_t planned() const noexcept { return planned_; }
  std::uint32_t skipped() const noexcept { return skipped_; }

 private:
  struct Best {
    Assignment assignment;
    std::vector<std::uint8_t> dropped; // per value
    PlanPtr plan;
    PlanPtr extended; // of `cycle`
    std::optional<ExtendedCycle> cycle;
  };
  void tryOne(const Assignment& assignment);
  double model(const ExtendedCycle& extended);

  const profiler::Cycle& cycle_;
  const PlannerOptions options_;
  const RerunGraph graph_;
  const RerunChoices choices_;
  const double compute_ns_;

  AssignmentSearch search_;
  std::vector<PlanParameters> portfolio_;   // best for the best first
  std::unordered_set<std::uint64_t> tried_; // what was dropped, hashed
  std::uint32_t planned_ = 0;
  std::uint32_t skipped_ = 0;
  Best best_;
  bool is_stale_ = false; // search_ has a better one
};

} // namespace chameleon::memory
