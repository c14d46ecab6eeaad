// Times what runs on a stream: an event before it and one behind, or the clock
// where work runs while it is submitted. Figures are reported when the device
// has passed the events, while later work is timed: nobody waits for them.
//
// Ops and copies go to Durations, and to the Timeline while that records. What
// cannot be timed is not; nothing here can make an op fail.
//
//   op    from its kernel's begin to its end on the stream, less its pauses; at
//         most what kernels ran meanwhile, where the device keeps that time: an
//         op is slower beside moves. An exchange of several GPUs runs beside
//         compute: it is shown, and counts as taking no time.
//   copy  one batch of each direction at a time. Its speed counts as that of
//         the direction alone if the other one was idle and got no work, as
//         that of both if a timed copy of the other ran through 3/4 of it, and
//         else not at all.
//
// A runtime that knows its link exactly gets no copy timed for its speed; one
// that checks its callers gets nothing timed.
//
// Tests: meter_test.cpp, transfers_test.cpp.
//
// Thread safety: any thread. One lock, which is given back soon: under it only
// the runtime (events; never a wait), Durations and Timeline are called, which
// have locks of their own.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "backend/runtime/device_runtime.h"
#include "backend/runtime/ranked_mutex.h"
#include "memory/streams/timed_point.h"
#include "profiler/durations.h"
#include "profiler/timeline/timeline.h"
#include "profiler/token.h"

namespace chameleon::memory {

// The stream waits inside an op, or moves what is in the way.
struct Pause {
  TimedPoint begin;
  TimedPoint end;
};

class OpTimer;

// An op that is being timed, from begin() to end().
struct OpTiming {
  explicit OpTiming(OpTimer& owner) : timer(owner) {}
  ~OpTiming(); // what was not ended is not reported
  OpTiming(const OpTiming&) = delete;
  OpTiming& operator=(const OpTiming&) = delete;

  OpTimer& timer;
  runtime::Stream stream{}; // from begin on
  TimedPoint wait;          // before it waits for its operands' bytes
  TimedPoint begin;         // before the kernel
  std::vector<Pause> pauses;
  profiler::Token token = 0;
  std::uint32_t name = profiler::kNoOpName;
  std::uint64_t call = 0; // the pager's
  // A re-run is shown, but its time says nothing about the op's. An exchange
  // runs beside compute, and takes none of its time.
  profiler::Lane lane = profiler::Lane::kCompute;
  // Of copies that were decided on before the kernel.
  std::uint64_t bytes_in = 0;
  std::uint64_t bytes_out = 0;
};

// Pauses an op, if it is timed, while this lives.
class OpPause {
 public:
  explicit OpPause(OpTiming* op) : op_(op) {
    if (op_ != nullptr) [[unlikely]] {
      begin();
    }
  }
  ~OpPause() {
    if (op_ != nullptr) [[unlikely]] {
      end();
    }
  }
  OpPause(const OpPause&) = delete;
  OpPause& operator=(const OpPause&) = delete;

 private:
  void begin();
  void end();

  OpTiming* const op_;
};

// A batch of copies, while it is submitted.
struct CopyTiming {
  TimedPoint begin;
  bool other_idle = false;
  std::uint64_t other_batches = 0;
};

class OpTimer {
 public:
  OpTimer(runtime::DeviceRuntime& runtime, profiler::Durations& durations,
          profiler::Timeline& timeline);
  // Gives the events back; waits for nothing.
  ~OpTimer();
  OpTimer(const OpTimer&) = delete;
  OpTimer& operator=(const OpTimer&) = delete;

  // Before the op waits for bytes; null: it is not timed. Before its kernel.
  // Behind it: `bytes` of all operands and results.
  std::unique_ptr<OpTiming> opWaits(runtime::Stream stream, std::uint32_t name,
                                    profiler::Token token,
                                    std::uint64_t call = 0);
  void opBegins(runtime::Stream stream, OpTiming& op);
  void opEnded(runtime::Stream stream, OpTiming& op, std::uint64_t bytes);

  // A batch of copies is about to be submitted: is it timed? If so, before and
  // behind it. `other_idle`: the other direction has no work left.
  bool timesCopy(profiler::Direction direction);
  CopyTiming copyBegins(runtime::Stream stream, profiler::Direction direction,
                        bool other_idle);
  void copyEnded(runtime::Stream stream, profiler::Direction direction,
                 const CopyTiming& copy, std::uint64_t bytes);

  // Reports what the device has passed.
  void collect();

 private:
  friend struct OpTiming;
  friend class OpPause;
  static constexpr std::size_t kMaxPending = 4096; // the oldest go
  // Of each direction's batches the first kOften are timed, and then one in
  // kSeldom.
  static constexpr std::uint64_t kOften = 32;
  static constexpr std::uint64_t kSeldom = 8;
  static constexpr std::size_t kLists = 3; // ops, in, out

  struct Pending {
    TimedPoint wait;
    TimedPoint begin;
    TimedPoint end;
    std::vector<Pause> pauses;
    std::uint64_t bytes = 0;
    profiler::Token token = 0;
    std::uint32_t name = profiler::kNoOpName;
    std::uint64_t call = 0;
    profiler::Lane lane = profiler::Lane::kCompute;
    bool measures = false; // a copy, its direction's speed
    bool other_idle = false;
    std::uint64_t other_batches = 0;
    std::uint64_t bytes_in = 0; // decided on before an op
    std::uint64_t bytes_out = 0;
  };
  struct Span {
    std::int64_t begin_ns = 0;
    std::int64_t end_ns = 0;
  };

  // All REQUIRE the lock.
  void giveBack(std::vector<Pause>& pauses) noexcept;
  void giveBack(Pending& pending) noexcept;
  bool resolve(TimedPoint& point) const {
    return memory::resolve(runtime_, point);
  }
  bool resolve(std::vector<Pause>& pauses) const;
  void add(std::size_t list, Pending pending);
  void collectList(std::size_t list);
  void report(std::size_t list, Pending& pending);
  void reportOp(Pending& pending);
  void reportCopy(std::size_t list, const Pending& pending);

  runtime::DeviceRuntime& runtime_;
  profiler::Durations& durations_;
  profiler::Timeline& timeline_;
  const bool times_;
  const bool times_links_;
  runtime::RankedMutex<runtime::LockRank::kOpTimer> mutex_;
  // Guarded by it; each in the order of submission.
  std::array<std::deque<Pending>, kLists> pending_;
  std::array<std::uint64_t, kLists> batches_{};
  std::array<Span, kLists> last_{}; // the last one reported
};

} // namespace chameleon::memory
