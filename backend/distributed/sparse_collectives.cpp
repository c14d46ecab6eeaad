// A sum of sparse tensors goes to the backend as that of dense ones does.
// PyTorch registers it for the dense tensors of this device alone.
//
// Tests: test_process_group.py.
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

namespace chameleon::distributed {
namespace {

void as_dense(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), stack);
}

TORCH_LIBRARY_IMPL(c10d, SparsePrivateUse1, m) {
  m.impl("allreduce_", torch::CppFunction::makeFromBoxedFunction<&as_dense>());
}

} // namespace
} // namespace chameleon::distributed
