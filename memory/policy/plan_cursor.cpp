#include "memory/policy/plan_cursor.h"

#include <algorithm>
#include <span>
#include <utility>

namespace chameleon::memory {

using profiler::kNone;

void PlanCursor::follow(PathPlanPtr plan) noexcept {
  if (plan_ != plan) {
    base_bytes_ = kNotPacked;
    packing_is_due_ = false;
  }
  plan_ = std::move(plan);
  held_done_ = recorded_done_ = 0;
}

void PlanCursor::packed(std::uint64_t end_bytes) noexcept {
  const bool fits = plan_ != nullptr && plan_->placement &&
                    plan_->placement->fits(end_bytes, plan_->key.budget_bytes);
  base_bytes_ = fits ? end_bytes : kNotPacked;
}

std::span<const Placement::Place> PlanCursor::placesOf(
    std::uint32_t position) const noexcept {
  if (!isPlacing() || position >= plan_->placement->place_end.size()) return {};
  return plan_->placement->of(position);
}

bool PlanCursor::movesNothing() const noexcept {
  return plan_ != nullptr && plan_->plan->actions.empty() &&
         plan_->plan->recorded.empty();
}

bool PlanCursor::advance(std::uint32_t position,
                         std::vector<PlannedAction>& list) {
  if (plan_ == nullptr) return false;
  if (position >= done_) {
    const std::span<const Action> actions =
        plan_->plan->actionsBefore(done_, position);
    actions_.assign(actions.begin(), actions.end());
    if (plan_->placement) {
      const std::uint32_t packing = plan_->placement->packed_before;
      packing_is_due_ = done_ <= packing && packing <= position;
    }
    done_ = position + 1;
    resolve(list);
  }
  findHeld(position);
  const std::vector<std::uint32_t>& recorded = plan_->plan->recorded;
  while (recorded_done_ < recorded.size() &&
         recorded[recorded_done_] < position) {
    ++recorded_done_;
  }
  return recorded_done_ < recorded.size() &&
         recorded[recorded_done_] == position;
}

std::uint32_t PlanCursor::nextPosition() const noexcept {
  std::uint32_t position = kNone;
  if (plan_ == nullptr) return position;
  const std::vector<std::uint32_t>& end = plan_->plan->action_end;
  const std::uint32_t taken = done_ == 0 ? 0 : end[done_ - 1];
  const auto next = std::upper_bound(end.begin() + done_, end.end(), taken);
  if (next != end.end()) {
    position = static_cast<std::uint32_t>(next - end.begin());
  }
  const std::vector<std::uint32_t>& recorded = plan_->plan->recorded;
  const auto record = std::lower_bound(
      recorded.begin() + static_cast<std::ptrdiff_t>(recorded_done_),
      recorded.end(), done_);
  if (record != recorded.end()) position = std::min(position, *record);
  if (plan_->placement && plan_->placement->packed_before >= done_) {
    position = std::min(position, plan_->placement->packed_before);
  }
  if (held_done_ < plan_->held.size()) {
    position = std::min(position, plan_->held[held_done_].op);
  }
  return position;
}

// ---- values and their blocks -----------------------------------------------

void PlanCursor::add(ValueIndex value) {
  const PathPlan::Names& names = plan_->names[value];
  values_.push_back(names.first);
  values_.push_back(names.second);
}

void PlanCursor::lookUp() {
  bound_.resize(values_.size());
  forecast_.bound(plan_->key.path, values_, bound_);
  values_.clear();
}

const PlanCursor::Bound& PlanCursor::found(std::size_t i) const noexcept {
  return bound_[2 * i].identity != 0 ? bound_[2 * i] : bound_[2 * i + 1];
}

void PlanCursor::resolve(std::vector<PlannedAction>& list) {
  if (actions_.empty()) return;
  for (const Action action : actions_) add(action.value());
  lookUp();
  for (std::size_t i = 0; i < actions_.size(); ++i) {
    const Bound* bound = &found(i);
    if (bound->identity == 0) { // not born yet, or dead already; or held
      const auto held = held_.find(actions_[i].value());
      if (held == held_.end()) continue;
      bound = &held->second;
    }
    list.push_back({actions_[i].kind(), static_cast<Block*>(bound->owner),
                    bound->identity, actions_[i].joined()});
  }
}

// Notes the blocks that the plan moves after the program has let them go,
// while it still has them.
void PlanCursor::findHeld(std::uint32_t position) {
  const std::vector<PathPlan::Held>& held = plan_->held;
  const std::size_t first = held_done_;
  for (; held_done_ < held.size() && held[held_done_].op <= position;
       ++held_done_) {
    add(held[held_done_].value);
  }
  if (held_done_ == first) return;
  lookUp();
  for (std::size_t i = first; i < held_done_; ++i) {
    const Bound& bound = found(i - first);
    if (bound.identity != 0) held_[held[i].value] = bound;
  }
}

} // namespace chameleon::memory
