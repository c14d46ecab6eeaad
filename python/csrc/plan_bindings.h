// Known GPUs, and what a recorded step would take on them.
//
// Thread safety: called once, at import, with the GIL.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace chameleon::python {

void bind_plan(pybind11::module_& m);

} // namespace chameleon::python
