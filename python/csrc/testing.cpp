// torch_chameleon._testing: what tests do to the device and ask of it. Built
// only with CHAMELEON_TESTING, into the library of _C: one copy of all state,
// and nothing has to be exported. python/torch_chameleon/_testing.pyi is the
// interface with its comments.
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/utils/pybind.h>

#include "backend/runtime/fault_injection.h"
#include "backend/runtime/physical_device.h"
#include "backend/torch/device.h"
#include "backend/torch/error.h"
#include "backend/torch/storage.h"
#include "kernels/device_rules.h"
#include "kernels/lists/deferred_lists.h"
#include "kernels/op_traits.h"
#include "kernels/redirect.h"
#include "kernels/reruns/rerun_rules.h"
#include "kernels/simulated/kernel_memory.h"
#include "kernels/simulated/workspaces.h"
#include "python/csrc/late_backend.h"
#include "python/csrc/pagers.h"

namespace py = pybind11;

namespace chameleon::python {
namespace {

// To be changed, before the cpu runtime starts.
runtime::CpuRuntimeOptions unused_options(const char* what) {
  TORCH_CHECK(!backend::is_used(), what,
              ": the cpu runtime was started already");
  return {};
}

void bind_cpu_runtime(py::module_& m) {
  m.def("set_cpu_adversary", [](const std::string& text) {
    runtime::CpuRuntimeOptions options = unused_options("set_cpu_adversary");
    options.adversary =
        backend::value_or_throw(runtime::parse_cpu_adversary(text));
    runtime::set_cpu_runtime_options(std::move(options));
  });
  m.def("set_cpu_devices", [](int count) {
    TORCH_CHECK(!backend::is_used() && count >= 1,
                "set_cpu_devices: at least one, before the first use");
    runtime::CpuRuntimeOptions options;
    options.devices = count;
    runtime::set_cpu_runtime_options(std::move(options));
  });
  m.def("set_cpu_clock", [](const std::string& profile) {
    runtime::CpuRuntimeOptions options = unused_options("set_cpu_clock");
    options.clock =
        backend::value_or_throw(runtime::parse_gpu_profile(profile));
    runtime::set_cpu_runtime_options(std::move(options));
  });
}

runtime::FaultPoint fault_point(const std::string& name) {
  const auto point = runtime::find_fault_point(name);
  TORCH_CHECK_VALUE(point.has_value(), "no fault point is called '", name, "'");
  return *point;
}

void bind_faults(py::module_& m) {
  using runtime::FaultInjection;
  m.def("fault_points", [] {
    const auto names = runtime::fault_point_names();
    return std::vector<std::string>(names.begin(), names.end());
  });
  m.def("arm_fault",
        [](const std::string& point, std::uint64_t nth, bool for_ever) {
          FaultInjection::instance().arm(fault_point(point), nth, for_ever);
        });
  m.def("disarm_faults", [] { FaultInjection::instance().disarmAll(); });
  m.def("fault_passes", [](const std::string& point) {
    return FaultInjection::instance().passes(fault_point(point));
  });
}

void bind_kernel_memory(py::module_& m) {
  m.def("set_kernel_memory",
        [](const std::vector<
            std::tuple<std::uint64_t, int, std::size_t, std::uint32_t>>& rows) {
          using Event = kernels::simulated::KernelMemoryEvent;
          std::vector<Event> events;
          events.reserve(rows.size());
          for (const auto& [call, kind, bytes, allocation] : rows) {
            events.push_back(
                {call, static_cast<Event::Kind>(kind), bytes, allocation});
          }
          kernels::simulated::set_kernel_memory(std::move(events));
        });
  m.def("workspace_ops", &kernels::simulated::workspace_ops);
}

template <class Mode>
Mode named(const std::map<std::string, Mode>& modes, const std::string& name,
           const char* what) {
  const auto found = modes.find(name);
  if (found == modes.end()) {
    std::string allowed;
    for (const auto& [each, mode] : modes) {
      allowed += (allowed.empty() ? "" : ", ") + each;
    }
    throw py::value_error(std::string(what) + ": mode is one of " + allowed +
                          ", not '" + name + "'");
  }
  return found->second;
}

void bind_stress(py::module_& m) {
  m.def("set_stress", [](const std::string& mode, std::uint64_t seed) {
    using memory::Stress;
    const std::map<std::string, Stress> modes{{"never", Stress::kNever},
                                              {"all", Stress::kAll},
                                              {"random", Stress::kRandom}};
    const Stress chosen = named(modes, mode, "set_stress");
    pager(-1, "set_stress()").stress().setStress(chosen, seed);
  });
  m.def("set_drop_stress", [](const std::string& mode, std::uint64_t seed) {
    using memory::DropStress;
    const std::map<std::string, DropStress> modes{
        {"never", DropStress::kNever},
        {"record", DropStress::kRecord},
        {"all", DropStress::kAll},
        {"random", DropStress::kRandom}};
    const DropStress chosen = named(modes, mode, "set_drop_stress");
    pager(-1, "set_drop_stress()").stress().setDropStress(chosen, seed);
  });
  m.def("drop", [](const at::Tensor& tensor) {
    memory::Block* const block = block_of(tensor);
    return block != nullptr && block->pager->recomputer().drop(*block);
  });
  m.def("drop_all", [] { pager(-1, "drop_all()").recomputer().dropAll(); });
}

std::string_view residency_name(memory::BlockState state) {
  constexpr std::string_view kNames[] = {"unbacked", "resident", "host",
                                         "fetching", "evicting", "dropped"};
  return kNames[static_cast<std::size_t>(state)];
}

// (name, rule) of all redirected ops.
std::vector<std::pair<std::string, std::string>> rerun_rules() {
  std::vector<std::pair<std::string, std::string>> rules;
  for (const std::string& text : kernels::redirected_ops()) {
    const std::size_t dot = text.find('.', text.find("::"));
    const c10::OperatorHandle op =
        c10::Dispatcher::singleton().findSchemaOrThrow(
            text.substr(0, dot).c_str(),
            dot == std::string::npos ? "" : text.substr(dot + 1).c_str());
    rules.emplace_back(text, kernels::rerun_rule_name(kernels::rerun_rule(
                                 op, kernels::OpTraits(op))));
  }
  return rules;
}

void bind_state(py::module_& m) {
  m.def("block_state", [](const at::Tensor& tensor) {
    const memory::Block* const block = block_of(tensor);
    py::dict row;
    if (block == nullptr) return row;
    const std::uint64_t word = block->word.load();
    row["state"] = residency_name(memory::Block::stateOf(word));
    row["pins"] = block->pins();
    row["bytes"] = block->bytes.load();
    row["has_host_copy"] = (word & memory::Block::kHostCopyBit) != 0;
    return row;
  });
  m.def("forecast_costs", [] {
    memory::Pager& used = pager(-1, "forecast_costs()");
    const memory::PolicyCosts policy = used.policy().costs();
    const profiler::ProfilerState state = used.profiler().state();
    py::dict row;
    row["ops"] = state.path_ops; // of the step that is followed
    row["path_bytes"] = state.path_bytes;
    row["plan_bytes"] = policy.plan_bytes;
    row["plans_made"] = policy.plans_made;
    row["is_trying"] = policy.is_trying;
    row["live_block_bytes"] = state.live_block_bytes;
    row["lock_waits"] = state.lock_waits + used.meter().durations().lockWaits();
    return row;
  });
  m.def("deferred_op_count", &kernels::deferred_op_count);
  m.def("has_deferred_op", [](const at::Tensor& tensor) {
    const memory::Block* const block =
        backend::block_of(*tensor.storage().unsafeGetStorageImpl());
    return block != nullptr && block->has_deferred_op.load();
  });
  m.def("rerun_rules", &rerun_rules);
  m.def("writes_unannounced", &kernels::writes_unannounced);
  m.attr("metadata_bytes_per_block") =
      sizeof(memory::Block) + 2 * sizeof(memory::Extent);
}

PYBIND11_MODULE(_testing, m) {
  py::module_::import("torch.distributed"); // binds the base class
  py::class_<LateBackend, c10::intrusive_ptr<LateBackend>, c10d::Backend>(
      m, "LateBackend")
      .def(py::init([] { return c10::make_intrusive<LateBackend>(); }));
  bind_cpu_runtime(m);
  bind_faults(m);
  bind_kernel_memory(m);
  bind_stress(m);
  bind_state(m);
}

} // namespace
} // namespace chameleon::python
