// torch.set_default_tensor_type(torch.cuda.FloatTensor), for programs that were
// written for CUDA: tensors that nothing places are made here, in all threads.
// PyTorch has no default tensor type of this device.
//
// Thread safety: the GIL is held.
#pragma once

#include <pybind11/pybind11.h>

namespace chameleon::python {

// Whether that is in force from now on. Off at first.
void place_by_default(bool here);

// Whether a call that says no device is to be told this one: not while a mode
// of this thread (torch.set_default_device, `with torch.device(...)`) has yet
// to be asked. PyTorch then calls the function again.
bool is_placed_by_default();

// From now on torch.Tensor(...), or a type that derives from it and has no
// __new__, is `construct(type, args, kwargs)` where it is in force; kwargs may
// be None. Once.
void construct_by(const pybind11::function& construct);

} // namespace chameleon::python
