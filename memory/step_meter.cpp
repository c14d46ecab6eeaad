#include "memory/step_meter.h"

#include <utility>

namespace chameleon::memory {

using runtime::Event;
using runtime::Moment;
using runtime::Stream;

StepMeter::~StepMeter() {
  drop(begin_);
  drop(end_);
}

// Where an event cannot be had the host's clock must do; a runtime that checks
// its callers runs compute on the host.
StepMeter::Boundary StepMeter::boundary(Stream stream) {
  Boundary made;
  if (!runtime_.checksCallers()) {
    runtime::Result<Event> event = runtime_.recordTimed(stream);
    if (event.ok()) made.event = *event;
  }
  made.time_ns = runtime_.now_ns();
  return made;
}

void StepMeter::drop(Boundary& boundary) noexcept {
  if (!boundary.event.complete()) runtime_.destroy(boundary.event);
  boundary = {};
}

std::optional<Moment> StepMeter::momentOf(const Boundary& boundary) {
  if (boundary.event.complete()) return Moment{boundary.time_ns, {}};
  return runtime_.momentOf(boundary.event);
}

void StepMeter::begin(Stream stream) { end_ = boundary(stream); }

void StepMeter::ended(Stream stream, Position position,
                      const StepCounts& counts, bool marked,
                      profiler::PathId path, PlanPtr plan) {
  const std::int64_t ops = counts.ops - end_.counts.ops;
  if (ops < (marked ? 1 : kShortest)) return;
  drop(begin_);
  begin_ = std::exchange(end_, boundary(stream));
  end_.counts = counts;
  end_.position = position;
  measured_ = true;
  path_ = path;
  plan_ = std::move(plan);
}

void StepMeter::rebase(const StepCounts& counts) noexcept {
  for (StepCounts* own : {&begin_.counts, &end_.counts}) {
    own->stall_ns -= counts.stall_ns;
    own->bytes_in -= counts.bytes_in;
    own->bytes_out -= counts.bytes_out;
  }
}

std::optional<Position> StepMeter::end() const noexcept {
  if (!measured_) return std::nullopt;
  return end_.position;
}

std::optional<StepMeter::Last> StepMeter::last() {
  if (!measured_) return std::nullopt;
  const std::optional<Moment> begin = momentOf(begin_);
  const std::optional<Moment> end = momentOf(end_);
  if (!begin || !end) return std::nullopt;
  Last last;
  StepFigures& step = last.figures;
  const StepCounts& from = begin_.counts;
  const StepCounts& to = end_.counts;
  step.duration_ns = end->time_ns - begin->time_ns;
  step.compute_ns = end->compute.busy_ns - begin->compute.busy_ns;
  step.stall_ns = to.stall_ns - from.stall_ns;
  last.knows_compute = step.compute_ns > 0;
  if (last.knows_compute) {
    step.stall_ns = end->compute.stalled_ns - begin->compute.stalled_ns;
  }
  step.bytes_in = to.bytes_in - from.bytes_in;
  step.bytes_out = to.bytes_out - from.bytes_out;
  step.ops = to.ops - from.ops;
  step.forecast_misses = to.forecast_misses - from.forecast_misses;
  step.forecast_hits = step.ops - step.forecast_misses;
  step.plan = plan_;
  last.path = path_;
  return last;
}

} // namespace chameleon::memory
