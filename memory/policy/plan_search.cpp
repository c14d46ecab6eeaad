#include "memory/policy/plan_search.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "memory/policy/headroom_trial.h"
#include "memory/policy/plan/use_table.h"

namespace chameleon::memory {

namespace {

// What every plan leaves of the budget.
constexpr std::uint64_t kHeadroomShare = 200;
// Where ops may be run again bytes cost little, and moves for fragments' sake
// cost more.
constexpr std::uint64_t kRerunHeadroomShare = 40;
// Where more than this share of the budget is free at all times, holes are
// found without planning them.
constexpr std::uint64_t kTightShare = 16;

} // namespace

PlanSearch::PlanSearch(const Request& request, profiler::CycleMap map,
                       const std::vector<Assignment>& hints)
    : request_(request),
      map_(std::move(map)),
      headroom_level_(std::max(request.headroom_level, 0)),
      chosen_level_(headroom_level_) {
  options_.link = request.link;
  options_.keep_bytes = request.keep_bytes;
  const bool once = request.headroom_level == HeadroomTrial::kOnce;
  if (once) {
    headroom_level_ = HeadroomTrial::kOnceHeadroom;
    // Such victims are neither those of a path that is nearly the same, nor
    // those that are taken where no plan chose.
    std::erase_if(options_.portfolio, [](const PlanParameters& parameters) {
      return parameters.gaps.spread;
    });
  }
  leaveHeadroom(kHeadroomShare);
  runtime::Result<PlanPtr> swapping = plan_cycle(map_.cycle, options_);
  if (!swapping.ok() && once) {
    headroom_level_ = 0;
    leaveHeadroom(kHeadroomShare);
    swapping = plan_cycle(map_.cycle, options_);
  }
  if (!swapping.ok()) return;
  chosen_ = std::move(*swapping);
  const bool may_leave_nothing =
      once || request.headroom_level == HeadroomTrial::kNoHeadroom;
  if (may_leave_nothing && !chosen_->actions.empty() && fitsWhole()) {
    chosen_level_ = HeadroomTrial::kNoHeadroom;
  }
  retained_.emplace(map_.cycle);
  const std::size_t ops = std::max<std::size_t>(map_.cycle.ops(), 1);
  most_tries_ = std::min(std::clamp(kMostOps / ops, kLeastTries, kMostTries),
                         request.most_tries);
  if (chosen_->actions.empty()) return;
  limit_ns_ = chosen_->modelled.duration_ns;
  searched_limit_ns_ = limit_ns_;
  if (!request.recompute || !chosen_->modelled.waits()) return;
  leaveHeadroom(kRerunHeadroomShare);
  swapping = plan_cycle(map_.cycle, options_);
  if (!swapping.ok()) return;
  planner_.emplace(map_.cycle, options_, std::move(*swapping));
  for (const Assignment& hint : hints) planner_->alsoTry(hint);
  for (std::size_t i = 0; i < hints.size(); ++i) (void)planner_->tryNext();
}

PlanSearch::PlanSearch(const Request& request, profiler::CycleMap map,
                       SavedPlan saved)
    : request_(request),
      map_(std::move(map)),
      headroom_level_(request.headroom_level),
      chosen_level_(request.headroom_level),
      chosen_(std::make_shared<Plan>(std::move(saved.plan))),
      assignment_(std::move(saved.assignment)),
      is_settled_(saved.is_settled) {
  retained_.emplace(map_.cycle);
}

void PlanSearch::leaveHeadroom(std::uint64_t share) {
  const double factor = std::pow(HeadroomTrial::kFactor, headroom_level_);
  const std::uint64_t usual = request_.key.budget_bytes / share;
  const auto left = factor * static_cast<double>(usual);
  options_.budget_bytes =
      request_.key.budget_bytes - static_cast<std::uint64_t>(left);
}

// Where all fits nothing has to be left: what lies in the way of an op is moved
// inside HBM, which takes a fraction of what the link does. True: it does, and
// that is the plan.
bool PlanSearch::fitsWhole() {
  PlannerOptions whole = options_;
  whole.budget_bytes = request_.key.budget_bytes;
  whole.portfolio.resize(1);
  runtime::Result<PlanPtr> plan = plan_cycle(map_.cycle, whole);
  if (!plan.ok() || !(*plan)->actions.empty()) return false;
  chosen_ = std::move(*plan);
  return true;
}

// Nothing moves, and there is not much room beside what is live.
bool PlanSearch::isTight() const {
  if (!chosen_->actions.empty() || !chosen_->recorded.empty()) return false;
  const UseTable table(map_.cycle, 0);
  const std::uint64_t budget_bytes = request_.key.budget_bytes;
  return static_cast<std::uint64_t>(table.peakBytes()) >
         budget_bytes - budget_bytes / kTightShare;
}

bool PlanSearch::tryNext() {
  return planner_ && planner_->planned() < most_tries_ && planner_->tryNext();
}

bool PlanSearch::isWorthIt(bool more) const {
  if (more && planner_->isEarly()) return false;
  return planner_->searched_ns() < (more ? 0.99 : 1) * searched_limit_ns_;
}

// False: the last one is still the best.
bool PlanSearch::choose() {
  if (!planner_) return false;
  const PlanPtr best = planner_->best();
  // Better or not: what the search took for the best was made.
  if (const double searched_ns = planner_->searched_ns(); searched_ns > 0) {
    searched_limit_ns_ = std::min(searched_limit_ns_, searched_ns);
  }
  // Where nothing is dropped the plan is the one that only swaps.
  if (best->recorded.empty() || best->modelled.duration_ns >= limit_ns_) {
    return false;
  }
  chosen_ = best;
  assignment_ = planner_->bestAssignment();
  limit_ns_ = best->modelled.duration_ns;
  searched_limit_ns_ = planner_->searched_ns();
  return true;
}

PathPlanPtr PlanSearch::plan() {
  choose();
  return chosen();
}

PathPlanPtr PlanSearch::better() { return choose() ? chosen() : nullptr; }

PathPlanPtr PlanSearch::chosen() const {
  auto made = std::make_shared<PathPlan>();
  made->key = request_.key;
  made->link = request_.link;
  made->headroom_level = chosen_level_;
  made->signature = request_.signature;
  made->is_settled = is_settled_;
  if (chosen_ == nullptr) return made;
  made->assignment = assignment_;
  auto plan = std::make_shared<Plan>(*chosen_);
  plan->shares = retained_->under(*plan);
  made->setPlan(std::move(plan), map_);
  if (isTight()) {
    made->placement = place_values(map_.cycle, request_.key.budget_bytes);
  }
  return made;
}

} // namespace chameleon::memory
