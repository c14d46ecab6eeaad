// torch_chameleon._C: bindings without logic. python/torch_chameleon/_C.pyi is
// the interface with its comments.
#include <utility>

#include <ATen/core/Tensor.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <torch/csrc/utils/pybind.h>

#include "backend/runtime/byte_size.h"
#include "backend/runtime/options.h"
#include "backend/runtime/physical_device.h"
#include "backend/torch/deferred_work.h"
#include "backend/torch/device.h"
#include "backend/torch/device_options.h"
#include "backend/torch/error.h"
#include "backend/torch/first_use.h"
#include "backend/torch/generator.h"
#include "backend/torch/storage.h"
#include "chameleon_version.h"
#include "kernels/late_ops.h"
#include "kernels/native_view.h"
#include "kernels/redirect.h"
#include "python/csrc/allocation_history.h"
#include "python/csrc/cuda_alias.h"
#include "python/csrc/cuda_init.h"
#include "python/csrc/default_device.h"
#include "python/csrc/distributed_bindings.h"
#include "python/csrc/kineto_profiler.h"
#include "python/csrc/mirror_bindings.h"
#include "python/csrc/pagers.h"
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
using python::block_of;
using python::finish_deferred_work;
using python::pager;
using python::pager_if_used;

constexpr std::string_view kKindNames[] = {"bytes", "number", "count", "choice",
                                           "text"};

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
  m.def("local_ranks", [] {
    const runtime::LocalRanks ranks = backend::local_ranks();
    return std::pair(ranks.rank, ranks.count);
  });
  m.def("memory_sharers", [](c10::DeviceIndex index) {
    const runtime::MemorySharers sharers = runtime::memory_sharers(
        *context(index, "memory_sharers()").runtime, backend::local_ranks(),
        backend::device_count());
    return std::pair(sharers.of_device_memory, sharers.of_host_memory);
  });
  m.def("current_device", &backend::current_device);
  m.def("set_device", &backend::set_current_device);
  m.def("exchange_device", [](c10::DeviceIndex index) {
    const c10::DeviceIndex previous = backend::current_device();
    if (index >= 0) backend::set_current_device(index);
    return previous;
  });
  m.def("chooses_cuda", &backend::chooses_cuda);
  m.def("physical_device", [] {
    return std::string(context(backend::current_device(), "physical_device()")
                           .runtime->name());
  });
  m.def("synchronize", [](c10::DeviceIndex index) {
    backend::refuse_after_fork();
    const py::gil_scoped_release no_gil;
    finish_deferred_work();
    if (auto* used = pager_if_used(index)) {
      backend::throw_if(used->synchronize());
    }
  });
  m.def("is_in_bad_fork", &backend::is_in_bad_fork);
  m.def("mem_get_info", [](c10::DeviceIndex index) {
    return c10::getDeviceAllocator(backend::kChameleon)->getMemoryInfo(index);
  });
  m.def("set_memory_fraction", [](c10::DeviceIndex index, double fraction) {
    backend::set_memory_fraction(resolve_index(index), fraction);
  });
  m.def("memory_fraction", [](c10::DeviceIndex index) {
    return backend::memory_fraction(resolve_index(index));
  });
  m.def("say_cuda_out_of_memory", &backend::say_cuda_out_of_memory);
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
  m.def("evict", [](const at::Tensor& tensor) {
    memory::Block* const block = block_of(tensor);
    if (block == nullptr) return;
    const py::gil_scoped_release no_gil;
    backend::throw_if(block->pager->evict(*block));
  });
  m.def("check_invariants", [](c10::DeviceIndex index, int level) {
    const py::gil_scoped_release no_gil;
    pager(index, "check_invariants()").invariants().check(level);
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

void bind_decisions(py::module_& m) {
  m.def(
      "start_decision_log",
      [](std::size_t limit, c10::DeviceIndex index) {
        pager(index, "start_decision_log()").decisions().start(limit);
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

void bind_tensors(py::module_& m) {
  m.def("set_data", &python::set_data);
  m.def("take_sparse_data", &python::take_sparse_data);
  py::enum_<python::Unsaid>(m, "Unsaid")
      .value("NOTHING", python::Unsaid::kNothing)
      .value("CUDA", python::Unsaid::kCuda)
      .value("DEFAULT", python::Unsaid::kDefault)
      .value("DEFAULT_FOR_DATA", python::Unsaid::kDefaultForData);
  m.def("alias_cuda_in", &python::alias_cuda_in, py::arg("callable"),
        py::arg("unsaid") = python::Unsaid::kNothing);
  m.def("place_by_default", &python::place_by_default);
  m.def("construct_by", &python::construct_by);
  m.def("equate_cuda_devices", &python::equate_cuda_devices);
  m.def("redirect_new_kernel", &kernels::redirect_new_kernel,
        py::call_guard<py::gil_scoped_release>());
  m.def("redirected_ops", &kernels::redirected_ops);
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
  bind_decisions(m);
  python::bind_allocation_history(m);
  python::bind_profiler(m);
  python::bind_plan(m);
  python::bind_mirror(m);
  python::bind_slowdown(m);
  bind_tensors(m);
  python::bind_distributed(m);
}

} // namespace
} // namespace chameleon
