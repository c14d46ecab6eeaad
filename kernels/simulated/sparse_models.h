// Ops on sparse COO tensors on a device without data, as the dense ops that do
// the same to indices and values: each takes its time, memory and place in the
// forecast. What training with sparse gradients needs, and what works on
// values alone.
//
// Where the number of elements depends on values it is the largest one can be:
// coalesce() finds all indices different, sums hold the elements of both.
//
// Tests: test_simulated_ops.py.
//
// Thread safety: functions of their arguments.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace chameleon::kernels::simulated {

// Runs `op` on the tensors on the stack. Throws NotImplementedError where there
// is no model of it.
void run_sparse(const c10::OperatorHandle& op, torch::jit::Stack& stack);

} // namespace chameleon::kernels::simulated
