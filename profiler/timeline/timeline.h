// What happened when: intervals on seven lanes, in a bounded ring (the oldest
// go), for a picture of copies beside compute.
//
// Off until start(). Thread safety: all functions, any thread; adding takes one
// short lock, and nothing while off.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "backend/runtime/ranked_mutex.h"

namespace chameleon::profiler {

enum class Lane : std::uint8_t {
  kCompute,
  kIn,
  kOut,
  kReruns,
  kExchanges, // with other GPUs
  kStalls,
  kDecisions, // what was decided before an op, at the op's begin
};
inline constexpr std::size_t kLanes = 7;
const char* lane_name(Lane lane) noexcept;
inline constexpr std::uint32_t kNoOpName = ~std::uint32_t{0};

struct Interval {
  Lane lane;
  std::uint32_t op; // its name, see OpNames; kNoOpName: none
  std::int64_t begin_ns;
  std::int64_t end_ns;
  std::uint64_t bytes;        // copied; 0 where nothing was
  const char* what = nullptr; // a decision: "fetch", ...; a literal
  std::uint64_t call = 0;     // the pager's, of the op; 0: none
};

class Timeline {
 public:
  static constexpr std::size_t kDefaultCapacity = 1 << 16;
  explicit Timeline(std::size_t capacity = kDefaultCapacity)
      : capacity_(capacity) {}

  void start(); // forgets what was recorded
  void stop() noexcept { recording_.store(false, std::memory_order_relaxed); }
  bool recording() const noexcept {
    return recording_.load(std::memory_order_relaxed);
  }
  void add(const Interval& interval);
  // In the order in which they were added.
  std::vector<Interval> intervals() const;
  std::uint64_t dropped() const;

 private:
  const std::size_t capacity_;
  std::atomic<bool> recording_{false};
  mutable runtime::RankedMutex<runtime::LockRank::kLog> mutex_;
  std::vector<Interval> ring_; // guarded by mutex_
  std::uint64_t added_ = 0;
};

} // namespace chameleon::profiler
