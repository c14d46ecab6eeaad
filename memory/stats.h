// Counters of one pager. Plain numbers; the names are the keys of
// torch_chameleon.swap_stats(). Bytes and nanoseconds; everything that is not
// a level or a peak counts since the last reset.
#pragma once

#include <cstdint>

namespace chameleon::memory {

// X(name): one row each, in display order.
#define CHAMELEON_STATS(X)                                  \
  X(logical_bytes) /* live tensor bytes, unrounded */       \
  X(peak_logical_bytes)                                     \
  X(resident_bytes) /* blocks and in-call extents in HBM */ \
  X(peak_resident_bytes)                                    \
  X(host_bytes) /* extents in use in the host pool */       \
  X(peak_host_bytes)                                        \
  X(hbm_budget)                                             \
  X(host_budget)                                            \
  X(faults)          /* operands that had to be fetched */  \
  X(evictions)       /* blocks that left HBM */             \
  X(clean_evictions) /* of these: without a copy */         \
  X(bytes_in)                                               \
  X(bytes_out)                                              \
  X(prefetched_bytes)                                       \
  X(prefetch_hits)                                          \
  X(stall_ns) /* compute waited for bytes */                \
  X(compute_ns)                                             \
  X(host_waits) /* host blocked where native would not */   \
  X(ops)                                                    \
  X(steps)                                                  \
  X(forecast_hits)                                          \
  X(forecast_misses)                                        \
  X(compactions)                                            \
  X(pinned_bytes)                                           \
  X(foreign_bytes)                                          \
  X(held_bytes)    /* of dead tensors, for re-runs */       \
  X(dropped_bytes) /* given up, to be made again */         \
  X(rerun_ops)                                              \
  X(rerun_ns)                                               \
  X(commits)          /* device memory mapped, unmapped */  \
  X(pinning_refusals) /* host memory that stays pageable */ \
  X(pageable_bytes)   /* copied from or to such memory */   \
  X(batch_refusals)   /* batches that went as single copies */

struct Stats {
#define CHAMELEON_STATS_FIELD(name) std::int64_t name = 0;
  CHAMELEON_STATS(CHAMELEON_STATS_FIELD)
#undef CHAMELEON_STATS_FIELD
};

} // namespace chameleon::memory
