// Checks what callers of the adversarial cpu runtime promise: that work which
// touches the same bytes is ordered, that operands keep their bytes until
// their kernel has passed, that discarded bytes are not used, that events are
// alive. It also carries what only such checks need: kernels that count as
// running after they ran, and poison.
//
// The rule behind all of it: when work is submitted, every pending entry of
// another line that shares bytes with it (one of the two writing) must run
// before it by the order that waits make (work_order.h). That is decided at
// submission, so it does not depend on timing.
//
// Thread safety: every method may be called from any thread. Its lock is a
// leaf; the MisuseHandler is called under it.
#pragma once

#include <cstdint>
#include <deque>
#include <mutex>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "backend/runtime/cpu/cpu_adversary.h"
#include "backend/runtime/cpu/line_position.h"
#include "backend/runtime/cpu/poison.h"
#include "backend/runtime/cpu/range_set.h"
#include "backend/runtime/cpu/work_order.h"
#include "backend/runtime/ranked_mutex.h"

namespace chameleon::runtime {

class CallChecker {
 public:
  CallChecker(const CpuAdversary& adversary, MisuseHandler on_misuse);
  // Reports events that nobody destroyed.
  ~CallChecker();
  CallChecker(const CallChecker&) = delete;
  CallChecker& operator=(const CallChecker&) = delete;

  // ---- compute lines -------------------------------------------------
  // A kernel or move that has run on `stream`.
  void submitted(Stream stream, std::span<const ByteRange> reads,
                 std::span<const ByteRange> writes);
  // Before copies run inline on a compute stream; submitted() follows.
  void aboutToCopy(std::span<const Copy> copies);
  // What an event on `stream` has to wait for; none: all has passed.
  LinePosition last(Stream stream);
  bool computePassed(LinePosition position);
  // Returns when it has passed, which this call itself brings about.
  void awaitCompute(LinePosition position);

  // ---- copy lines ------------------------------------------------------
  void copySubmitted(LinePosition at, std::span<const Copy> copies);
  // One of the copies of entry `at` will not run.
  void copyCancelled(LinePosition at, const Copy& copy);
  void waitSubmitted(LinePosition at, LinePosition position);
  void finished(LinePosition at);

  // ---- memory ----------------------------------------------------------
  void committed(ByteRange range);
  void discarded(ByteRange range);
  void revived(ByteRange range);
  // Before the memory goes away; `call` is for the message.
  void released(ByteRange range, std::string_view call);

  // ---- events: their handles, whatever they stand for --------------------
  void eventCreated(Event event);
  void eventUsed(Event event, std::string_view call);
  void eventDestroyed(Event event);

 private:
  struct Access {
    Interval bytes;
    bool writes;
    bool checked; // `checksum` holds until the entry is done
    std::uint64_t checksum;
  };
  struct Entry {
    std::uint64_t count;
    std::uint64_t due; // compute: done when so many were submitted
    std::vector<Access> accesses;
  };
  struct Line {
    Stream stream; // compute lines
    std::uint64_t submitted = 0;
    std::uint64_t completed = 0;
    std::deque<Entry> pending;
  };

  // All REQUIRE mutex_.
  LineIndex computeLine(Stream stream);
  void checkOrder(LinePosition at, const std::vector<Access>& accesses);
  void checkAlive(LinePosition at, const Access& access);
  // Verifies (if asked) and drops the checksums of bytes about to change.
  void dropChecksums(Interval bytes, bool verify_first);
  void verify(LineIndex line, const Entry& entry, Access& access);
  void retire(LineIndex line, std::uint64_t count);
  bool inUse(Interval bytes) const;
  void applyPoison();
  std::string name(LinePosition at) const;
  void misuse(const std::string& sentence);

  const CpuAdversary adversary_;
  const MisuseHandler on_misuse_;
  RankedMutex<LockRank::kCallChecker> mutex_;
  // Everything below is guarded by mutex_.
  std::mt19937_64 random_;
  std::vector<Line> lines_; // by LineIndex
  WorkOrder order_;
  RangeSet discarded_;
  std::vector<Interval> to_poison_; // still used by pending work
  Poison poison_;
  std::unordered_map<std::uint64_t, std::size_t> live_events_; // by id
};

} // namespace chameleon::runtime
