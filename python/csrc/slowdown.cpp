#include "python/csrc/slowdown.h"

#include <atomic>

#include <c10/util/Exception.h>
#include <torch/csrc/Exceptions.h>

#include "backend/torch/error.h"
#include "memory/figures/meter.h"

namespace py = pybind11;

namespace chameleon::python {
namespace {

PyObject* error_type = nullptr; // torch_chameleon.SlowdownError

void warn(memory::SlowdownCause cause, const std::string& message) {
  static std::atomic<bool> told[memory::kSlowdownCauses];
  if (told[static_cast<std::size_t>(cause)].exchange(true)) return;
  TORCH_WARN(message);
}

// As python_error, which comes through torch's own code and autograd's threads.
void raise(const std::string& message) {
  const py::gil_scoped_acquire gil;
  if (error_type == nullptr) return;
  PyErr_SetString(error_type, message.c_str());
  python_error error;
  error.persist();
  throw error;
}

} // namespace

void bind_slowdown(py::module_& module) {
  module.def("set_slowdown_error", [](const py::object& type) {
    error_type = py::object(type).release().ptr(); // for good
  });
  memory::Meter::slowdown_hook = &warn;
  backend::set_slowdown_thrower(&raise);
}

} // namespace chameleon::python
