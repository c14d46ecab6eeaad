// How much a pager may use, changed while it runs. A budget that what is live
// or pinned does not fit into is refused with a sentence, and nothing changed.
//
// Thread safety: any thread; takes the pager's lock, and may wait for calls.
#pragma once

#include <cstddef>

#include "memory/block_table.h"
#include "memory/figures/meter.h"
#include "memory/limits.h"
#include "memory/pager_core.h"
#include "memory/recompute/recomputer.h"
#include "memory/residency.h"
#include "memory/room/compaction.h"
#include "memory/room/room_finder.h"

namespace chameleon::memory {

class Budgets {
 public:
  // REQUIRES: all outlive it.
  Budgets(PagerCore& core, Meter& meter, Residency& residency,
          BlockTable& table, Compaction& compaction, RoomFinder& room,
          Recomputer& recomputer)
      : core_(core),
        meter_(meter),
        residency_(residency),
        table_(table),
        compaction_(compaction),
        room_(room),
        recomputer_(recomputer) {}

  // kInvalidArgument where what is pinned, or live, does not fit. Evicts what
  // no longer fits.
  runtime::Error setHbmBudget(std::size_t bytes);
  // kInvalidArgument where what was evicted does not fit; what lies too high
  // moves. `growth_share`: see HostPool.
  runtime::Error setHostBudget(std::size_t bytes, double growth_share = 0);
  // `live_fraction`: see Limits.
  runtime::Error setOversubscription(double factor, double live_fraction = 1);
  Limits limits() const;

 private:
  Admission::Attempt tryHbmBudget(const Locked& locked, std::size_t bytes,
                                  runtime::Error& error) REQUIRES(pager_lock);
  Admission::Attempt tryHostBudget(const Locked& locked, std::size_t bytes,
                                   runtime::Error& failure)
      REQUIRES(pager_lock);
  bool shrinkTo(const Locked& locked, std::size_t budget_bytes,
                Shortage& shortage) REQUIRES(pager_lock);

  PagerCore& core_;
  Meter& meter_;
  Residency& residency_;
  BlockTable& table_;
  Compaction& compaction_;
  RoomFinder& room_;
  Recomputer& recomputer_;
};

} // namespace chameleon::memory
