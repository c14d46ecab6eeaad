// Ahead of need: carries out what the policy wants before an op. It waits on
// the host no more than Residency does, and nothing that fails matters: what
// was not moved ahead is moved when it is needed.
//
// Thread safety: due() any thread, one load; the rest takes the pager's lock,
// or needs it where it takes a Locked.
#pragma once

#include <cstdint>
#include <vector>

#include "memory/block_table.h"
#include "memory/figures/meter.h"
#include "memory/pager_core.h"
#include "memory/residency.h"
#include "memory/room/room_finder.h"
#include "memory/wanted_block.h"

namespace chameleon::memory {

class PlanRunner {
 public:
  // REQUIRES: all outlive it, and the policy does not.
  PlanRunner(PagerCore& core, Meter& meter, Residency& residency,
             BlockTable& table, Compaction& compaction, RoomFinder& room)
      : core_(core),
        meter_(meter),
        residency_(residency),
        table_(table),
        compaction_(compaction),
        room_(room) {}

  // The policy may want something before the op of this ticket.
  bool due(const profiler::OpTicket& ticket) const noexcept {
    return next_actions_.due(ticket);
  }
  // Does what the policy wants before the call's op. True: record the call.
  bool fulfil(const CallState& call);

  // What a policy of this pager decides from. REQUIRES: the lock, or that
  // nobody else knows the pager.
  PolicyInputs policyInputs() noexcept REQUIRES(pager_lock);
  // Another policy is there. REQUIRES: the same.
  void policyChanged() noexcept REQUIRES(pager_lock);
  // Plans of an earlier run that a policy may take.
  SavedPlans& saved() noexcept { return saved_; }
  const SavedPlans& saved() const noexcept { return saved_; }

 private:
  static bool mayFetchAhead(const Block& block) noexcept;
  void fetchAhead(const Locked& locked, std::uint64_t needed_at)
      REQUIRES(pager_lock);
  void pack(const Locked& locked) REQUIRES(pager_lock);

  PagerCore& core_;
  Meter& meter_;
  Residency& residency_;
  BlockTable& table_;
  Compaction& compaction_;
  RoomFinder& room_;
  NextActions next_actions_;
  SavedPlans saved_;
  std::vector<PlannedAction> planned_ GUARDED_BY(pager_lock); // scratch
  // The batch of fetches that is open.
  std::vector<WantedBlock> ahead_ GUARDED_BY(pager_lock);
};

} // namespace chameleon::memory
