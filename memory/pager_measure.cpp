// Figures for users and for the planner: ops that are timed, steps, the link.
// Nothing here is on the path of an op that is not timed.
#include <algorithm>
#include <utility>

#include "memory/pager_impl.h"
#include "profiler/cycle_builder.h"

namespace chameleon::memory {

using profiler::PathId;

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
  counts.ops = static_cast<std::int64_t>(seen.ops);
  counts.forecast_misses = static_cast<std::int64_t>(seen.forecast_misses);
  return counts;
}

// The profiler saw a step end. The call's op is the first one after it.
void PagerImpl::stepEnded(const Call& call) {
  steps_seen_.store(profiler_.steps(), std::memory_order_relaxed);
  // Loops of a few ops end steps all the time.
  if (profiler_.opCount() - step_begin_.load(std::memory_order_relaxed) <=
      std::uint64_t{StepMeter::kShortest}) {
    return;
  }
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

void PagerImpl::step(runtime::Stream stream) {
  profiler_.step();
  const Lock lock(*this);
  const profiler::RunCounts seen = profiler_.counts();
  steps_seen_.store(seen.steps, std::memory_order_relaxed);
  step_begin_.store(seen.ops, std::memory_order_relaxed);
  const StreamIndex index = timelines_.indexOf(stream);
  meter_.ended(stream, timelines_.advance(index), stepCounts(),
               /*marked=*/true, seen.last_path, policy_->plan());
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
  StepFigures& step = last->figures;
  if (!last->knows_compute) step.compute_ns = computeEstimate(last->path, step);
  const LinkModel link = link_.now();
  const auto in = static_cast<double>(step.bytes_in);
  const auto out = static_cast<double>(step.bytes_out);
  step.bound_ns = static_cast<std::int64_t>(std::max(
      {static_cast<double>(step.compute_ns), in / link.in_bytes_per_ns,
       out / link.out_bytes_per_ns, (in + out) / link.both_bytes_per_ns}));
  return std::move(step);
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
