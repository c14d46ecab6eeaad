#include "python/csrc/profiler_bindings.h"

#include <string>
#include <utility>

#include "backend/torch/deferred_work.h"
#include "backend/torch/error.h"
#include "backend/torch/stream.h"
#include "profiler/op_names.h"
#include "profiler/timeline/timeline_writer.h"
#include "profiler/trace/trace.h"
#include "profiler/trace/trace_writer.h"

namespace py = pybind11;

namespace chameleon::python {
namespace {

using backend::DeviceContext;
using backend::resolve_index;
using profiler::kNone;

constexpr char kNoStep[] =
    "torch_chameleon.profiler: no step has ended yet; one ends with an "
    "optimizer's step, with a backward pass, or where ops repeat: run a few";

constexpr char kNoPlan[] =
    "torch_chameleon.profiler: no plan was made yet; run some steps first";

// Null: the device was not used. What is deferred belongs to a step to come.
DeviceContext* used(c10::DeviceIndex index) {
  return backend::context_if_used(resolve_index(index));
}

void add_shares(py::dict& row, const memory::ByteShares& shares) {
  row["kept_bytes"] = shares.kept_bytes;
  row["moved_bytes"] = shares.moved_bytes;
  row["rerun_bytes"] = shares.rerun_bytes;
  row["rerun_ops"] = shares.rerun_ops;
}

py::object plan_row(const memory::Plan* plan) {
  if (plan == nullptr) return py::none();
  const memory::ModelledStep& modelled = plan->modelled;
  py::dict row;
  row["hbm_budget"] = plan->budget_bytes;
  row["actions"] = plan->actions.size();
  row["modelled_duration_ns"] = static_cast<std::int64_t>(modelled.duration_ns);
  row["modelled_mirror_ns"] = static_cast<std::int64_t>(modelled.mirror_ns);
  row["modelled_bytes_in"] = modelled.bytes_in;
  row["modelled_bytes_out"] = modelled.bytes_out;
  add_shares(row, plan->shares.all);
  py::list layers;
  for (const memory::PlanShares::Layer& layer : plan->shares.layers) {
    py::dict part;
    part["first_op"] = layer.first_op;
    part["ops"] = layer.end_op - layer.first_op;
    add_shares(part, layer.shares);
    layers.append(std::move(part));
  }
  row["layers"] = std::move(layers);
  return row;
}

py::dict last_step(c10::DeviceIndex index) {
  std::optional<memory::StepFigures> figures;
  if (DeviceContext* device = used(index)) {
    const py::gil_scoped_release no_gil;
    figures = device->pager->meter().lastStep();
  }
  TORCH_CHECK(figures, kNoStep);
  py::dict row;
  row["duration_ns"] = figures->duration_ns;
  row["compute_ns"] = figures->compute_ns;
  row["stall_ns"] = figures->stall_ns;
  row["collective_ns"] = figures->exchange_ns;
  row["collective_wait_ns"] = figures->exposed_ns;
  row["other_ns"] = figures->duration_ns - figures->compute_ns -
                    figures->stall_ns - figures->exposed_ns;
  row["bytes_in"] = figures->bytes_in;
  row["bytes_out"] = figures->bytes_out;
  row["mirror_bytes_out"] = figures->mirror_bytes_out;
  row["bound_ns"] = figures->bound_ns;
  row["host_bytes"] = figures->host_bytes;
  row["ops"] = figures->ops;
  row["forecast_hits"] = figures->forecast_hits;
  row["forecast_misses"] = figures->forecast_misses;
  row["plan"] = plan_row(figures->plan.get());
  return row;
}

py::object op_name(std::uint32_t op) {
  if (op == kNone) return py::none();
  return py::str(std::string(profiler::op_names().name(op)));
}

py::object divergence_row(const profiler::Divergence& divergence) {
  if (divergence.kind == profiler::DivergenceKind::kNever) return py::none();
  py::dict row;
  row["kind"] = profiler::to_string(divergence.kind);
  row["step"] = divergence.step;
  row["op"] = divergence.op;
  row["position"] = divergence.position;
  row["expected"] = op_name(divergence.expected_op);
  row["seen"] = op_name(divergence.seen_op);
  return row;
}

py::dict profiler_state(c10::DeviceIndex index) {
  profiler::ProfilerState state; // before first use: nothing
  if (DeviceContext* device = used(index)) {
    state = device->pager->profiler().state();
  }
  py::dict history;
  history["sequences"] = state.paths;
  history["ops"] = state.recorded_ops;
  history["bytes"] = state.memory_bytes;
  history["limit_bytes"] = state.limit_bytes;
  history["dropped_sequences"] = state.dropped_paths;
  py::dict matching;
  matching["state"] = profiler::to_string(state.matching);
  matching["sequence"] = state.path;
  matching["position"] = state.position;
  matching["length"] = state.path_ops;
  matching["marked_steps"] = state.marked;
  py::dict row;
  row["history"] = history;
  row["matching"] = matching;
  row["divergences"] = state.divergences;
  row["last_divergence"] = divergence_row(state.last_divergence);
  return row;
}

profiler::TraceHeader header_of(const DeviceContext& device) {
  const memory::LinkModel link = device.pager->meter().link().now();
  constexpr double kPerSecond = 1e9;
  profiler::TraceHeader header;
  header.name = std::string(device.runtime->name());
  header.hbm_budget_bytes = device.pager->hbmBudget();
  header.in_bytes_per_second = link.in_bytes_per_ns * kPerSecond;
  header.out_bytes_per_second = link.out_bytes_per_ns * kPerSecond;
  header.both_bytes_per_second = link.both_bytes_per_ns * kPerSecond;
  header.copy_latency_ns = static_cast<std::int64_t>(link.latency_ns);
  return header;
}

void export_trace(c10::DeviceIndex index, const std::string& path) {
  const py::gil_scoped_release no_gil;
  const LastCycle last = last_cycle(index);
  const profiler::Trace trace = profiler::make_trace(
      last.map, profiler::op_names(), header_of(last.device));
  backend::throw_if(profiler::write_file(path, profiler::write_trace(trace)));
}

// Text for a file, and how many plans that is.
std::pair<std::string, std::size_t> saved_plans(c10::DeviceIndex index) {
  const py::gil_scoped_release no_gil;
  DeviceContext* const device = used(index);
  TORCH_CHECK(device != nullptr, kNoPlan);
  const memory::SavedPlans plans = device->pager->policy().savedPlans();
  TORCH_CHECK(plans.size() > 0, kNoPlan);
  return {plans.text(), plans.size()};
}

std::vector<profiler::Interval> intervals_of(c10::DeviceIndex index) {
  DeviceContext* const device = used(index);
  if (device == nullptr) return {};
  backend::throw_if(device->pager->synchronize());
  return device->pager->meter().timeline().intervals();
}

// (lane, op, begin, end, bytes, what, call), in the order of their ends.
py::list timeline(c10::DeviceIndex index) {
  std::vector<profiler::Interval> intervals;
  {
    const py::gil_scoped_release no_gil;
    intervals = intervals_of(index);
  }
  py::list rows;
  for (const profiler::Interval& interval : intervals) {
    rows.append(py::make_tuple(profiler::lane_name(interval.lane),
                               op_name(interval.op), interval.begin_ns,
                               interval.end_ns, interval.bytes, interval.what,
                               interval.call));
  }
  return rows;
}

void export_timeline(c10::DeviceIndex index, const std::string& path) {
  const py::gil_scoped_release no_gil;
  const std::vector<profiler::Interval> intervals = intervals_of(index);
  TORCH_CHECK(!intervals.empty(),
              "torch_chameleon.profiler: no timeline was recorded; call "
              "torch_chameleon.profiler.record_timeline() before the steps it "
              "shall show");
  backend::throw_if(profiler::write_file(
      path, profiler::write_timeline(intervals, profiler::op_names())));
}

} // namespace

LastCycle last_cycle(c10::DeviceIndex index) {
  DeviceContext* const device = used(index);
  std::optional<profiler::CycleMap> map;
  if (device != nullptr) {
    backend::throw_if(device->pager->synchronize()); // how long ops took
    device->pager->trim(); // what died lately is heard of
    profiler::Profiler& profiler = device->pager->profiler();
    map = profiler::CycleBuilder(profiler, device->pager->meter().durations())
              .buildLast();
  }
  TORCH_CHECK(map, kNoStep);
  return {*device, std::move(*map)};
}

void bind_profiler(py::module_& m) {
  m.def("step", [](c10::DeviceIndex index) {
    if (auto* device = backend::context_if_used(resolve_index(index))) {
      device->pager->meter().step(backend::current_stream(device->index));
    }
  });
  m.def("last_step", &last_step);
  m.def("profiler_state", &profiler_state);
  m.def("export_trace", &export_trace);
  m.def("saved_plans", [](c10::DeviceIndex index) {
    auto [text, count] = saved_plans(index);
    return py::make_tuple(py::bytes(text), count);
  });
  m.def("load_plans", [](c10::DeviceIndex index, const std::string& text) {
    return backend::value_or_throw(
        backend::context(resolve_index(index), "load_plans()")
            .pager->policy()
            .loadPlans(text));
  });
  m.def("record_timeline", [](c10::DeviceIndex index, bool enabled) {
    const py::gil_scoped_release no_gil;
    backend::finish_deferred_work();
    backend::context(resolve_index(index), "record_timeline()")
        .pager->meter()
        .recordTimeline(enabled);
  });
  m.def("timeline", &timeline);
  m.def("export_timeline", &export_timeline);
}

} // namespace chameleon::python
