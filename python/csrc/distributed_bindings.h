// torch_chameleon._C.ProcessGroup: the c10d backend, to Python.
//
// Thread safety: the GIL is held.
#pragma once

#include <pybind11/pybind11.h>

namespace chameleon::python {

void bind_distributed(pybind11::module_& m);

} // namespace chameleon::python
