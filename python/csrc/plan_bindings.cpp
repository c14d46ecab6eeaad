#include "python/csrc/plan_bindings.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "backend/runtime/machine_memory.h"
#include "backend/runtime/options.h"
#include "backend/runtime/simulated/gpu_profiles.h"
#include "backend/torch/deferred_work.h"
#include "backend/torch/error.h"
#include "kernels/simulated/facts.h"
#include "kernels/simulated/reads.h"
#include "memory/policy/what_if.h"
#include "profiler/trace/trace_reader.h"
#include "python/csrc/profiler_bindings.h"

namespace py = pybind11;

namespace chameleon::python {
namespace {

py::dict step_row(const memory::ModelledStep& step) {
  py::dict row;
  row["duration_ns"] = step.duration_ns;
  row["bytes_in"] = step.bytes_in;
  row["bytes_out"] = step.bytes_out;
  row["compute_ns"] = step.compute_ns; // of ops that run again, too
  return row;
}

py::list step_rows(const memory::WhatIf& answer) {
  py::list steps;
  for (const memory::ModelledStep& step : answer.steps) {
    steps.append(step.duration_ns == 0 ? py::object(py::none())
                                       : py::object(step_row(step)));
  }
  return steps;
}

py::dict answer_row(const memory::WhatIf& answer) {
  py::dict row;
  row["peak_bytes"] = answer.peak_bytes;
  row["largest_op_bytes"] = answer.largest_op;
  row["compute_ns"] = answer.compute_ns;
  row["steps"] = step_rows(answer);
  return row;
}

py::dict what_if(const std::string& path,
                 const std::vector<std::uint64_t>& budgets,
                 double link_factor) {
  profiler::Trace trace;
  memory::WhatIf result;
  {
    const py::gil_scoped_release no_gil;
    trace = backend::value_or_throw(profiler::read_trace_file(path));
    result =
        backend::value_or_throw(memory::what_if(trace, budgets, link_factor));
  }
  py::dict row = answer_row(result);
  row["largest_op"] =
      trace.ops.empty() ? "" : trace.ops[result.largest_op_at].op;
  return row;
}

// The same of the last step that ended on a device, with the plans that would
// be followed there. `choose` is given what is known without a budget, and
// returns the budgets to ask about.
py::dict what_if_here(c10::DeviceIndex index, const py::function& choose) {
  std::optional<LastCycle> last;
  memory::LinkModel link;
  const auto within = [&](const std::vector<std::uint64_t>& budgets) {
    const py::gil_scoped_release no_gil;
    return memory::what_if(
        last->map, link, runtime::option_text("recompute") == "auto", budgets);
  };
  {
    const py::gil_scoped_release no_gil;
    last.emplace(last_cycle(index));
    link = last->device.pager->meter().link().now();
  }
  py::dict row = answer_row(within({}));
  constexpr double kPerSecond = 1e9;
  row["link_in_bytes_per_s"] = link.in_bytes_per_ns * kPerSecond;
  row["link_out_bytes_per_s"] = link.out_bytes_per_ns * kPerSecond;
  row["steps"] =
      step_rows(within(choose(row).cast<std::vector<std::uint64_t>>()));
  return row;
}

py::dict profile_row(const runtime::GpuProfile& profile) {
  py::dict row;
  row["name"] = profile.name;
  row["product"] = profile.product;
  row["capability"] =
      std::pair(profile.capability.major, profile.capability.minor);
  row["multiprocessors"] = profile.multiprocessors;
  row["memory_bytes"] = profile.memory_bytes;
  row["host_memory_bytes"] = profile.host_memory_bytes;
  row["link_in_bytes_per_s"] = profile.link_in_bytes_per_s;
  row["link_out_bytes_per_s"] = profile.link_out_bytes_per_s;
  row["nvlink_bytes_per_s"] = profile.nvlink_bytes_per_s;
  row["peer_access"] = profile.peer_access;
  row["network_bytes_per_s"] = profile.network_bytes_per_s;
  return row;
}

std::vector<py::dict> gpu_profiles() {
  std::vector<py::dict> rows;
  for (const runtime::GpuProfile& profile : runtime::gpu_profiles()) {
    rows.push_back(profile_row(profile));
  }
  return rows;
}

py::dict gpu_profile(const std::string& text) {
  return profile_row(backend::value_or_throw(runtime::parse_gpu_profile(text)));
}

std::pair<std::size_t, std::size_t> machine_memory(const std::string& root) {
  const runtime::MemoryInfo memory = runtime::machine_memory(root);
  return {memory.total_bytes, memory.free_bytes};
}

// Leaked, as the interpreter may end before the device does.
py::object* guess_callback = nullptr;

void tell_of_guess(bool known) {
  const py::gil_scoped_acquire gil;
  (*guess_callback)(known);
}

// Calls `told` with each size that depends on values: whether something is
// known of them.
void on_guessed_size(py::object told) {
  guess_callback = new py::object(std::move(told));
  kernels::simulated::set_guess_listener(&tell_of_guess);
}

py::object* read_callback = nullptr;

void tell_of_read() {
  const py::gil_scoped_acquire gil;
  (*read_callback)();
}

// Calls `told` where something reads zeros of which nothing is known.
void on_unknown_read(py::object told) {
  read_callback = new py::object(std::move(told));
  kernels::simulated::set_read_listener(&tell_of_read);
}

// What a tensor without values stands for, on the CPU; None: nobody knows.
std::optional<at::Tensor> known_values(const at::Tensor& tensor) {
  backend::finish_deferred_work();
  at::Tensor values =
      at::empty(tensor.sizes(), tensor.options().device(at::kCPU));
  if (!kernels::simulated::fill_known(tensor, values)) return std::nullopt;
  return values;
}

} // namespace

void bind_plan(py::module_& m) {
  m.def("what_if", &what_if);
  m.def("what_if_here", &what_if_here);
  m.def("gpu_profiles", &gpu_profiles);
  m.def("gpu_profile", &gpu_profile);
  m.def("on_guessed_size", &on_guessed_size);
  m.def("on_unknown_read", &on_unknown_read);
  m.def("known_values", &known_values);
  m.def("machine_memory", &machine_memory, py::arg("root") = "");
}

} // namespace chameleon::python
