// The plans that are made for one path under one budget, one after the other:
// first one that only swaps, then, where ops may be run again, better and
// better ones of the joint planner. How much of the budget a plan leaves is
// decided here: the pager needs room for what the model does not see, holes
// between blocks and what is resident without being part of the cycle, and
// makes it by moves that take compute time.
//
// Thread safety: none; one thread at a time uses a search.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "memory/policy/path_plan.h"
#include "memory/policy/recomputing/joint_planner.h"
#include "memory/policy/retained_bytes.h"
#include "memory/policy/saved_plans.h"
#include "memory/policy/swapping/planner.h"
#include "profiler/cycle_builder.h"

namespace chameleon::memory {

class PlanSearch {
 public:
  // How many plans a search tries. Plans of long cycles take longer, so they
  // are as many as have kMostOps ops together; but never more than kMostTries
  // or fewer than kLeastTries. All that come later gain 0.5 %.
  static constexpr std::size_t kMostTries = 600;
  static constexpr std::size_t kLeastTries = 100;
  static constexpr std::size_t kMostOps = 1'000'000;

  struct Request {
    PlanKey key;
    LinkModel link;
    std::uint64_t keep_bytes; // values of at most so many never move
    bool recompute;
    // More is left than usual (headroom_trial.h).
    int headroom_level = 0;
    // The most plans that it tries, for whoever waits for them.
    std::size_t most_tries = kMostTries;
    std::uint64_t signature = 0; // of the cycle
  };
  // The first plan is made. `hints`: what was best for the path under other
  // budgets or links; these are tried now, too.
  PlanSearch(const Request& request, profiler::CycleMap map,
             const std::vector<Assignment>& hints = {});
  // There is a plan, of that level, and nothing to try.
  PlanSearch(const Request& request, profiler::CycleMap map, SavedPlan saved);
  PlanSearch(const PlanSearch&) = delete; // the planner refers to the cycle
  PlanSearch& operator=(const PlanSearch&) = delete;

  const PlanKey& key() const noexcept { return request_.key; }
  const profiler::CycleMap& map() const noexcept { return map_; }

  // There is something to try.
  bool goesOn() const noexcept { return planner_.has_value(); }
  // Tries one more. False: there is nothing more to try.
  bool tryNext();
  // True: the search found something so much shorter that a new plan is worth
  // making. While there is `more` to try, that is 1 %, and false until every
  // price was tried once; at the end it is anything shorter.
  bool isWorthIt(bool more) const;
  // The best so far.
  PathPlanPtr plan();
  // The same, if it is better than what was made last; else null.
  PathPlanPtr better();

 private:
  // What plans leave of the budget from now on, at this headroom level.
  void leaveHeadroom(std::uint64_t share);
  bool fitsWhole();
  bool isTight() const;
  bool choose();
  PathPlanPtr chosen() const; // on its path

  const Request request_;
  const profiler::CycleMap map_;
  PlannerOptions options_;
  int headroom_level_; // of the next plan
  int chosen_level_;   // what it is called
  std::size_t most_tries_ = 0;
  std::optional<JointPlanner> planner_;

  PlanPtr chosen_; // null: the path cannot be planned
  Assignment assignment_;
  // A plan that takes less is better, by the model and as the search sees it.
  double limit_ns_ = 0;
  double searched_limit_ns_ = 0;
  std::optional<RetainedBytes> retained_;
  bool is_settled_ = false; // an earlier run compared the plan with others
};

} // namespace chameleon::memory
