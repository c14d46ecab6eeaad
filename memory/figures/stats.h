// Counters of one pager. Plain numbers; the names are the keys of
// torch_chameleon.swap_stats(). Bytes and nanoseconds; everything that is not
// a level or a peak counts since the last reset.
//
// Thread safety: plain values.
#pragma once

#include <cstdint>

namespace chameleon::memory {

// X(name): one row each, in display order.
#define CHAMELEON_STATS(X)                                           \
  X(logical_bytes)       /* live tensor bytes, unrounded */          \
  X(peak_logical_bytes)  /* the most of these */                     \
  X(resident_bytes)      /* blocks and in-call extents in HBM */     \
  X(peak_resident_bytes) /* the most of these */                     \
  X(host_bytes)          /* extents in use in the host pool */       \
  X(peak_host_bytes)     /* the most of these */                     \
  X(host_reserved_bytes) /* host memory obtained for them */         \
  X(hbm_budget)          /* bytes of HBM that may be used */         \
  X(host_budget)         /* bytes of host memory that may be used */ \
  X(faults)              /* operands that had to be fetched */       \
  X(evictions)           /* blocks that left HBM */                  \
  X(clean_evictions)     /* of these: without a copy */              \
  X(bytes_in)            /* copied from the host to HBM */           \
  X(bytes_out)           /* copied from HBM to the host */           \
  X(mirrored_bytes)      /* copied so that runs can go back */       \
  X(prefetched_bytes)    /* fetched ahead of need */                 \
  X(prefetch_hits)       /* blocks fetched so and then used */       \
  X(stall_ns)            /* compute waited for bytes */              \
  X(compute_ns)          /* the device ran ops, as it says */        \
  X(host_waits)          /* host blocked where native would not */   \
  X(ops)                 /* op calls */                              \
  X(steps)               /* steps that ended */                      \
  X(forecast_hits)       /* ops that were the expected one */        \
  X(forecast_misses)     /* ops that were another one */             \
  X(compactions)         /* times that blocks moved for a hole */    \
  X(pinned_bytes)        /* in HBM, held by calls and users now */   \
  X(foreign_bytes)       /* in-call memory that outlived its call */ \
  X(held_bytes)          /* of dead tensors, for re-runs */          \
  X(dropped_bytes)       /* given up, to be made again */            \
  X(rerun_ops)           /* ops that were run again */               \
  X(rerun_ns)            /* time that they took, as estimated */     \
  X(commits)             /* device memory mapped, unmapped */        \
  X(pinning_refusals)    /* host memory that stays pageable */       \
  X(pageable_bytes)      /* copied from or to such memory */         \
  X(batch_refusals)      /* batches that went as single copies */

struct Stats {
#define CHAMELEON_STATS_FIELD(name) std::int64_t name = 0;
  CHAMELEON_STATS(CHAMELEON_STATS_FIELD)
#undef CHAMELEON_STATS_FIELD
};

} // namespace chameleon::memory
