#include "memory/policy/slack_trial.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

namespace chameleon::memory {

SlackTrial::Mean SlackTrial::Tried::mean() const {
  const std::span<const std::int64_t> measured(duration_ns.data(), steps);
  const auto longest =
      kSomethingElse * static_cast<double>(*std::ranges::min_element(measured));
  double sum = 0;
  double squares = 0;
  double counted = 0;
  for (const std::int64_t ns : measured) {
    const auto duration = static_cast<double>(ns);
    if (duration > longest) continue;
    sum += duration;
    squares += duration * duration;
    ++counted;
  }
  const double mean = sum / counted;
  const double variance = std::max(squares / counted - mean * mean, 0.0);
  return {mean, std::sqrt(variance / std::max(counted - 1, 1.0))};
}

bool SlackTrial::Tried::isKnown() const {
  if (steps < kLeastSteps) return false;
  if (steps == kMostSteps) return true;
  const Mean so_far = mean();
  return so_far.error_ns < kKnown * so_far.ns;
}

void SlackTrial::add(PathPlanPtr plan) {
  if (is_over_) {
    best_ = {};
    tried_.clear();
    any_drops_ = false;
    is_over_ = false;
  }
  in_a_row_ = 0;
  if (std::exchange(wanted_, std::nullopt) && plan->plan == nullptr) {
    is_over_ = true; // so much cannot be left, or swaps alone take far longer
    return;
  }
  now_ = {};
  now_.plan = std::move(plan);
}

bool SlackTrial::stepEnded(const Plan* plan, std::int64_t duration_ns) {
  if (is_over_ || wanted_ || plan == nullptr || plan != now_.plan->plan.get()) {
    in_a_row_ = 0;
    return false;
  }
  if (now_.plan->slack == kOnce) { // not any more
    is_over_ = plan->actions.empty();
    if (!is_over_) wanted_ = 0;
    return !is_over_;
  }
  if (++in_a_row_ <= kTakeOver) return false;
  now_.duration_ns[now_.steps++] = duration_ns;
  if (now_.isKnown()) judge();
  return wanted_.has_value();
}

// Follows the best so far, until the next one is there.
void SlackTrial::judge() {
  tried_.push_back(now_.plan->slack);
  any_drops_ |= !now_.plan->plan->recorded.empty();
  if (best_.plan == nullptr || now_.mean().ns < best_.mean().ns) {
    best_ = now_;
  }
  const bool good = best_.plan->plan->actions.empty() ||
                    best_.mean().ns < kGoodEnough * best_.plan->compute_ns;
  now_ = best_;
  in_a_row_ = 0;
  if (!good) wanted_ = untried();
  is_over_ = !wanted_;
}

std::optional<int> SlackTrial::untried() const {
  for (const int slack : kSlacks) {
    if (std::ranges::find(tried_, slack) == tried_.end()) return slack;
  }
  if (any_drops_ && tried_.back() != kSwapsOnly) return kSwapsOnly;
  return std::nullopt;
}

} // namespace chameleon::memory
