// What users see of steps that swapping makes slow: a UserWarning, once a
// process for each cause, or torch_chameleon.SlowdownError.
//
// Thread safety: any thread; takes the GIL.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace chameleon::python {

void bind_slowdown(pybind11::module_& module);

} // namespace chameleon::python
