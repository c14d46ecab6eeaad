// For programs that were written for CUDA: in calls of chosen functions of
// torch "cuda" means this device. See torch_chameleon/_as_cuda/.
//
// Thread safety: the GIL is held.
#pragma once

#include <cstdint>

#include <pybind11/pybind11.h>

namespace chameleon::python {

// What it means to a function that it is given no device.
enum class Unsaid : std::uint8_t {
  kNothing,
  kCuda,           // it is told "chameleon", as its first argument
  kDefault,        // the default device, see default_device.h
  kDefaultForData, // the same, unless it is given tensors, which have one
};

// From now on a device among the arguments of `callable` that says "cuda", as
// text or as torch.device, is "chameleon" of the same index to it. The Python
// object stays what it is, so nothing that knows torch's functions by identity
// (TorchScript, FX, Dynamo, modes) sees a difference, and a call costs one look
// at each argument. Takes a function of torch's C++ code, a method of one of
// its types, or a type of its own, whose constructor is meant. Twice is once.
//
// Needs the GIL. TypeError: `callable` is none of these.
void alias_cuda_in(pybind11::handle callable, Unsaid unsaid);

// From now on torch.device("cuda", i) and torch.device("chameleon", i) are
// equal and have one hash. Needs the GIL.
void equate_cuda_devices();

} // namespace chameleon::python
