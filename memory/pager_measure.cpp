// Figures for users and for the planner: ops that are timed, steps, the link.
// Nothing here is on the path of an op that is not timed.
#include <algorithm>
#include <utility>

#include "memory/pager_impl.h"
#include "profiler/cycle_builder.h"

namespace chameleon::memory {

using profiler::PathId;
using runtime::Error;

namespace {

// A step went as its plan foresaw where one op in so many, at most, was
// another.
constexpr std::int64_t kForeseen = 64;

} // namespace

// ---- ops that are timed ----------------------------------------------------

// Before anything is decided for the op.
void PagerImpl::startTiming(Call& call, runtime::Stream stream,
                            const OpIdentity& identity) {
  call.timing_ =
      timer_.opWaits(stream, identity.name, identity.whole(), call.tick_);
  if (call.timing_ == nullptr) return;
  call.timing_->bytes_in = static_cast<std::uint64_t>(counters_.bytes_in);
  call.timing_->bytes_out = static_cast<std::uint64_t>(counters_.bytes_out);
}

void PagerImpl::startRerunTiming(Call& call, const OpRequest& request) {
  call.timing_ = timer_.opWaits(request.stream, request.rerun_name, /*token=*/0,
                                call.tick_);
  if (call.timing_ != nullptr) call.timing_->rerun = true;
}

// All has been decided, and its bytes are waited for.
void PagerImpl::beginTiming(Call& call) {
  OpTiming& op = *call.timing_;
  op.bytes_in = static_cast<std::uint64_t>(counters_.bytes_in) - op.bytes_in;
  op.bytes_out = static_cast<std::uint64_t>(counters_.bytes_out) - op.bytes_out;
  timer_.opBegins(timelines_.stream(call.stream_), op);
}

void PagerImpl::endTiming(Call& call) {
  const std::unique_ptr<OpTiming> op = std::move(call.timing_);
  timer_.opEnded(timelines_.stream(call.stream_), *op,
                 call.operand_bytes_ + call.adopted_bytes_);
}

// ---- steps -----------------------------------------------------------------

StepCounts PagerImpl::stepCounts() const noexcept {
  const profiler::RunCounts seen = profiler_.counts();
  StepCounts counts;
  counts.stall_ns = counters_.stall_ns.load(std::memory_order_relaxed);
  counts.bytes_in = counters_.bytes_in.load(std::memory_order_relaxed);
  counts.bytes_out = counters_.bytes_out.load(std::memory_order_relaxed);
  counts.rerun_ns = counters_.rerun_ns.load(std::memory_order_relaxed);
  counts.ops = static_cast<std::int64_t>(seen.ops);
  counts.forecast_misses = static_cast<std::int64_t>(seen.forecast_misses);
  return counts;
}

// The profiler saw a step end. The call's op is the first one after it.
Error PagerImpl::stepEnded(const Call& call) {
  steps_seen_.store(profiler_.steps(), std::memory_order_relaxed);
  // Loops of a few ops end steps all the time.
  if (profiler_.opCount() - step_begin_.load(std::memory_order_relaxed) >
      std::uint64_t{StepMeter::kShortest}) {
    {
      const Lock lock(*this);
      const profiler::RunCounts seen = profiler_.counts();
      step_begin_.store(seen.ops - 1, std::memory_order_relaxed);
      StepCounts counts = stepCounts();
      counts.ops -= 1;
      counts.forecast_misses -= call.ticket_.expected ? 0 : 1;
      meter_.ended(timelines_.stream(call.stream_),
                   timelines_.advance(call.stream_), counts, /*marked=*/false,
                   seen.last_path, policy_->plan());
    }
    watchSteps();
  }
  return reportSlowdown();
}

void PagerImpl::step(runtime::Stream stream) {
  profiler_.step();
  {
    const Lock lock(*this);
    const profiler::RunCounts seen = profiler_.counts();
    step_begin_.store(seen.ops, std::memory_order_relaxed);
    const StreamIndex index = timelines_.indexOf(stream);
    meter_.ended(stream, timelines_.advance(index), stepCounts(),
                 /*marked=*/true, seen.last_path, policy_->plan());
  }
  watchSteps();
  const Lock lock(*this);
  // Else the next op comes to report.
  if (!slowdown_) {
    steps_seen_.store(profiler_.steps(), std::memory_order_relaxed);
  }
}

std::optional<StepFigures> PagerImpl::lastStep() {
  std::optional<StepMeter::Last> last;
  while (!last) {
    std::optional<Position> end;
    {
      const Lock lock(*this);
      end = meter_.end();
    }
    if (!end) return std::nullopt;
    if (timelines_.synchronize(*end)) return std::nullopt; // device lost
    const Lock lock(*this);
    last = meter_.last();
  }
  (void)complete(*last);
  return std::move(last->figures);
}

// What the meter does not know.
double PagerImpl::complete(StepMeter::Last& last) {
  StepFigures& step = last.figures;
  // What is measured goes before what is estimated, and no part of a step
  // takes longer than the step.
  if (!last.knows_compute) {
    const std::int64_t left_ns =
        step.duration_ns - (last.knows_stall ? step.stall_ns : 0);
    step.compute_ns =
        std::min(computeEstimate(last.path, step) + step.rerun_ns, left_ns);
  }
  step.compute_ns = std::clamp<std::int64_t>(
      step.compute_ns, 0, std::max<std::int64_t>(step.duration_ns, 0));
  const LinkModel link = link_.now();
  const auto in = static_cast<double>(step.bytes_in);
  const auto out = static_cast<double>(step.bytes_out);
  const double transfer_ns =
      std::max({in / link.in_bytes_per_ns, out / link.out_bytes_per_ns,
                (in + out) / link.both_bytes_per_ns});
  step.bound_ns = static_cast<std::int64_t>(
      std::max(static_cast<double>(step.compute_ns), transfer_ns));
  // What was not compute was waiting, as far as copies can explain it.
  if (!last.knows_stall) step.stall_ns = static_cast<std::int64_t>(transfer_ns);
  step.stall_ns =
      std::min(step.stall_ns,
               std::max<std::int64_t>(0, step.duration_ns - step.compute_ns));
  return transfer_ns;
}

// ---- steps that are slow ---------------------------------------------------

Pager::SlowdownHook PagerImpl::slowdown_hook = nullptr;

void PagerImpl::setMaxSlowdown(std::optional<double> factor) {
  const Lock lock(*this);
  watch_.setLimit(factor);
}

// The steps that ended since, as far as the device has come.
void PagerImpl::watchSteps() {
  for (;;) {
    std::optional<StepMeter::Last> last;
    {
      const Lock lock(*this);
      last = meter_.takeNext();
    }
    if (!last) return;
    watchStep(*last);
  }
}

void PagerImpl::watchStep(StepMeter::Last& last) {
  StepFigures& step = last.figures;
  double transfer_ns = 0;
  // Estimates take time, and a step that moved nothing needs none.
  if (step.bytes_in + step.bytes_out > 0) transfer_ns = complete(last);
  const Lock lock(*this);
  const bool foreseen = kForeseen * step.forecast_misses <= step.ops;
  policy_->stepEnded(foreseen ? step.plan.get() : nullptr, step.duration_ns);
  const auto peak = counters_.peak_logical_bytes.load();
  std::optional<SlowdownReport> report =
      watch_.look({step, transfer_ns, static_cast<std::size_t>(peak),
                   admission_.budgetBytes(), policy_->plansAhead(), recompute_,
                   last.marked});
  if (report) slowdown_ = std::move(report);
}

Error PagerImpl::reportSlowdown() {
  std::optional<SlowdownReport> report;
  {
    const Lock lock(*this);
    report = std::exchange(slowdown_, std::nullopt);
  }
  if (!report) return {};
  if (report->too_slow) {
    return {runtime::ErrorCode::kTooSlow, std::move(report->message)};
  }
  if (slowdown_hook != nullptr) slowdown_hook(report->cause, report->message);
  return {};
}

// From the ops of the path that were timed; the step may be several rounds.
std::int64_t PagerImpl::computeEstimate(PathId path, const StepFigures& step) {
  timer_.collect();
  const std::optional<profiler::CycleMap> map =
      profiler::CycleBuilder(profiler_, durations_).build(path);
  if (!map || map->cycle.ops() == 0) return 0;
  double sum_ns = 0;
  for (const std::int64_t ns : map->cycle.duration_ns) {
    sum_ns += static_cast<double>(ns);
  }
  return static_cast<std::int64_t>(sum_ns /
                                   static_cast<double>(map->cycle.ops()) *
                                   static_cast<double>(step.ops));
}

// ---- the timeline ----------------------------------------------------------

void PagerImpl::recordTimeline(bool on) {
  durations_.sampleAll(on);
  if (on) {
    timeline_.start();
    return;
  }
  // What was begun shall be shown. A device that is lost shows what it did.
  (void)timelines_.synchronizeAll().ok();
  timer_.collect();
  timeline_.stop();
}

} // namespace chameleon::memory
