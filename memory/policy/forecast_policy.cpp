#include "memory/policy/forecast_policy.h"

#include <algorithm>
#include <utility>

#include "backend/runtime/check.h"

namespace chameleon::memory {

using profiler::kNone;
using profiler::NextUse;
using profiler::NextUseKind;

ForecastPolicy::ForecastPolicy(const PolicyInputs& inputs)
    : forecast_(inputs.profiler),
      profiler_(inputs.profiler),
      gate_(inputs.gate),
      budget_bytes_(inputs.budget_bytes),
      planning_(
          inputs.profiler, inputs.durations, inputs.link,
          [this] { gate_.ask(); }, inputs.plan_at_once, inputs.recompute,
          inputs.saved) {}

void ForecastPolicy::entered(Block& block) {
  CHAMELEON_CHECK(block.policy_slot == kNotIn, "a block entered twice");
  block.policy_slot = static_cast<std::uint32_t>(blocks_.size());
  blocks_.push_back(&block);
}

void ForecastPolicy::left(Block& block) noexcept {
  if (block.policy_slot == kNotIn) return;
  Block* const last = blocks_.back();
  blocks_[block.policy_slot] = last;
  last->policy_slot = block.policy_slot;
  blocks_.pop_back();
  block.policy_slot = kNotIn;
}

void ForecastPolicy::budgetChanged(std::size_t budget_bytes) {
  budget_bytes_ = budget_bytes;
  gate_.ask();
}

PolicyCosts ForecastPolicy::costs() {
  return {planning_.plansMade(), plan_ == nullptr ? 0 : plan_->memoryBytes(),
          plan_ != nullptr && planning_.isTrying({path_, budget_bytes_})};
}

// ---- the plan --------------------------------------------------------------

bool ForecastPolicy::plannedActions(const profiler::OpTicket& ticket,
                                    std::vector<PlannedAction>& list) {
  if (gate_.takeAsk() || ticket.epoch != epoch_) arrive(ticket);
  actions_.clear();
  if (plan_ != nullptr && ticket.position >= done_) {
    const std::span<const Action> actions =
        plan_->plan->actionsBefore(done_, ticket.position);
    actions_.assign(actions.begin(), actions.end());
    done_ = ticket.position + 1;
  }
  resolve(list);
  const bool recorded = plan_ != nullptr && findHeld(ticket.position);
  if (ticket.position >= tail_) {
    tail_ = kNone;
    const profiler::PathId next = forecast_.following();
    if (next != path_) takeUp(next, 0, lookAhead(), begin_ + path_ops_);
  }
  lookAlong(ticket.position);
  bringBack(list);
  setGate();
  return recorded;
}

bool ForecastPolicy::nothingMoves() const noexcept {
  return plan_ != nullptr && plan_->plan->actions.empty() &&
         plan_->plan->recorded.empty();
}

// Notes the blocks that the plan moves after the program has let them go,
// while it still has them. True: the op is to be recorded.
bool ForecastPolicy::findHeld(std::uint32_t position) {
  const std::vector<PathPlan::Held>& held = plan_->held;
  values_.clear();
  const std::size_t first = held_done_;
  for (; held_done_ < held.size() && held[held_done_].op <= position;
       ++held_done_) {
    const PathPlan::Names& names = plan_->names[held[held_done_].value];
    values_.push_back(names.first);
    values_.push_back(names.second);
  }
  if (!values_.empty()) {
    bound_.resize(values_.size());
    forecast_.bound(plan_->key.path, values_, bound_);
    for (std::size_t i = 0; 2 * i < values_.size(); ++i) {
      const Bound& bound = either(i);
      if (bound.identity != 0) held_[held[first + i].value] = bound;
    }
  }
  const std::vector<std::uint32_t>& recorded = plan_->plan->recorded;
  while (recorded_done_ < recorded.size() &&
         recorded[recorded_done_] < position) {
    ++recorded_done_;
  }
  return recorded_done_ < recorded.size() &&
         recorded[recorded_done_] == position;
}

// Another sequence, another place in it, another round, or another plan. A few
// ops left out or put in do not matter; else what the plan had before this op
// is taken as done, and what it takes to be there must be looked at.
void ForecastPolicy::arrive(const profiler::OpTicket& ticket) {
  const profiler::Position place = forecast_.position();
  const bool same = path_ops_ != 0 && place.path == path_;
  const PathPlanPtr before = std::move(plan_);
  const bool had_victims = std::exchange(had_victims_, false);
  epoch_ = ticket.epoch;
  path_ops_ = 0;
  tail_ = kNone;
  if (place.path == 0 || place.next_op != ticket.position + 1) {
    profiler_.trustOperands(false);
    return;
  }
  path_ = place.path;
  path_ops_ = place.ops;
  const PlanKey key{place.path, budget_bytes_};
  if (const auto plan = planning_.plan(key)) {
    plan_ = *plan;
  } else { // what is followed stays, and the next op asks again
    plan_ = before != nullptr && before->key == key ? before : nullptr;
    gate_.ask();
  }
  held_done_ = recorded_done_ = 0;
  if (plan_ != nullptr &&
      (plan_->plan == nullptr || plan_->plan->ops() != place.ops)) {
    plan_ = nullptr;
  }
  if (ticket.position < path_ops_ - std::min(path_ops_, lookAhead())) {
    tail_ = path_ops_ - lookAhead();
  }
  const std::uint64_t now = profiler_.opCount() - 1;
  const std::uint64_t begin = std::exchange(begin_, now - ticket.position);
  const auto begins = [this](std::uint64_t op) { // more or less
    return begin_ <= op + kCatchUp && op <= begin_ + kCatchUp;
  };
  const bool again = same && begins(begin + path_ops_);
  const bool goes_on = same && begins(begin) && done_ <= ticket.position;
  if (goes_on && !again && before != nullptr && plan_ != nullptr &&
      before->key == plan_->key && ticket.position > kCatchUp) {
    plan_ = before; // a better one waits for the next round
  }
  // Operands need no look then: an op is spared 79 instructions.
  profiler_.trustOperands(!had_victims && nothingMoves());
  if (again) looked_to_ = path_ops_;
  if (same && plan_ == before) {
    if (again) done_ = 0;
    if (again || goes_on) return;
  }
  done_ = looked_to_ = ticket.position;
  if (!again && !goes_on) arrived_at_ = profiler_.opCount();
  returns_.clear();
  held_.clear();
}

// At a new place, what its path needs is looked up piece by piece: a run that
// finds a new place at every op shall not pay for the whole path each time.
void ForecastPolicy::lookAlong(std::uint32_t position) {
  if (looked_to_ >= path_ops_ || position + lookAhead() < looked_to_) return;
  const std::uint32_t end =
      std::min(path_ops_, looked_to_ + kLookedAhead * lookAhead());
  takeUp(path_, looked_to_, end, begin_ + looked_to_);
  looked_to_ = end;
}

// What a path needs between `begin` and `end`, is not there and is not fetched
// by the plan comes back ahead of its use. The op at `begin` has the number
// `at_begin`.
void ForecastPolicy::takeUp(profiler::PathId path, std::uint32_t begin,
                            std::uint32_t end, std::uint64_t at_begin) {
  forecast_.needs(path, begin, end, needs_);
  fetches_.clear();
  if (path == path_ && plan_ != nullptr) plannedFetches(begin, end);
  for (const profiler::Forecast::Need& need : needs_) {
    Block* const block = static_cast<Block*>(need.owner);
    const BlockState state = block->state();
    if (state != BlockState::kHost && state != BlockState::kEvicting) continue;
    const auto planned = std::lower_bound(fetches_.begin(), fetches_.end(),
                                          std::pair(need.value, begin));
    if (planned != fetches_.end() && planned->first == need.value &&
        planned->second <= need.op) {
      continue;
    }
    returns_.push_back({at_begin + (need.op - begin), block, need.identity});
    std::push_heap(returns_.begin(), returns_.end());
  }
}

// The path's values that the plan fetches before ops [begin, end).
void ForecastPolicy::plannedFetches(std::uint32_t begin, std::uint32_t end) {
  const Plan& plan = *plan_->plan;
  for (std::uint32_t op = begin; op < end; ++op) {
    for (const Action action : plan.actionsBefore(op)) {
      if (action.kind() != Action::Kind::kFetch) continue;
      const PathPlan::Names& names = plan_->names[action.value()];
      for (const std::uint32_t value : {names.first, names.second}) {
        if (value != kNone) fetches_.emplace_back(value, op);
      }
    }
  }
  std::sort(fetches_.begin(), fetches_.end());
}

void ForecastPolicy::setGate() noexcept {
  std::uint32_t position = kNone - 1; // what no position reaches
  if (tail_ != kNone) position = tail_;
  if (looked_to_ < path_ops_) {
    position =
        std::min(position, looked_to_ - std::min(looked_to_, lookAhead()));
  }
  if (plan_ != nullptr) {
    const std::vector<std::uint32_t>& end = plan_->plan->action_end;
    const std::uint32_t taken = done_ == 0 ? 0 : end[done_ - 1];
    const auto next = std::upper_bound(end.begin() + done_, end.end(), taken);
    if (next != end.end()) {
      position =
          std::min(position, static_cast<std::uint32_t>(next - end.begin()));
    }
    const std::vector<std::uint32_t>& recorded = plan_->plan->recorded;
    const auto record = std::lower_bound(
        recorded.begin() + static_cast<std::ptrdiff_t>(recorded_done_),
        recorded.end(), done_);
    if (record != recorded.end()) position = std::min(position, *record);
    if (held_done_ < plan_->held.size()) {
      position = std::min(position, plan_->held[held_done_].op);
    }
  }
  if (path_ops_ != 0 && !returns_.empty()) {
    const std::uint64_t now = begin_ + lookAhead(); // at position 0
    const std::uint64_t next_use = returns_.front().next_use;
    position = static_cast<std::uint32_t>(
        std::min<std::uint64_t>(position, next_use > now ? next_use - now : 0));
  }
  gate_.askAt(epoch_, position);
}

// As often as victims are put in order, so that one of them does not come back
// at once. Like a file's readahead it opens as the path goes on as foreseen: a
// run that finds a new place at every op does not fetch for all of them.
std::uint32_t ForecastPolicy::lookAhead() const noexcept {
  const std::uint32_t most = std::max(path_ops_ / kRanksPerCycle, kLeastAhead);
  const std::uint64_t followed = profiler_.opCount() - arrived_at_;
  return static_cast<std::uint32_t>(
      std::min<std::uint64_t>(most, kLeastAhead + kOpening * followed));
}

// A victim that no plan chose.
void ForecastPolicy::expectBack(Block& block) {
  const NextUse use =
      forecast_.nextUse(block.profiler_slot.load(std::memory_order_relaxed));
  if (use.kind != NextUseKind::kKnown || use.overwritten_first) return;
  returns_.push_back(
      {profiler_.opCount() + use.distance_ops, &block, block.identity});
  std::push_heap(returns_.begin(), returns_.end());
  setGate();
}

void ForecastPolicy::bringBack(std::vector<PlannedAction>& list) {
  if (path_ops_ == 0) return;
  const std::uint64_t now = profiler_.opCount() - 1;
  bool joined = false; // they are one batch
  while (!returns_.empty() && returns_.front().next_use <= now + lookAhead()) {
    const Return due = returns_.front();
    std::pop_heap(returns_.begin(), returns_.end());
    returns_.pop_back();
    if (due.next_use <= now) continue; // that is no longer ahead
    list.push_back(
        {Action::Kind::kFetch, due.block, due.identity, joined, due.next_use});
    joined = true;
  }
}

// Of the i-th pair of names.
const ForecastPolicy::Bound& ForecastPolicy::either(std::size_t i) const {
  return bound_[2 * i].identity != 0 ? bound_[2 * i] : bound_[2 * i + 1];
}

// Actions speak of values; these are the blocks.
void ForecastPolicy::resolve(std::vector<PlannedAction>& list) {
  if (actions_.empty()) return;
  values_.clear();
  for (const Action action : actions_) {
    const PathPlan::Names& names = plan_->names[action.value()];
    values_.push_back(names.first);
    values_.push_back(names.second);
  }
  bound_.resize(values_.size());
  forecast_.bound(plan_->key.path, values_, bound_);
  for (std::size_t i = 0; i < actions_.size(); ++i) {
    const Bound* bound = &either(i);
    if (bound->identity == 0) { // not born yet, or dead already; or held
      const auto held = held_.find(actions_[i].value());
      if (held == held_.end()) continue;
      bound = &held->second;
    }
    list.push_back({actions_[i].kind(), static_cast<Block*>(bound->owner),
                    bound->identity, actions_[i].joined()});
  }
}

// ---- victims ---------------------------------------------------------------

bool ForecastPolicy::better(const Victim& a, const Victim& b) noexcept {
  if (a.small != b.small) return b.small;
  if (a.far != b.far) return a.far;
  if (!a.far && a.distance_ops != b.distance_ops) {
    return a.distance_ops > b.distance_ops;
  }
  if (a.tick != b.tick) return a.tick < b.tick;
  return a.identity < b.identity;
}

void ForecastPolicy::rank() {
  const profiler::Position place = forecast_.position();
  ranked_at_ = profiler_.opCount();
  ranked_.clear();
  slots_.clear();
  for (const Block* block : blocks_) {
    slots_.push_back(block->profiler_slot.load(std::memory_order_relaxed));
  }
  uses_.resize(slots_.size());
  forecast_.nextUses(slots_, uses_);
  const std::uint64_t small_bytes = PlanningThread::keptBytes(budget_bytes_);
  const bool reruns = plan_ != nullptr && !plan_->plan->recorded.empty();
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    const Block& block = *blocks_[i];
    NextUse& use = uses_[i];
    if (reruns && slots_[i] == profiler::kNoSlot) {
      // The program has let it go; ops that run again will read it.
      use.kind = NextUseKind::kKnown;
      use.distance_ops = (place.ops - place.next_op) / 2;
    }
    const bool far =
        use.kind != NextUseKind::kKnown || 2 * use.distance_ops > place.ops;
    ranked_.push_back(
        {blocks_[i], block.identity, block.rounded_bytes <= small_bytes, far,
         block.last_use_tick.load(std::memory_order_relaxed),
         ranked_at_ + use.distance_ops,
         use.distance_ops * (block.hasHostCopy() ? kCleanFactor : 1)});
  }
  std::sort(ranked_.begin(), ranked_.end(),
            [](const Victim& a, const Victim& b) { return better(b, a); });
}

// It is what it was when victims were put in order.
bool ForecastPolicy::isVictim(const Victim& victim,
                              Usable usable) const noexcept {
  const Block& block = *victim.block;
  return block.identity == victim.identity && block.policy_slot != kNotIn &&
         block.last_use_tick.load(std::memory_order_relaxed) == victim.tick &&
         usable(block);
}

const ForecastPolicy::Victim* ForecastPolicy::findVictim(Usable usable,
                                                         const Need& need) {
  const std::uint64_t ops = profiler_.opCount();
  const std::uint32_t cycle = forecast_.position().ops;
  bool fresh = false;
  const std::uint64_t in_order_for = cycle != 0 ? cycle : blocks_.size();
  if (ops - ranked_at_ > in_order_for / kRanksPerCycle) ranked_.clear();
  for (;;) {
    while (!ranked_.empty() && !isVictim(ranked_.back(), usable)) {
      ranked_.pop_back();
    }
    if (!ranked_.empty()) break;
    if (fresh) return nullptr;
    rank();
    fresh = true;
  }
  const Victim& found = need.piece_bytes == 0
                            ? ranked_.back()
                            : fitting(usable, need.piece_bytes);
  const bool sooner =
      need.needed_at != 0 && !found.far && found.next_use <= need.needed_at;
  return sooner ? nullptr : &found;
}

// The last one is the best, if it were not for its size.
const ForecastPolicy::Victim& ForecastPolicy::fitting(
    Usable usable, std::size_t piece_bytes) const noexcept {
  const Victim& best = ranked_.back();
  const Victim* found = &best;
  for (std::size_t i = ranked_.size() - 1; i-- > 0;) {
    const Victim& victim = ranked_[i];
    if (found->block->rounded_bytes <= piece_bytes ||
        victim.small != best.small || victim.far != best.far ||
        (!best.far && victim.distance_ops < kAsFar * best.distance_ops)) {
      break; // those behind it are no better
    }
    const std::size_t bytes = victim.block->rounded_bytes;
    if (piece_bytes <= bytes && bytes < found->block->rounded_bytes &&
        isVictim(victim, usable)) {
      found = &victim;
    }
  }
  return *found;
}

Block* ForecastPolicy::nextVictim(Usable usable, const Need& need) {
  const Victim* const found = findVictim(usable, need);
  return found == nullptr ? nullptr : found->block;
}

Block* ForecastPolicy::victim(Usable usable, const Need& need) {
  const Victim* const found = findVictim(usable, need);
  if (found == nullptr) return nullptr;
  Block* const block = found->block;
  ranked_.erase(ranked_.begin() + (found - ranked_.data()));
  left(*block);
  if (!std::exchange(had_victims_, true)) profiler_.trustOperands(false);
  if (path_ops_ != 0) expectBack(*block);
  return block;
}

} // namespace chameleon::memory
