// The kernel of an op on a device without data: shapes, strides and types from
// the op's Meta kernel or a shape function, memory and time from tables.
//
// Tests: test_simulated_ops.py.
//
// Thread safety: any thread; a call belongs to its own.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include "kernels/op_traits.h"
#include "kernels/simulated/call_view.h"
#include "memory/pager.h"

namespace chameleon::kernels::simulated {

// In place of the native kernel; arguments are Meta alias tensors. Throws
// NotImplementedError, naming the op, where nothing tells the result's shape.
void run_kernel(const OpTraits& traits, const c10::OperatorHandle& op,
                torch::jit::Stack& stack);

// After the results have their places: what the kernel allocates beside them.
// Throws OutOfMemoryError.
void use_workspace(const CallView& call, memory::Pager& pager,
                   memory::Call& running);

// How long it runs. Also on devices with data whose time is modelled.
void charge(const CallView& call, runtime::DeviceRuntime& device,
            runtime::Stream stream);

} // namespace chameleon::kernels::simulated
