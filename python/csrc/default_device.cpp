#include "python/csrc/default_device.h"

#include <utility>

#include <ATen/PythonTorchFunctionTLS.h>
#include <torch/csrc/autograd/python_variable.h>

namespace py = pybind11;

namespace chameleon::python {
namespace {

// NOLINTBEGIN(cppcoreguidelines-avoid-non-const-global-variables)
bool here_by_default = false;
ternaryfunc call_type = nullptr;
PyObject* place_made = nullptr; // never freed
// NOLINTEND(cppcoreguidelines-avoid-non-const-global-variables)

// Calls a tensor type. The types that derive from torch.Tensor share it, and
// place what they make as they like.
PyObject* call_type_here(PyObject* type, PyObject* args, PyObject* kwargs) {
  PyObject* const made = call_type(type, args, kwargs);
  if (made == nullptr || type != THPVariableClass || !here_by_default) {
    return made;
  }
  PyObject* const placed =
      PyObject_CallFunctionObjArgs(place_made, made, args, nullptr);
  Py_DECREF(made);
  return placed;
}

} // namespace

void place_by_default(bool here) { here_by_default = here; }

bool is_placed_by_default() {
  return here_by_default && !at::impl::torch_function_mode_enabled();
}

void place_constructed(const py::function& place) {
  if (place_made != nullptr) {
    return;
  }
  place_made = place.inc_ref().ptr();
  call_type =
      std::exchange(Py_TYPE(THPVariableClass)->tp_call, &call_type_here);
  if (call_type == nullptr) {
    call_type = PyType_Type.tp_call;
  }
}

} // namespace chameleon::python
