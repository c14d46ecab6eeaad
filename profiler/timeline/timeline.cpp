#include "profiler/timeline/timeline.h"

#include <array>

namespace chameleon::profiler {

const char* lane_name(Lane lane) noexcept {
  constexpr std::array<const char*, kLanes> kNames = {
      "compute", "in", "out", "re-runs", "collectives", "stalls", "decisions"};
  return kNames[static_cast<std::size_t>(lane)];
}

void Timeline::start() {
  const std::lock_guard lock(mutex_);
  ring_.clear();
  ring_.reserve(capacity_);
  added_ = 0;
  recording_.store(true, std::memory_order_relaxed);
}

void Timeline::add(const Interval& interval) {
  if (!recording()) return;
  const std::lock_guard lock(mutex_);
  if (ring_.size() < capacity_) {
    ring_.push_back(interval);
  } else {
    ring_[added_ % capacity_] = interval;
  }
  ++added_;
}

std::vector<Interval> Timeline::intervals() const {
  const std::lock_guard lock(mutex_);
  std::vector<Interval> list;
  list.reserve(ring_.size());
  const std::size_t oldest = added_ > ring_.size() ? added_ % capacity_ : 0;
  for (std::size_t i = 0; i < ring_.size(); ++i) {
    list.push_back(ring_[(oldest + i) % ring_.size()]);
  }
  return list;
}

std::uint64_t Timeline::dropped() const {
  const std::lock_guard lock(mutex_);
  return added_ - ring_.size();
}

} // namespace chameleon::profiler
