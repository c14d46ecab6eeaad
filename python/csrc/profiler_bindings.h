// The profiler's half of torch_chameleon._C.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace chameleon::python {

void bind_profiler(pybind11::module_& m);

} // namespace chameleon::python
