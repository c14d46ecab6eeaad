// The profiler's half of torch_chameleon._C.
//
// Thread safety: called once, at import, with the GIL.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include "backend/torch/device.h"
#include "profiler/cycle_builder.h"

namespace chameleon::python {

// The last step that ended on a device, its ops timed as far as the device has
// come: it is waited for. A torch error where none has. Without the GIL.
struct LastCycle {
  backend::DeviceContext& device;
  profiler::CycleMap map;
};
LastCycle last_cycle(c10::DeviceIndex index);

void bind_profiler(pybind11::module_& m);

} // namespace chameleon::python
