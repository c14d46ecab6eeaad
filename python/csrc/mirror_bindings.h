// Copies of tensors as they are at one moment, for torch_chameleon.elastic.
//
// Thread safety: called once, at import, with the GIL.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace chameleon::python {

void bind_mirror(pybind11::module_& m);

} // namespace chameleon::python
