#include "memory/policy/forecast_policy.h"

#include <algorithm>
#include <utility>

namespace chameleon::memory {

using profiler::kNone;
using profiler::SequenceMatcher;

ForecastPolicy::ForecastPolicy(const PolicyInputs& inputs)
    : forecast_(inputs.profiler),
      profiler_(inputs.profiler),
      next_actions_(inputs.next_actions),
      budget_bytes_(inputs.budget_bytes),
      cursor_(inputs.profiler),
      readahead_(inputs.profiler),
      victims_(inputs.profiler),
      planning_(
          inputs.profiler, inputs.durations, inputs.link,
          [this] { next_actions_.ask(); }, inputs.plan_at_once,
          inputs.recompute, inputs.saved) {}

void ForecastPolicy::budgetChanged(std::size_t budget_bytes) {
  budget_bytes_ = budget_bytes;
  next_actions_.ask();
}

PolicyCosts ForecastPolicy::costs() {
  const PathPlanPtr& plan = cursor_.plan();
  return {planning_.plansMade(), plan == nullptr ? 0 : plan->memoryBytes(),
          plan != nullptr && planning_.isTrying({path_.id, budget_bytes_})};
}

// ---- ahead of need ---------------------------------------------------------

bool ForecastPolicy::plannedActions(const profiler::OpTicket& ticket,
                                    std::vector<PlannedAction>& list) {
  if (next_actions_.takeAsk() || ticket.epoch != epoch_) findPlace(ticket);
  const bool recorded = cursor_.advance(ticket.position, list);
  readahead_.advance(path_, cursor_.plan().get(), ticket.position, list);
  setNextActions();
  return recorded;
}

PlannedPlaces ForecastPolicy::placesOf(const profiler::OpTicket& ticket) const {
  if (ticket.epoch != epoch_ || !ticket.is_on_path) return {};
  return {cursor_.baseBytes(), cursor_.placesOf(ticket.position)};
}

void ForecastPolicy::setNextActions() noexcept {
  const std::uint32_t position =
      std::min(cursor_.nextPosition(), readahead_.nextPosition(path_));
  next_actions_.askAt(
      epoch_, std::min(position, kNone - 1)); // no position reaches that
}

// Another sequence, another place in it, another round, or another plan. A few
// ops left out or put in do not matter; else what the plan had before this op
// is taken as done, and what it takes to be there must be looked at.
void ForecastPolicy::findPlace(const profiler::OpTicket& ticket) {
  const profiler::PathPosition at = forecast_.position();
  const FollowedPath from = std::exchange(path_, {});
  const bool same = from.ops != 0 && at.path == from.id;
  const PathPlanPtr before = cursor_.plan();
  const bool had_victims = std::exchange(had_victims_, false);
  epoch_ = ticket.epoch;
  if (at.path == 0 || at.next_op != ticket.position + 1) {
    cursor_.follow(nullptr);
    readahead_.lose();
    profiler_.trustOperands(false);
    return;
  }
  path_ = {at.path, at.ops, profiler_.opCount() - 1 - ticket.position};
  readahead_.enter(path_, ticket.position);
  const auto begins = [this](std::uint64_t op) { // more or less
    return path_.begin <= op + SequenceMatcher::kMostSkipped &&
           op <= path_.begin + SequenceMatcher::kMostSkipped;
  };
  const bool again = same && begins(from.begin + path_.ops);
  const bool goes_on =
      same && begins(from.begin) && cursor_.position() <= ticket.position;
  PathPlanPtr plan = planFor(at, before);
  if (goes_on && !again && before != nullptr && plan != nullptr &&
      before->key == plan->key &&
      ticket.position > SequenceMatcher::kMostSkipped) {
    plan = before; // a better one waits for the next round
  }
  const bool new_plan = plan != before;
  cursor_.follow(std::move(plan));
  // Operands need no look then: an op is spared 79 instructions.
  profiler_.trustOperands(!had_victims && cursor_.movesNothing());
  if (again) readahead_.knowAll(path_);
  if (same && !new_plan) {
    if (again) cursor_.moveTo(0);
    if (again || goes_on) return;
  }
  cursor_.moveTo(ticket.position);
  cursor_.forgetHeld();
  readahead_.restart(ticket.position, again || goes_on);
}

// The plan for where the run is; null: none. While the planning thread is at
// its plans, what is followed stays, and the next op asks again.
PathPlanPtr ForecastPolicy::planFor(const profiler::PathPosition& at,
                                    const PathPlanPtr& before) {
  const PlanKey key{at.path, budget_bytes_};
  PathPlanPtr plan;
  if (auto kept = planning_.plan(key)) {
    plan = *std::move(kept);
  } else {
    if (before != nullptr && before->key == key) plan = before;
    next_actions_.ask();
  }
  const bool fits =
      plan != nullptr && plan->plan != nullptr && plan->plan->ops() == at.ops;
  return fits ? plan : nullptr;
}

// ---- victims ---------------------------------------------------------------

const VictimOrder::Victim* ForecastPolicy::findVictim(Usable usable,
                                                      const Need& need) {
  return victims_.find(usable, need, PlanningThread::keptBytes(budget_bytes_),
                       cursor_.reruns());
}

Block* ForecastPolicy::nextVictim(Usable usable, const Need& need) {
  const VictimOrder::Victim* const found = findVictim(usable, need);
  return found == nullptr ? nullptr : found->block;
}

Block* ForecastPolicy::victim(Usable usable, const Need& need) {
  const VictimOrder::Victim* const found = findVictim(usable, need);
  if (found == nullptr) return nullptr;
  Block& block = victims_.take(*found);
  if (!std::exchange(had_victims_, true)) profiler_.trustOperands(false);
  if (path_.ops != 0 && readahead_.expect(block)) setNextActions();
  return &block;
}

} // namespace chameleon::memory
