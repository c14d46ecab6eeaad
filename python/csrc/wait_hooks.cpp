#include "python/csrc/wait_hooks.h"

#include <Python.h>

#include "kernels/lists/deferred_lists.h"
#include "memory/call/admission.h"

namespace chameleon::python {
namespace {

void* give_up_gil() {
  if (Py_IsInitialized() == 0 || PyGILState_Check() == 0) return nullptr;
  return PyEval_SaveThread();
}

void take_gil_back(void* state) {
  if (state != nullptr) {
    PyEval_RestoreThread(static_cast<PyThreadState*>(state));
  }
}

} // namespace

void install_wait_hooks() {
  constexpr memory::WaitHooks kHooks{&give_up_gil, &take_gil_back};
  memory::Admission::wait_hooks = kHooks;
  kernels::register_deferred_lists(kHooks);
}

} // namespace chameleon::python
