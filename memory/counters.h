// What a pager counts for swap_stats(): stats.h says what each row means. What
// other parts know (levels, the link, the forecast) is asked of them instead.
//
// Thread safety: atomics, any thread; the others say that the lock guards them.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "backend/runtime/device_runtime.h"
#include "memory/locked.h"
#include "profiler/profiler.h"

namespace chameleon::memory {

// Lets `mark` rise to `value`.
template <typename T>
void raise(std::atomic<T>& mark, T value) noexcept {
  T old = mark.load(std::memory_order_relaxed);
  while (old < value &&
         !mark.compare_exchange_weak(old, value, std::memory_order_relaxed)) {
  }
}

// Since the last reset. All relaxed: they are read for reports only.
struct Counters {
  runtime::ComputeTimes times_base GUARDED_BY(pager_lock);
  runtime::TransferGaps gaps_base GUARDED_BY(pager_lock);
  std::uint64_t commits_base GUARDED_BY(pager_lock) = 0;
  std::atomic<std::int64_t> faults{0};
  std::atomic<std::int64_t> evictions{0};
  std::atomic<std::int64_t> clean_evictions{0};
  std::atomic<std::int64_t> bytes_in{0};
  std::atomic<std::int64_t> bytes_out{0};
  std::atomic<std::int64_t> mirrored_bytes{0};
  std::atomic<std::int64_t> mirror_bytes_out{0}; // of these, from HBM
  std::atomic<std::int64_t> prefetched_bytes{0};
  std::atomic<std::int64_t> prefetch_hits{0};
  std::atomic<std::int64_t> stall_ns{0};
  std::atomic<std::int64_t> compactions{0};
  std::atomic<std::int64_t> dropped_bytes{0};
  std::atomic<std::int64_t> rerun_ops{0};
  std::atomic<std::int64_t> rerun_ns{0};
  std::atomic<std::int64_t> ops_base{0}; // ticks that are not counted as ops
  std::atomic<std::int64_t> host_waits_base{0};
  profiler::RunCounts run_base GUARDED_BY(pager_lock);
  std::atomic<std::int64_t> peak_logical_bytes{0};
  std::atomic<std::size_t> peak_resident_bytes{0};
};

} // namespace chameleon::memory
