#include "memory/figures/meter.h"

#include <algorithm>
#include <utility>

#include "profiler/cycle_builder.h"

namespace chameleon::memory {

using profiler::PathId;
using runtime::Error;

namespace {

// A step went as its plan foresaw where one op in so many, at most, was
// another.
constexpr std::int64_t kForeseen = 64;
// Host memory that is given back at the end of one step, at most: the driver
// takes some milliseconds for a slab.
constexpr std::size_t kGivenBackBytes = std::size_t{1} << 30;

} // namespace

Meter::SlowdownHook Meter::slowdown_hook = nullptr;

Meter::Meter(PagerCore& core)
    : core_(core),
      timer_(core.runtime, durations_, timeline_),
      link_(durations_, core.runtime.link(), &mirror_rate_),
      exchanges_(core.runtime),
      meter_(core.runtime, exchanges_),
      watch_(core.device_index) {}

void Meter::startTiming(CallState& call, const OpRequest& request) {
  const OpIdentity& identity = *request.identity;
  call.timing = timer_.opWaits(request.stream, identity.name, identity.whole(),
                               call.tick);
  if (call.timing == nullptr) return;
  if (request.kind.is_exchange) call.timing->lane = profiler::Lane::kExchanges;
  call.timing->bytes_in = static_cast<std::uint64_t>(core_.counters.bytes_in);
  call.timing->bytes_out = static_cast<std::uint64_t>(core_.counters.bytes_out);
}

void Meter::startRerunTiming(CallState& call, const OpRequest& request) {
  call.timing = timer_.opWaits(request.stream, request.rerun_name, /*token=*/0,
                               call.tick);
  if (call.timing != nullptr) call.timing->lane = profiler::Lane::kReruns;
}

void Meter::beginTiming(CallState& call) {
  OpTiming& op = *call.timing;
  op.bytes_in =
      static_cast<std::uint64_t>(core_.counters.bytes_in) - op.bytes_in;
  op.bytes_out =
      static_cast<std::uint64_t>(core_.counters.bytes_out) - op.bytes_out;
  timer_.opBegins(core_.streams.stream(call.stream), op);
}

void Meter::endTiming(CallState& call) {
  const std::unique_ptr<OpTiming> op = std::move(call.timing);
  timer_.opEnded(core_.streams.stream(call.stream), *op,
                 call.operand_bytes + call.adopted_bytes);
}

void Meter::beginWait(const CallState& call, const Fence& waits,
                      std::optional<ExchangeSpan>& span) {
  if (!exchanges_.sawAny() || core_.runtime.checksCallers()) return;
  const auto& positions = waits.slots();
  const auto waits_for = [&positions](auto&& is_such) {
    return std::any_of(positions.begin(), positions.end(),
                       [&is_such](Position position) {
                         return !position.none() && is_such(position.stream());
                       });
  };
  const bool for_bytes =
      waits_for([](StreamIndex stream) { return stream < kFirstCompute; });
  const runtime::Stream stream = core_.streams.stream(call.stream);
  if (call.stream != step_stream_.load(std::memory_order_relaxed)) {
    if (for_bytes) span.emplace(exchanges_, ExchangePart::kFetches, stream);
  } else if (!for_bytes && waits_for([this](StreamIndex other) {
               return exchanges_.ranOn(core_.streams.stream(other));
             })) {
    span.emplace(exchanges_, ExchangePart::kWaits, stream);
  }
}

StepCounts Meter::counts() const noexcept {
  const profiler::RunCounts seen = core_.profiler.counts();
  StepCounts counts;
  counts.stall_ns = core_.counters.stall_ns.load(std::memory_order_relaxed);
  counts.bytes_in = core_.counters.bytes_in.load(std::memory_order_relaxed);
  counts.bytes_out = core_.counters.bytes_out.load(std::memory_order_relaxed);
  counts.mirror_bytes_out =
      core_.counters.mirror_bytes_out.load(std::memory_order_relaxed);
  counts.rerun_ns = core_.counters.rerun_ns.load(std::memory_order_relaxed);
  counts.ops = static_cast<std::int64_t>(seen.ops);
  counts.forecast_misses = static_cast<std::int64_t>(seen.forecast_misses);
  return counts;
}

StepCounts Meter::countsAtEnd(const Locked& /*locked*/) {
  HostPool& host = *core_.host_pool;
  StepCounts now = counts();
  mirror_rate_.stepEnded();
  const std::size_t peak_bytes = host.takeStepPeak();
  now.host_bytes = static_cast<std::int64_t>(peak_bytes);
  host_need_.stepEnded(peak_bytes);
  host.giveBackUnneeded(host_need_.bytes(), kGivenBackBytes);
  return now;
}

Error Meter::stepEnded(const CallState& call) {
  steps_seen_.store(core_.profiler.steps(), std::memory_order_relaxed);
  // Loops of a few ops end steps all the time.
  if (core_.profiler.opCount() - step_begin_.load(std::memory_order_relaxed) >
      std::uint64_t{StepMeter::kShortest}) {
    {
      const PagerLock locked(core_);
      const profiler::RunCounts seen = core_.profiler.counts();
      step_begin_.store(seen.ops - 1, std::memory_order_relaxed);
      step_stream_.store(call.stream, std::memory_order_relaxed);
      StepCounts now = countsAtEnd(locked);
      now.ops -= 1;
      now.forecast_misses -= call.ticket.expected ? 0 : 1;
      meter_.ended(core_.streams.stream(call.stream),
                   core_.streams.advance(call.stream), now, /*marked=*/false,
                   seen.last_path, core_.policy->plan());
    }
    watchSteps();
  }
  return reportSlowdown();
}

void Meter::step(runtime::Stream stream) {
  core_.profiler.step();
  {
    const PagerLock locked(core_);
    const profiler::RunCounts seen = core_.profiler.counts();
    step_begin_.store(seen.ops, std::memory_order_relaxed);
    const StreamIndex index = core_.streams.indexOf(stream);
    step_stream_.store(index, std::memory_order_relaxed);
    meter_.ended(stream, core_.streams.advance(index), countsAtEnd(locked),
                 /*marked=*/true, seen.last_path, core_.policy->plan());
  }
  watchSteps();
  const PagerLock locked(core_);
  // Else the next op comes to report.
  if (!slowdown_) {
    steps_seen_.store(core_.profiler.steps(), std::memory_order_relaxed);
  }
}

std::optional<StepFigures> Meter::lastStep() {
  std::optional<StepMeter::Last> last;
  while (!last) {
    std::optional<Position> end;
    {
      const PagerLock locked(core_);
      end = meter_.end();
    }
    if (!end) return std::nullopt;
    if (core_.streams.synchronize(*end)) return std::nullopt; // device lost
    const PagerLock locked(core_);
    last = meter_.last();
  }
  (void)complete(*last);
  return std::move(last->figures);
}

// What the meter does not know.
double Meter::complete(StepMeter::Last& last) {
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
  const auto out = static_cast<double>(step.bytes_out + step.mirror_bytes_out);
  const double transfer_ns =
      std::max({in / link.in_bytes_per_ns, out / link.out_bytes_per_ns,
                (in + out) / link.both_bytes_per_ns});
  step.bound_ns = static_cast<std::int64_t>(
      std::max(static_cast<double>(step.compute_ns), transfer_ns));
  // What was not compute was waiting, as far as copies can explain it.
  if (!last.knows_stall) step.stall_ns = static_cast<std::int64_t>(transfer_ns);
  const std::int64_t no_compute_ns =
      std::max<std::int64_t>(0, step.duration_ns - step.compute_ns);
  step.exposed_ns = std::min(step.exposed_ns, no_compute_ns);
  step.stall_ns = std::min(step.stall_ns, no_compute_ns - step.exposed_ns);
  return transfer_ns;
}

void Meter::setMaxSlowdown(std::optional<double> factor) {
  const PagerLock locked(core_);
  watch_.setLimit(factor);
}

// The steps that ended since, as far as the device has come.
void Meter::watchSteps() {
  timer_.collect();
  for (;;) {
    std::optional<StepMeter::Last> last;
    {
      const PagerLock locked(core_);
      last = meter_.takeNext();
    }
    if (!last) return;
    watchStep(*last);
  }
}

void Meter::watchStep(StepMeter::Last& last) {
  StepFigures& step = last.figures;
  double transfer_ns = 0;
  // Estimates take time, and a step that moved nothing needs none.
  if (step.bytes_in + step.bytes_out + step.mirror_bytes_out > 0) {
    transfer_ns = complete(last);
  }
  const PagerLock locked(core_);
  const bool foreseen = kForeseen * step.forecast_misses <= step.ops;
  core_.policy->stepEnded(foreseen ? step.plan.get() : nullptr,
                          step.duration_ns - step.exposed_ns);
  const auto peak = core_.counters.peak_logical_bytes.load();
  std::optional<SlowdownReport> report =
      watch_.look({step, transfer_ns, static_cast<std::size_t>(peak),
                   core_.admission.budgetBytes(), core_.policy->plansAhead(),
                   core_.limits.recompute, last.marked});
  if (report) slowdown_ = std::move(report);
}

Error Meter::reportSlowdown() {
  std::optional<SlowdownReport> report;
  {
    const PagerLock locked(core_);
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
std::int64_t Meter::computeEstimate(PathId path, const StepFigures& step) {
  timer_.collect();
  const std::optional<profiler::CycleMap> map =
      profiler::CycleBuilder(core_.profiler, durations_).build(path);
  if (!map || map->cycle.ops() == 0) return 0;
  double sum_ns = 0;
  for (const std::int64_t ns : map->cycle.duration_ns) {
    sum_ns += static_cast<double>(ns);
  }
  return static_cast<std::int64_t>(sum_ns /
                                   static_cast<double>(map->cycle.ops()) *
                                   static_cast<double>(step.ops));
}

void Meter::recordTimeline(bool on) {
  durations_.sampleAll(on);
  if (on) {
    timeline_.start();
    return;
  }
  // What was begun shall be shown. A device that is lost shows what it did.
  (void)core_.streams.synchronizeAll().ok();
  timer_.collect();
  timeline_.stop();
}

} // namespace chameleon::memory
