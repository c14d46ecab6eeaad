#include "memory/figures/step_meter.h"

#include <utility>

namespace chameleon::memory {

using runtime::Stream;

StepMeter::~StepMeter() {
  for (Boundary& boundary : boundaries_) giveBack(boundary);
}

void StepMeter::giveBack(Boundary& boundary) noexcept {
  give_back(runtime_, boundary.point);
  exchanges_.giveBack(boundary.exchanges);
}

// Where an event cannot be had the host's clock must do.
StepMeter::Boundary StepMeter::boundary(Stream stream) {
  Boundary made;
  made.point = take_point(runtime_, stream);
  if (!made.point.taken) made.point = {true, {}, {runtime_.now_ns(), {}}};
  made.on_host = made.point.event.complete();
  return made;
}

void StepMeter::begin(Stream stream) {
  boundaries_.push_back(boundary(stream));
}

void StepMeter::ended(Stream stream, Position position,
                      const StepCounts& counts, bool marked,
                      profiler::PathId path, PlanPtr plan) {
  const std::int64_t ops = counts.ops - boundaries_.back().counts.ops;
  if (ops < (marked ? 1 : kShortest)) return;
  Boundary& end = boundaries_.emplace_back(boundary(stream));
  end.counts = counts;
  end.position = position;
  end.marked = marked;
  end.path = path;
  end.plan = std::move(plan);
  end.stream = stream;
  end.exchanges = exchanges_.take();
  trim();
}

void StepMeter::trim() noexcept {
  if (boundaries_.size() > untaken_ + kMaxUntaken) {
    untaken_ = boundaries_.size() - kMaxUntaken;
  }
  while (untaken_ > 1 && boundaries_.size() > 2) {
    giveBack(boundaries_.front());
    boundaries_.pop_front();
    --untaken_;
  }
}

void StepMeter::rebase(const StepCounts& counts) noexcept {
  for (Boundary& boundary : boundaries_) {
    boundary.counts.stall_ns -= counts.stall_ns;
    boundary.counts.bytes_in -= counts.bytes_in;
    boundary.counts.bytes_out -= counts.bytes_out;
    boundary.counts.mirror_bytes_out -= counts.mirror_bytes_out;
    boundary.counts.rerun_ns -= counts.rerun_ns;
  }
}

std::optional<Position> StepMeter::end() const noexcept {
  if (!measured()) return std::nullopt;
  return boundaries_.back().position;
}

std::optional<StepMeter::Last> StepMeter::last() {
  if (!measured()) return std::nullopt;
  return stepAt(boundaries_.size() - 1);
}

std::optional<StepMeter::Last> StepMeter::takeNext() {
  if (untaken_ >= boundaries_.size()) return std::nullopt;
  std::optional<Last> step = stepAt(untaken_);
  if (!step) return std::nullopt;
  ++untaken_;
  trim();
  return step;
}

std::optional<StepMeter::Last> StepMeter::stepAt(std::size_t index) {
  Boundary& from = boundaries_[index - 1];
  Boundary& to = boundaries_[index];
  if (!resolve(runtime_, from.point) || !resolve(runtime_, to.point)) {
    return std::nullopt;
  }
  const runtime::Moment& begin = from.point.moment;
  const runtime::Moment& end = to.point.moment;
  Last last;
  StepFigures& step = last.figures;
  step.duration_ns = end.time_ns - begin.time_ns;
  step.compute_ns = end.compute.busy_ns - begin.compute.busy_ns;
  step.stall_ns = to.counts.stall_ns - from.counts.stall_ns;
  last.knows_compute = step.compute_ns > 0;
  last.knows_stall = last.knows_compute || to.on_host;
  if (last.knows_compute) {
    step.stall_ns = end.compute.stalled_ns - begin.compute.stalled_ns;
  }
  const ExchangeMeter::Times exchanges =
      exchanges_.timesOf(to.exchanges, to.stream);
  step.exchange_ns = exchanges.runs_ns;
  step.exposed_ns = exchanges.exposed_ns;
  step.stall_ns += exchanges.waits_ns - exchanges.exposed_ns;
  step.bytes_in = to.counts.bytes_in - from.counts.bytes_in;
  step.bytes_out = to.counts.bytes_out - from.counts.bytes_out;
  step.mirror_bytes_out =
      to.counts.mirror_bytes_out - from.counts.mirror_bytes_out;
  step.rerun_ns = to.counts.rerun_ns - from.counts.rerun_ns;
  step.host_bytes = to.counts.host_bytes;
  step.ops = to.counts.ops - from.counts.ops;
  step.forecast_misses =
      to.counts.forecast_misses - from.counts.forecast_misses;
  step.forecast_hits = step.ops - step.forecast_misses;
  step.plan = to.plan;
  last.path = to.path;
  last.marked = to.marked;
  return last;
}

} // namespace chameleon::memory
