// Which ops have a direct kernel: all whose signature is that of an op listed
// in direct_ops.cpp, and of which nothing is special that such a kernel does
// not know (devices and generators among the arguments, results elsewhere).
//
// Tests: direct_kernel_test.cpp, test_direct_kernels.py.
//
// Thread safety: called where ops are registered; its tables never change.
#pragma once

#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include "kernels/op_traits.h"

namespace chameleon::kernels {

// Registers the direct kernel of `op`, if it has one; `general` runs the calls
// that are not for it. `traits` must outlive the library.
bool register_direct(torch::Library& library, const char* name,
                     const c10::OperatorHandle& op, const OpTraits* traits,
                     const c10::BoxedKernel& general);

} // namespace chameleon::kernels
