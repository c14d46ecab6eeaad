// Blocks whose bytes are nowhere: records of ops (RecomputeRecords), what to
// drop when nothing can leave for the host, and running the ops again. Re-runs
// are op calls like any other, without the lock and with nothing pinned in
// between; what they create are blocks of their own, whose places the Dropped
// blocks take over when all is done. So a failure on the way leaves everything
// as it was, and nobody waits for anybody: two threads that need the same block
// may both make it, and one result is thrown away.
//
// Thread safety: methods with a Locked need the pager's lock; the others take
// it where they need it.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "memory/block_table.h"
#include "memory/figures/meter.h"
#include "memory/pager_call.h"
#include "memory/pager_core.h"
#include "memory/residency.h"
#include "memory/room_request.h"

namespace chameleon::memory {

class Recomputer final : public LastResort {
 public:
  // REQUIRES: all outlive it.
  Recomputer(PagerCore& core, Meter& meter, Residency& residency,
             BlockTable& table)
      : core_(core), meter_(meter), residency_(residency), table_(table) {}

  // The quick token of the op that this thread is running again.
  static constinit thread_local profiler::QuickToken quick_of_rerun;

  // ---- records and drops ---------------------------------------------------
  // See Pager.
  void record(CallState& call, std::unique_ptr<RecordedOp> op,
              std::span<Block* const> created);
  // Gives a block's bytes up, wherever they are. False: it is pinned or cannot
  // be made again.
  bool drop(Block& block);
  void dropAll(); // what can be
  // All calls are recorded, so that there is something to drop when the host is
  // full.
  bool recordsAll(const Locked& /*locked*/) const noexcept
      REQUIRES(pager_lock) {
    return host_short_;
  }
  // For tests: a record is kept after its re-run if `keeps()` says so. Empty:
  // it goes, unless the host is short.
  void keepRecordsIf(const Locked& /*locked*/, std::function<bool()> keeps)
      REQUIRES(pager_lock) {
    keeps_record_ = std::move(keeps);
  }
  bool giveUpForHost(const Locked& locked, std::size_t bytes)
      REQUIRES(pager_lock) override;
  void noteHostUse(const Locked& locked) REQUIRES(pager_lock) override;

  // ---- back again ----------------------------------------------------------
  // What must run before the operands can be used, in use from then on
  // (RecomputeRecords::use); null: nothing.
  Record* missing(const Locked& locked, std::span<const Operand> operands)
      REQUIRES(pager_lock);
  // Runs a record that missing() gave, with all that it needs, and lets it go.
  // `purpose`: of what the operands are, for messages.
  runtime::Error restore(Record& record, std::span<const Operand> operands,
                         std::string_view purpose);
  // Gives the lock up in between: makes what an access to the block needs. The
  // analysis does not follow a PagerLock that is passed on.
  runtime::Error restoreFor(PagerLock& locked, const Operand& operand,
                            std::string_view purpose)
      REQUIRES(pager_lock) NO_THREAD_SAFETY_ANALYSIS;
  // Before the budget falls: makes every Dropped block whose record could not
  // run in `budget_bytes`.
  runtime::Error restoreBefore(std::size_t budget_bytes);

 private:
  // What a re-run makes. Nobody else knows these blocks.
  struct Fresh {
    std::vector<Block*> outputs; // of the record, null: not made (yet)
    std::vector<Block*> scratch; // side effects, in order, and what is left
  };
  bool giveUpHeld(const Locked& locked, std::size_t bytes) REQUIRES(pager_lock);
  bool dropWorst(const Locked& locked, std::size_t bytes, bool resident)
      REQUIRES(pager_lock);
  runtime::Error restoreAll(Record& record, std::string_view purpose);
  runtime::Error rerun(Record& record);
  runtime::Error makeFresh(const Record& record, Fresh& fresh);
  runtime::Error runCalls(const Record& record, Fresh& fresh);

  PagerCore& core_;
  Meter& meter_;
  Residency& residency_;
  BlockTable& table_;
  std::function<bool()> keeps_record_ GUARDED_BY(pager_lock); // may be empty
  bool host_short_ GUARDED_BY(pager_lock) = false;
};

} // namespace chameleon::memory
