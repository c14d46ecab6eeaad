// One op call, straight through: find the operands, pin them, run the native
// kernel on twins, adopt what it made, unpin. A call knows its op plan, its
// pins and its twins, and nothing else.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include "backend/torch/device.h"
#include "kernels/op_plan.h"

namespace chameleon::kernels {

// Runs `op` with its arguments on top of `stack` and leaves its results there.
// Throws what the native kernel throws, OutOfMemoryError where the operands do
// not fit, RuntimeError where devices mix that CUDA would not mix.
void call_native(const OpPlan& plan, const c10::OperatorHandle& op,
                 torch::jit::Stack* stack);

// What native kernels run below: autograd and the target's autocast have taken
// place on the outer tensors.
c10::DispatchKeySet keys_above_kernels() noexcept;

// A point of the memory history, when one is being recorded.
void sample_memory(backend::DeviceContext& device);

} // namespace chameleon::kernels
