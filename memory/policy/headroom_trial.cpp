#include "memory/policy/headroom_trial.h"

#include <algorithm>
#include <utility>

namespace chameleon::memory {

double HeadroomTrial::Tried::mean_ns() const {
  const auto end = duration_ns.begin() + static_cast<std::ptrdiff_t>(steps);
  const auto shortest = std::min_element(duration_ns.begin(), end);
  const double longest = kSomethingElse * static_cast<double>(*shortest);
  double sum = 0;
  double counted = 0;
  for (auto ns = duration_ns.begin(); ns != end; ++ns) {
    if (static_cast<double>(*ns) > longest) continue;
    sum += static_cast<double>(*ns);
    ++counted;
  }
  return sum / counted;
}

bool HeadroomTrial::isHopeless() const {
  if (best_.plan == nullptr || now_.steps != kFewSteps) return false;
  const double longest = kFarLonger * best_.mean_ns();
  return std::all_of(
      now_.duration_ns.begin(), now_.duration_ns.begin() + kFewSteps,
      [&](std::int64_t ns) { return static_cast<double>(ns) > longest; });
}

void HeadroomTrial::add(PathPlanPtr plan) {
  in_a_row_ = 0;
  if (std::exchange(wanted_, std::nullopt) && plan->plan == nullptr) {
    end();
  } else if (is_over_ || plan->is_settled) {
    *this = HeadroomTrial(std::move(plan));
  } else {
    now_ = {};
    now_.plan = std::move(plan);
  }
}

bool HeadroomTrial::stepEnded(const Plan* plan, std::int64_t duration_ns) {
  if (is_over_ || wanted_ || plan == nullptr || plan != now_.plan->plan.get()) {
    in_a_row_ = 0;
    return false;
  }
  if (now_.plan->headroom_level == kOnce) { // not any more
    is_over_ = plan->actions.empty();
    if (!is_over_) wanted_ = 0;
    return !is_over_;
  }
  if (++in_a_row_ <= kTakeOver) return false;
  now_.duration_ns[now_.steps++] = duration_ns;
  if (now_.steps == kSteps || isHopeless()) judge();
  return wanted_.has_value();
}

// Follows the best so far, until the next one is there.
void HeadroomTrial::judge() {
  const int tried = now_.plan->headroom_level;
  if (best_.plan == nullptr || now_.mean_ns() < kClearly * best_.mean_ns()) {
    best_ = now_;
  }
  now_ = best_;
  in_a_row_ = 0;
  if (isAsModelled() || tried == kMostHeadroom) return end();
  wanted_ = tried + 1;
}

// The best_ one moves nothing, or takes what its model says.
bool HeadroomTrial::isAsModelled() const {
  const Plan& plan = *best_.plan->plan;
  return plan.actions.empty() ||
         best_.mean_ns() < kAsModelled * plan.modelled.duration_ns;
}

// now_ stays, and nothing else is kept.
void HeadroomTrial::end() {
  PathPlanPtr stays = std::move(now_.plan);
  *this = HeadroomTrial(std::move(stays));
  is_over_ = true;
}

} // namespace chameleon::memory
