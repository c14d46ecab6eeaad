// Figures for users and for the planner: timed ops, steps, the link; and a
// warning to the user when steps are slow. Nothing here is on the path of an op
// that is not timed, but for one look at whether a step ended.
//
// Thread safety: any thread; methods take the pager's lock where they need it,
// so REQUIRES: it is not held.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>

#include "memory/figures/exchange_meter.h"
#include "memory/figures/host_need.h"
#include "memory/figures/slowdown_watch.h"
#include "memory/figures/step_meter.h"
#include "memory/op_request.h"
#include "memory/pager_core.h"
#include "memory/policy/link_estimate.h"
#include "memory/policy/mirror_rate.h"
#include "memory/streams/op_timer.h"
#include "profiler/durations.h"
#include "profiler/timeline/timeline.h"

namespace chameleon::memory {

class Meter {
 public:
  explicit Meter(PagerCore& core);

  // ---- ops that are timed --------------------------------------------------
  // Before anything is decided for the op: is it to be timed?
  void startTiming(CallState& call, const OpRequest& request);
  void startRerunTiming(CallState& call, const OpRequest& request);
  // All has been decided, and its bytes are waited for.
  void beginTiming(CallState& call);
  void endTiming(CallState& call);
  // The call's stream waits for its operands while `span` lives: the step's own
  // for an exchange, or another one for bytes.
  void beginWait(const CallState& call, const Fence& waits,
                 std::optional<ExchangeSpan>& span);

  // ---- steps ---------------------------------------------------------------
  // The first one; nobody else knows the pager yet.
  void begin(runtime::Stream stream) NO_THREAD_SAFETY_ANALYSIS {
    meter_.begin(stream);
  }
  bool sawStepEnd() const noexcept { // stepEnded() is due
    return core_.profiler.steps() !=
           steps_seen_.load(std::memory_order_relaxed);
  }
  // The profiler saw a step end; the call's op is the first one after it. An
  // error: steps are slower than they may be.
  runtime::Error stepEnded(const CallState& call);
  // A step ends here (Profiler::step()).
  void step(runtime::Stream stream);
  // Of the last step that ended; waits until it has on the device. Nothing:
  // none has, or the device is lost.
  std::optional<StepFigures> lastStep();
  // The counters go to zero.
  void rebase(const Locked& /*locked*/) REQUIRES(pager_lock) {
    meter_.rebase(counts());
  }

  // ---- steps that are slow -------------------------------------------------
  // Steps that take more than `factor` times as long as without waits for bytes
  // end in kTooSlow, three in a row, at the begin() that comes next. None: they
  // never do.
  void setMaxSlowdown(std::optional<double> factor);
  void restartWatch(const Locked& /*locked*/) noexcept REQUIRES(pager_lock) {
    watch_.restart();
  }
  // Called with a cause of slow steps and words for the user, once for each
  // cause; by begin(), without a lock of ours. May not throw.
  using SlowdownHook = void (*)(SlowdownCause cause,
                                const std::string& message);
  static SlowdownHook slowdown_hook; // process-wide; set before first use

  // ---- what is measured ----------------------------------------------------
  // Starts or stops what timeline() shows: every op and every copy is timed
  // meanwhile, which costs time. Stopping waits for all that was submitted.
  void recordTimeline(bool on);
  const profiler::Timeline& timeline() {
    timer_.collect();
    return timeline_;
  }
  bool recordsTimeline() const noexcept { return timeline_.recording(); }
  profiler::Durations& durations() noexcept { return durations_; }
  OpTimer& timer() noexcept { return timer_; }
  ExchangeMeter& exchanges() noexcept { return exchanges_; }
  MirrorRate& mirrorRate() noexcept { return mirror_rate_; }
  // As it is taken to be now: link().now().
  const LinkEstimate& link() const noexcept { return link_; }

 private:
  StepCounts counts() const noexcept;
  // Those of a step that ends now. Host memory that steps do not need goes.
  StepCounts countsAtEnd(const Locked& locked) REQUIRES(pager_lock);
  double complete(StepMeter::Last& last); // transfer time in ns
  std::int64_t computeEstimate(profiler::PathId path, const StepFigures& step);
  void watchSteps();
  void watchStep(StepMeter::Last& last);
  runtime::Error reportSlowdown();

  PagerCore& core_;
  profiler::Durations durations_;
  profiler::Timeline timeline_;
  OpTimer timer_;
  MirrorRate mirror_rate_;
  LinkEstimate link_;
  ExchangeMeter exchanges_;
  std::atomic<std::uint64_t> steps_seen_{0};            // Profiler::steps()
  std::atomic<std::uint64_t> step_begin_{0};            // Profiler::opCount()
  std::atomic<StreamIndex> step_stream_{kFirstCompute}; // where the last ended

  StepMeter meter_ GUARDED_BY(pager_lock);
  HostNeed host_need_ GUARDED_BY(pager_lock);
  SlowdownWatch watch_ GUARDED_BY(pager_lock);
  // The next op hands it on.
  std::optional<SlowdownReport> slowdown_ GUARDED_BY(pager_lock);
};

} // namespace chameleon::memory
