// Which ops are redirected.
//
// Tests: conformance.
//
// Thread safety: functions of their arguments.
#pragma once

#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>

namespace chameleon::kernels {

// Every op of PyTorch's own that gets the boxed kernel, sorted by name. Looks
// at the dispatcher's tables only.
std::vector<c10::OperatorHandle> collect_op_set();

// Whether the op may get a kernel of ours: it has none yet, its kernels are
// not bound to a device type, and autograd does not need its decomposition.
bool is_redirectable(const c10::OperatorHandle& op);

// Whether a result shows an operand's memory, so that the op needs a kernel of
// its own, on the outer tensor.
bool returns_view(const c10::FunctionSchema& schema);

} // namespace chameleon::kernels
