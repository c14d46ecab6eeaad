#include "profiler/memory_history.h"

namespace chameleon::profiler {

void MemoryHistory::start() {
  const std::lock_guard lock(mutex_);
  samples_.clear();
  samples_.reserve(kCapacity);
  stride_ = 1;
  skipped_ = 0;
  recording_.store(true, std::memory_order_relaxed);
}

void MemoryHistory::add(const Sample& sample) {
  const std::lock_guard lock(mutex_);
  if (++skipped_ < stride_) return;
  skipped_ = 0;
  if (samples_.size() == kCapacity) {
    for (std::size_t i = 0; 2 * i < kCapacity; ++i) {
      samples_[i] = samples_[2 * i];
    }
    samples_.resize(kCapacity / 2);
    stride_ *= 2;
  }
  samples_.push_back(sample);
}

std::vector<MemoryHistory::Sample> MemoryHistory::samples() const {
  const std::lock_guard lock(mutex_);
  return samples_;
}

} // namespace chameleon::profiler
