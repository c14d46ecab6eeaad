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

bool SlackTrial::isHopeless() const {
  if (best_.plan == nullptr || now_.steps != kFewSteps) return false;
  const double longest = kFarLonger * best_.mean().ns;
  return std::all_of(
      now_.duration_ns.begin(), now_.duration_ns.begin() + kFewSteps,
      [&](std::int64_t ns) { return static_cast<double>(ns) > longest; });
}

bool SlackTrial::Tried::isShorter(const Tried& other) const {
  return other.plan == nullptr || mean().ns < other.mean().ns;
}

bool SlackTrial::Tried::isAlike(const Tried& other) const {
  const Mean a = mean();
  const Mean b = other.mean();
  return std::abs(a.ns - b.ns) < kAlike * std::hypot(a.error_ns, b.error_ns);
}

void SlackTrial::add(PathPlanPtr plan) {
  in_a_row_ = 0;
  if (std::exchange(wanted_, std::nullopt) && plan->plan == nullptr) {
    endOrRunOff(); // so much cannot be left, or swaps alone take far longer
  } else if (is_over_ || is_run_off_) {
    *this = SlackTrial(std::move(plan));
  } else {
    now_ = {};
    now_.plan = std::move(plan);
  }
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
  if (is_run_off_) {
    if (now_.steps == kRunOffSteps) judgeRunOff();
  } else if (now_.isKnown() || isHopeless()) {
    judge();
  }
  return wanted_.has_value();
}

// Follows the best so far, until the next one is there.
void SlackTrial::judge() {
  tried_.push_back(now_.plan->slack);
  any_drops_ |= !now_.plan->plan->recorded.empty();
  if (now_.isShorter(best_)) {
    second_ = std::exchange(best_, now_);
  } else if (now_.isShorter(second_)) {
    second_ = now_;
  }
  const bool good = best_.plan->plan->actions.empty() ||
                    best_.mean().ns < kGoodEnough * best_.plan->compute_ns;
  now_ = best_;
  in_a_row_ = 0;
  if (good) return end();
  wanted_ = untried();
  if (!wanted_) endOrRunOff();
}

// All were tried, and now_ is the best.
void SlackTrial::endOrRunOff() {
  is_run_off_ = second_.plan != nullptr && best_.isAlike(second_);
  if (!is_run_off_) return end();
  now_ = second_;
}

// now_ has all its steps; first the second has them, then the best.
void SlackTrial::judgeRunOff() {
  in_a_row_ = 0;
  if (best_.steps < kRunOffSteps) return std::swap(now_, best_);
  if (best_.isShorter(now_)) now_ = best_;
  end();
}

// now_ stays, and nothing else is kept.
void SlackTrial::end() {
  PathPlanPtr stays = std::move(now_.plan);
  *this = SlackTrial(std::move(stays));
  is_over_ = true;
}

std::optional<int> SlackTrial::untried() const {
  for (const int slack : kSlacks) {
    if (std::ranges::find(tried_, slack) == tried_.end()) return slack;
  }
  if (any_drops_ && tried_.back() != kSwapsOnly) return kSwapsOnly;
  return std::nullopt;
}

} // namespace chameleon::memory
