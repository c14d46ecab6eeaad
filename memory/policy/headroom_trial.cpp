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

bool HeadroomTrial::cannotWin(const Plan& plan) const {
  return best_.plan != nullptr && plan.modelled.duration_ns >= best_.mean_ns();
}

void HeadroomTrial::add(PathPlanPtr plan) {
  in_a_row_ = {};
  const bool was_wanted = std::exchange(wanted_, std::nullopt).has_value();
  if (was_wanted && (plan->plan == nullptr || cannotWin(*plan->plan))) {
    return end();
  }
  const bool same_level = plan->headroom_level == now_.plan->headroom_level;
  if (plan->is_settled || (is_over_ && same_level)) {
    *this = HeadroomTrial(std::move(plan));
  } else if (!is_over_) {
    now_ = {};
    now_.plan = std::move(plan);
  }
}

bool HeadroomTrial::stepEnded(const Plan* plan, std::int64_t duration_ns) {
  if (is_over_ || wanted_ || plan == nullptr || plan != now_.plan->plan.get()) {
    in_a_row_ = {};
    return false;
  }
  if (now_.plan->headroom_level == kOnce) { // not any more
    is_over_ = plan->actions.empty();
    if (!is_over_) wanted_ = kNoHeadroom;
    return !is_over_;
  }
  const bool is_slow =
      best_.plan != nullptr &&
      static_cast<double>(duration_ns) > kFarLonger * best_.mean_ns();
  in_a_row_.slow = is_slow ? in_a_row_.slow + 1 : 0;
  if (++in_a_row_.followed <= kTakeOver) return false;
  now_.duration_ns[now_.steps++] = duration_ns;
  if (now_.steps == kSteps || in_a_row_.slow == kFewSteps) judge();
  return wanted_.has_value();
}

// Follows the best so far, until the next one is there.
void HeadroomTrial::judge() {
  const int tried = now_.plan->headroom_level;
  if (best_.plan == nullptr || now_.mean_ns() < kClearly * best_.mean_ns()) {
    best_ = now_;
  }
  now_ = best_;
  in_a_row_ = {};
  if (isAsModelled() || tried == kMostHeadroom) return end();
  wanted_ = tried + 1;
}

// The best_ one moves nothing, or takes what its model says.
bool HeadroomTrial::isAsModelled() const {
  const Plan& plan = *best_.plan->plan;
  const bool leaves_nothing = best_.plan->headroom_level == kNoHeadroom;
  return (plan.actions.empty() && !leaves_nothing) ||
         best_.mean_ns() < kAsModelled * plan.modelled.duration_ns;
}

// now_ stays, and nothing else is kept.
void HeadroomTrial::end() {
  PathPlanPtr stays = std::move(now_.plan);
  *this = HeadroomTrial(std::move(stays));
  is_over_ = true;
}

} // namespace chameleon::memory
