// For programs that were written for CUDA: in calls of chosen functions of
// torch "cuda" means this device. See torch_chameleon/_as_cuda/.
//
// Thread safety: the GIL is held.
#pragma once

#include <pybind11/pybind11.h>

namespace chameleon::python {

// From now on a device among the arguments of `callable` that says "cuda", as
// text or as torch.device, is "chameleon" of the same index to it. The Python
// object stays what it is, so nothing that knows torch's functions by identity
// (TorchScript, FX, Dynamo, modes) sees a difference, and a call costs one look
// at each argument. Takes a function of torch's C++ code, a method of one of
// its types, or a type of its own, whose constructor is meant. Twice is once.
//
// `or_none`: to the function no device at all means CUDA; it is told
// "chameleon" then, as its first argument.
//
// Needs the GIL. TypeError: `callable` is none of these.
void alias_cuda_in(pybind11::handle callable, bool or_none);

// From now on torch.device("cuda", i) and torch.device("chameleon", i) are
// equal and have one hash. Needs the GIL.
void equate_cuda_devices();

} // namespace chameleon::python
