// Memory over time, for pictures: logical, resident and host bytes after each
// op. Bounded: when the buffer is full every second sample is dropped and from
// then on only every second op is kept, so a run of any length fits.
//
// Off until start(). Thread safety: all functions, any thread; sampling takes
// one short lock.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "backend/runtime/ranked_mutex.h"

namespace chameleon::profiler {

class MemoryHistory {
 public:
  struct Sample {
    std::int64_t time_ns;
    std::size_t logical_bytes;
    std::size_t resident_bytes;
    std::size_t host_bytes;
  };
  static constexpr std::size_t kCapacity = 4096;

  void start(); // forgets what was recorded
  void stop() noexcept { recording_.store(false, std::memory_order_relaxed); }
  bool recording() const noexcept {
    return recording_.load(std::memory_order_relaxed);
  }
  void add(const Sample& sample);
  std::vector<Sample> samples() const;

 private:
  std::atomic<bool> recording_{false};
  mutable runtime::RankedMutex<runtime::LockRank::kLog> mutex_;
  std::vector<Sample> samples_; // guarded by mutex_
  std::size_t stride_ = 1;      // ops per sample
  std::size_t skipped_ = 0;     // ops since the last sample
};

} // namespace chameleon::profiler
