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
PyObject* construct_here = nullptr; // never freed
// NOLINTEND(cppcoreguidelines-avoid-non-const-global-variables)

// One that makes its tensors as torch.Tensor does, in no __new__ of its own.
bool is_made_by_torch(PyObject* type) {
  const auto new_of = [](PyObject* each) {
    return reinterpret_cast<PyTypeObject*>(each)->tp_new;
  };
  return new_of(type) == new_of(THPVariableClass);
}

// Calls torch.Tensor or a type that derives from it.
PyObject* call_type_here(PyObject* type, PyObject* args, PyObject* kwargs) {
  if (!here_by_default || !is_made_by_torch(type)) {
    return call_type(type, args, kwargs);
  }
  return PyObject_CallFunctionObjArgs(construct_here, type, args,
                                      kwargs == nullptr ? Py_None : kwargs,
                                      nullptr);
}

} // namespace

void place_by_default(bool here) { here_by_default = here; }

bool is_placed_by_default() {
  return here_by_default && !at::impl::torch_function_mode_enabled();
}

void construct_by(const py::function& construct) {
  if (construct_here != nullptr) {
    return;
  }
  construct_here = construct.inc_ref().ptr();
  call_type =
      std::exchange(Py_TYPE(THPVariableClass)->tp_call, &call_type_here);
  if (call_type == nullptr) {
    call_type = PyType_Type.tp_call;
  }
}

} // namespace chameleon::python
