// What one step cost: figures between two boundaries. A step ends where the
// profiler says so; whoever knows the counters hands them in.
//
// A boundary is an event on the compute stream, so the duration is the
// device's, however far ahead of it the host was. Copies count for the step in
// which they were submitted.
//
// Tests: meter_test.cpp.
//
// Thread safety: none; the pager's mutex guards it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>

#include "backend/runtime/device_runtime.h"
#include "memory/figures/exchange_meter.h"
#include "memory/policy/plan/plan.h"
#include "memory/streams/fence.h"
#include "memory/streams/timed_point.h"
#include "profiler/op_path.h"

namespace chameleon::memory {

// Sums since any fixed moment.
struct StepCounts {
  std::int64_t stall_ns = 0; // the host's, where compute runs inline
  std::int64_t bytes_in = 0;
  std::int64_t bytes_out = 0;
  std::int64_t mirror_bytes_out = 0;
  std::int64_t rerun_ns = 0; // as their ops were timed before
  std::int64_t ops = 0;      // that the profiler saw
  std::int64_t forecast_misses = 0;
  std::int64_t host_bytes = 0; // no sum: see StepFigures
};

// Figures of the last step that ended.
struct StepFigures {
  std::int64_t duration_ns = 0;
  // Kernels ran, re-runs too. Measured where the device keeps that time, else
  // estimated from the ops that were timed.
  std::int64_t compute_ns = 0;
  std::int64_t rerun_ns = 0; // of it, as their ops were timed before
  std::int64_t stall_ns = 0; // compute waited for bytes
  // Exchanges with other GPUs ran / compute waited for other ranks in them
  // (exchange_meter.h).
  std::int64_t exchange_ns = 0;
  std::int64_t exposed_ns = 0;
  std::int64_t bytes_in = 0;
  std::int64_t bytes_out = 0;
  std::int64_t mirror_bytes_out = 0; // not among those
  std::int64_t host_bytes = 0;       // the most in use on the host at a time
  // The least time in which this compute can be done and these bytes be moved:
  // max(compute, in / rate in, out / rate out, (in + out) / rate of both), what
  // goes to the mirror being out, too. A bound for these bytes; another policy
  // may have to move fewer.
  std::int64_t bound_ns = 0;
  std::int64_t ops = 0;
  std::int64_t forecast_hits = 0;
  std::int64_t forecast_misses = 0;
  PlanPtr plan; // that was followed at its end; null: none
};

class StepMeter {
 public:
  // Unmarked rounds of fewer ops are taken to be part of the next one.
  static constexpr std::int64_t kShortest = 32;

  StepMeter(runtime::DeviceRuntime& runtime, ExchangeMeter& exchanges)
      : runtime_(runtime), exchanges_(exchanges) {}
  ~StepMeter();
  StepMeter(const StepMeter&) = delete;
  StepMeter& operator=(const StepMeter&) = delete;

  // Where the first step begins.
  void begin(runtime::Stream stream);
  // A step ends on `stream` behind what was counted; `position`: the last of
  // it there. `path`: what it was; `plan`: what was followed.
  void ended(runtime::Stream stream, Position position,
             const StepCounts& counts, bool marked, profiler::PathId path,
             PlanPtr plan);
  // `counts` are set to zero by their owner.
  void rebase(const StepCounts& counts) noexcept;

  // Where the last step ended; nothing: none did. That it has passed is what
  // last() needs.
  std::optional<Position> end() const noexcept;
  // The last step. compute_ns is set where the device keeps that time, else
  // `knows_compute` is false; bound_ns never is. Nothing: it has not ended on
  // the device.
  struct Last {
    StepFigures figures;
    profiler::PathId path = 0;
    bool knows_compute = false;
    bool knows_stall = false; // compute runs inline, or the same
    bool marked = false;      // by who trains
  };
  std::optional<Last> last();
  // The same, of each step once and in turn, but for those that the device has
  // not reached when kMaxUntaken others have ended.
  static constexpr std::size_t kMaxUntaken = 64;
  std::optional<Last> takeNext();

 private:
  struct Boundary {
    StepCounts counts;
    Position position;
    TimedPoint point;
    bool on_host = false; // the host's clock timed it
    // Of the step that ended here.
    bool marked = false;
    profiler::PathId path = 0;
    PlanPtr plan;
    runtime::Stream stream;
    ExchangeMeter::Spans exchanges;
  };
  Boundary boundary(runtime::Stream stream);
  bool measured() const noexcept { return boundaries_.size() > 1; }
  // Of the step that ended at boundaries_[index].
  std::optional<Last> stepAt(std::size_t index);
  void trim() noexcept; // to what is still needed
  void giveBack(Boundary& boundary) noexcept;

  runtime::DeviceRuntime& runtime_;
  ExchangeMeter& exchanges_;
  // Oldest first; the last is where the step that runs begins.
  std::deque<Boundary> boundaries_;
  std::size_t untaken_ = 1; // the next step for takeNext() ended there
};

} // namespace chameleon::memory
