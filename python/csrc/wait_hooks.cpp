#include "python/csrc/wait_hooks.h"

#include <Python.h>

#include "memory/pager.h"

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
  memory::Pager::setWaitHooks({&give_up_gil, &take_gil_back});
}

} // namespace chameleon::python
