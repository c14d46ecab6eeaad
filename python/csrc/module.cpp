// torch_chameleon._C: bindings without logic. python/torch_chameleon/_C.pyi is
// the interface with its comments.
#include <utility>

#include <ATen/core/Tensor.h>
#include <torch/csrc/utils/pybind.h>

#include "backend/runtime/fault_injection.h"
#include "backend/runtime/options.h"
#include "backend/runtime/physical_device.h"
#include "backend/torch/deferred_work.h"
#include "backend/torch/device.h"
#include "backend/torch/error.h"
#include "backend/torch/first_use.h"
#include "backend/torch/generator.h"
#include "backend/torch/storage.h"
#include "chameleon_version.h"
#include "kernels/deferred_lists.h"
#include "kernels/device_rules.h"
#include "kernels/late_ops.h"
#include "kernels/native_view.h"
#include "kernels/redirect.h"
#include "kernels/rerun_rules.h"
#include "kernels/simulated/kernel_memory.h"
#include "kernels/simulated/workspaces.h"
#include "python/csrc/allocation_history.h"
#include "python/csrc/cuda_alias.h"
#include "python/csrc/cuda_init.h"
#include "python/csrc/kineto_profiler.h"
#include "python/csrc/phase_hooks.h"
#include "python/csrc/plan_bindings.h"
#include "python/csrc/profiler_bindings.h"
#include "python/csrc/profiler_stubs.h"
#include "python/csrc/set_data.h"
#include "python/csrc/slowdown.h"
#include "python/csrc/wait_hooks.h"

namespace py = pybind11;

namespace chameleon {
namespace {

using backend::context;
using backend::resolve_index;

memory::Pager& pager(c10::DeviceIndex index, const char* what) {
  backend::try_finish_deferred_work();
  return *context(resolve_index(index), what).pager;
}

// Null: not used yet.
memory::Pager* pager_if_used(c10::DeviceIndex index) {
  backend::try_finish_deferred_work();
  auto* const used = backend::context_if_used(resolve_index(index));
  return used == nullptr ? nullptr : used->pager;
}

constexpr std::string_view kKindNames[] = {"bytes", "number", "choice", "text"};

std::vector<py::dict> option_specs() {
  std::vector<py::dict> rows;
  for (const runtime::OptionSpec& spec : runtime::option_specs()) {
    py::dict row;
    row["key"] = spec.key;
    row["kind"] = kKindNames[static_cast<std::size_t>(spec.kind)];
    row["default"] = spec.default_text.empty()
                         ? py::object(py::none())
                         : py::object(py::str(std::string(spec.default_text)));
    row["environment"] = spec.environment;
    py::list choices;
    if (!spec.choices.empty()) {
      choices = py::str(std::string(spec.choices)).attr("split")("|");
    }
    row["choices"] = choices;
    row["before_first_use"] = spec.before_first_use;
    row["help"] = spec.help;
    rows.push_back(row);
  }
  return rows;
}

std::optional<std::string> get_option(const std::string& key) {
  TORCH_CHECK_VALUE(runtime::find_option(key) != nullptr,
                    "torch_chameleon.config has no key '", key, "'");
  return runtime::option_text(key);
}

PyObject* first_use_callback = nullptr; // the GIL guards it

void tell_first_use() {
  const py::gil_scoped_acquire gil;
  const auto callback = py::reinterpret_steal<py::object>(
      std::exchange(first_use_callback, nullptr));
  if (!callback) return;
  try {
    callback();
  } catch (py::error_already_set& error) {
    error.discard_as_unraisable("the first use of the device");
  }
}

void at_first_use(const py::object& callback) {
  py::object given = callback.is_none() ? py::object() : callback;
  const auto before = py::reinterpret_steal<py::object>(
      std::exchange(first_use_callback, given.release().ptr()));
  backend::set_first_use_hook(first_use_callback ? &tell_first_use : nullptr);
}

void bind_options(py::module_& m) {
  m.def("option_specs", &option_specs);
  m.def("get_option", &get_option);
  m.def("set_option",
        [](const std::string& key, const std::optional<std::string>& text) {
          const py::gil_scoped_release no_gil;
          backend::set_option(key, text ? std::optional<std::string_view>(*text)
                                        : std::nullopt);
        });
  m.def("parse_bytes", [](const std::string& text) {
    return backend::value_or_throw(runtime::parse_bytes(text));
  });
  m.def("format_bytes", &runtime::format_bytes);
  m.def("first_use", &backend::first_use);
  m.def("at_first_use", &at_first_use);
}

void bind_device(py::module_& m) {
  m.def("init",
        [] { context(backend::current_device(), "torch.chameleon.init()"); });
  m.def("device_count", &backend::device_count);
  m.def("current_device", &backend::current_device);
  m.def("set_device", &backend::set_current_device);
  m.def("exchange_device", [](c10::DeviceIndex index) {
    const c10::DeviceIndex previous = backend::current_device();
    if (index >= 0) backend::set_current_device(index);
    return previous;
  });
  m.def("physical_device", [] {
    return std::string(context(backend::current_device(), "physical_device()")
                           .runtime->name());
  });
  m.def("synchronize", [](c10::DeviceIndex index) {
    backend::refuse_after_fork();
    const py::gil_scoped_release no_gil;
    backend::finish_deferred_work();
    if (auto* used = pager_if_used(index)) {
      backend::throw_if(used->synchronize());
    }
  });
  m.def("is_in_bad_fork", &backend::is_in_bad_fork);
  m.def("mem_get_info", [](c10::DeviceIndex index) {
    return c10::getDeviceAllocator(backend::kChameleon)->getMemoryInfo(index);
  });
  m.def("physical_memory", [](c10::DeviceIndex index) {
    const runtime::MemoryInfo memory =
        context(resolve_index(index), "a memory query").runtime->deviceMemory();
    return std::pair(memory.free_bytes, memory.total_bytes);
  });
  m.def("default_generator", [](c10::DeviceIndex index) {
    return backend::default_generator(index);
  });
}

void bind_memory(py::module_& m) {
  m.def("swap_stats", [](c10::DeviceIndex index) {
    memory::Stats stats; // before first use: all zero
    if (auto* used = pager_if_used(index)) stats = used->stats();
    py::dict row;
#define CHAMELEON_STATS_ROW(name) row[#name] = stats.name;
    CHAMELEON_STATS(CHAMELEON_STATS_ROW)
#undef CHAMELEON_STATS_ROW
    return row;
  });
  m.def("reset_swap_stats", [](c10::DeviceIndex index) {
    if (auto* used = pager_if_used(index)) used->resetStats();
  });
  m.def("evict_all", [](c10::DeviceIndex index) {
    const py::gil_scoped_release no_gil;
    backend::throw_if(pager(index, "evict_all()").evictAll());
  });
  m.def("empty_cache", [](c10::DeviceIndex index) {
    const py::gil_scoped_release no_gil;
    if (auto* used = pager_if_used(index)) used->trim();
  });
  m.def("await_pinning", [](c10::DeviceIndex index) {
    const py::gil_scoped_release no_gil;
    context(resolve_index(index), "await_pinning()").runtime->awaitPinning();
  });
  m.def("calls", [](c10::DeviceIndex index) {
    backend::finish_deferred_work();
    auto* const used = backend::context_if_used(resolve_index(index));
    return used == nullptr ? 0 : used->pager->calls();
  });
  m.def("memory_history", [](c10::DeviceIndex index) {
    backend::try_finish_deferred_work();
    std::vector<std::tuple<std::int64_t, std::size_t, std::size_t, std::size_t>>
        rows;
    for (const auto& sample :
         context(resolve_index(index), "memory_history()").history->samples()) {
      rows.emplace_back(sample.time_ns, sample.logical_bytes,
                        sample.resident_bytes, sample.host_bytes);
    }
    return rows;
  });
  m.def("stop_memory_samples", [](c10::DeviceIndex index) {
    if (auto* const used = backend::context_if_used(resolve_index(index))) {
      used->history->stop();
    }
  });
  m.def("reset_memory_history", [](c10::DeviceIndex index) {
    backend::try_finish_deferred_work();
    context(resolve_index(index), "memory_history()").history->start();
  });
}

// Pins tensors while it lives; see NativeView.
class Residence {
 public:
  explicit Residence(const std::vector<at::Tensor>& tensors) {
    const py::gil_scoped_release no_gil;
    view_ = std::make_unique<kernels::NativeView>(
        tensors, memory::Access::kWrite, "torch_chameleon.resident");
  }
  py::tuple natives() const {
    TORCH_CHECK_VALUE(view_, "torch_chameleon.resident: already closed");
    py::tuple result(view_->natives().size());
    for (std::size_t i = 0; i < view_->natives().size(); ++i) {
      result[i] = view_->natives()[i];
    }
    return result;
  }
  void close() { view_.reset(); }

 private:
  std::unique_ptr<kernels::NativeView> view_;
};

std::string_view residency_name(memory::BlockState state) {
  constexpr std::string_view kNames[] = {"unbacked", "resident", "host",
                                         "fetching", "evicting", "dropped"};
  return kNames[static_cast<std::size_t>(state)];
}

void bind_tensors(py::module_& m) {
  m.def("set_data", &python::set_data);
  m.def("alias_cuda_in", &python::alias_cuda_in, py::arg("callable"),
        py::arg("or_none") = false);
  m.def("equate_cuda_devices", &python::equate_cuda_devices);
  m.def("redirect_new_kernel", &kernels::redirect_new_kernel,
        py::call_guard<py::gil_scoped_release>());
  m.def("redirect_new_kernels", &kernels::redirect_new_kernels,
        py::call_guard<py::gil_scoped_release>());
  m.def("is_chameleon_storage", [](const c10::Storage& storage) {
    return storage.device().type() == backend::kChameleon;
  });
  py::class_<Residence>(m, "Residence")
      .def(py::init<const std::vector<at::Tensor>&>())
      .def("natives", &Residence::natives)
      .def("close", &Residence::close);
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

void bind_testing(py::module_& m) {
  bind_faults(m);
  m.def("set_cpu_adversary", [](const std::string& text) {
    TORCH_CHECK(!backend::is_used(),
                "set_cpu_adversary: the cpu runtime was started already");
    runtime::CpuRuntimeOptions options;
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
    TORCH_CHECK(!backend::is_used(),
                "set_cpu_clock: the cpu runtime was started already");
    runtime::CpuRuntimeOptions options;
    options.clock =
        backend::value_or_throw(runtime::parse_gpu_profile(profile));
    runtime::set_cpu_runtime_options(std::move(options));
  });
  m.def(
      "start_decision_log",
      [](std::size_t limit, c10::DeviceIndex index) {
        pager(index, "start_decision_log()").recordDecisions(limit);
      },
      py::arg("limit"), py::arg("index") = -1);
  m.def(
      "decision_log",
      [](c10::DeviceIndex index) {
        const memory::DecisionLog& log =
            pager(index, "decision_log()").decisions();
        TORCH_CHECK(log.dropped() == 0, "decision_log: ", log.dropped(),
                    " decisions more than the limit");
        py::list rows;
        for (const memory::DecisionRecord& record : log.records()) {
          rows.append(py::make_tuple(
              record.call, memory::decision_name(record.decision), record.block,
              record.offset, record.bytes));
        }
        return rows;
      },
      py::arg("index") = -1);
  m.def("forecast_costs", [] {
    memory::Pager& used = pager(-1, "forecast_costs()");
    const memory::PolicyCosts policy = used.policyCosts();
    const profiler::ProfilerState state = used.profiler().state();
    py::dict row;
    row["ops"] = state.path_ops; // of the step that is followed
    row["path_bytes"] = state.path_bytes;
    row["plan_bytes"] = policy.plan_bytes;
    row["plans_made"] = policy.plans_made;
    row["is_trying"] = policy.is_trying;
    row["live_block_bytes"] = state.live_block_bytes;
    row["lock_waits"] = state.lock_waits + used.durations().lockWaits();
    return row;
  });
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
  m.def("set_stress", [](const std::string& mode, std::uint64_t seed) {
    using Stress = memory::Pager::Stress;
    TORCH_CHECK_VALUE(mode == "never" || mode == "all" || mode == "random",
                      "set_stress: mode is never, all or random, not '", mode,
                      "'");
    pager(-1, "set_stress()")
        .setStress(mode == "all"      ? Stress::kAll
                   : mode == "random" ? Stress::kRandom
                                      : Stress::kNever,
                   seed);
  });
  m.def("set_drop_stress", [](const std::string& mode, std::uint64_t seed) {
    using Stress = memory::Pager::DropStress;
    const std::map<std::string, Stress> modes{{"never", Stress::kNever},
                                              {"record", Stress::kRecord},
                                              {"all", Stress::kAll},
                                              {"random", Stress::kRandom}};
    const auto found = modes.find(mode);
    TORCH_CHECK_VALUE(found != modes.end(),
                      "set_drop_stress: mode is never, record, all or random, "
                      "not '",
                      mode, "'");
    pager(-1, "set_drop_stress()").setDropStress(found->second, seed);
  });
  m.def("drop", [](const at::Tensor& tensor) {
    backend::finish_deferred_work();
    memory::Block* const block =
        backend::block_of(*tensor.storage().unsafeGetStorageImpl());
    return block != nullptr && block->pager->drop(*block);
  });
  m.def("drop_all", [] { pager(-1, "drop_all()").dropAll(); });
  m.def("rerun_rules", &kernels::rerun_rules);
  m.def("check_invariants", [](c10::DeviceIndex index, int level) {
    const py::gil_scoped_release no_gil;
    pager(index, "check_invariants()").checkInvariants(level);
  });
  m.def("block_state", [](const at::Tensor& tensor) {
    backend::finish_deferred_work();
    const memory::Block* block =
        backend::block_of(*tensor.storage().unsafeGetStorageImpl());
    py::dict row;
    if (block == nullptr) return row;
    const std::uint64_t word = block->word.load();
    row["state"] = residency_name(memory::Block::stateOf(word));
    row["pins"] = block->pins();
    row["bytes"] = block->bytes.load();
    row["has_host_copy"] = (word & memory::Block::kHostCopyBit) != 0;
    return row;
  });
  m.def("evict", [](const at::Tensor& tensor) {
    backend::finish_deferred_work();
    memory::Block* block =
        backend::block_of(*tensor.storage().unsafeGetStorageImpl());
    if (block != nullptr) {
      const py::gil_scoped_release no_gil;
      backend::throw_if(block->pager->evict(*block));
    }
  });
  m.def("deferred_op_count", &kernels::deferred_op_count);
  m.def("redirected_ops", &kernels::redirected_ops);
  m.def("writes_unannounced", &kernels::writes_unannounced);
  m.attr("metadata_bytes_per_block") =
      sizeof(memory::Block) + 2 * sizeof(memory::Extent);
}

PYBIND11_MODULE(_C, m) {
  m.attr("built_for_torch") = CHAMELEON_BUILT_FOR_TORCH;
  m.attr("built_for_abi") = _GLIBCXX_USE_CXX11_ABI == 1;
  if (const runtime::Error error = runtime::load_options_from_environment()) {
    throw py::import_error(error.message()); // torch's would bring its trace
  }
  python::install_wait_hooks();
  python::install_phase_hooks();
  python::install_cuda_init();
  kernels::register_redirects();
  kernels::register_late_ops();
  python::register_kineto_profiler();
  python::register_profiler_stubs();
  bind_options(m);
  bind_device(m);
  bind_memory(m);
  python::bind_allocation_history(m);
  python::bind_profiler(m);
  python::bind_plan(m);
  python::bind_slowdown(m);
  bind_tensors(m);
  bind_testing(m);
}

} // namespace
} // namespace chameleon
