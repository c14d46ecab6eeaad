// Ops on sparse tensors, COO and compressed. Most run whole on the target, on a
// sparse alias tensor of each (op_call.h). What makes, shows or copies sparse
// tensors runs on ours: it looks at sizes and flags only, and whatever it does
// with indices and values are dense ops, of which each goes its own way.
//
// Tests: test_sparse_tensors.py.
#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include "backend/torch/device.h"
#include "backend/torch/storage.h"
#include "kernels/late_ops.h"
#include "kernels/layouts/sparse_parts.h"
#include "kernels/op_call.h"
#include "kernels/op_set.h"
#include "kernels/simulated/sparse_models.h"

namespace chameleon::kernels {
namespace {

using c10::DispatchKey;
using torch::jit::Stack;

// Beside what returns views. Not each has a kernel for both keys.
constexpr std::array kOnOurs = {
    "_coalesced_",
    "_dimI",
    "_dimV",
    "_nnz",
    "_pin_memory",
    "_sparse_coo_tensor_with_dims",
    "_sparse_coo_tensor_with_dims_and_tensors",
    "clone",
    "copy_",
    "copy_sparse_to_sparse_",
    "dense_dim",
    "empty.memory_format",
    "empty_like",
    "is_coalesced",
    "is_pinned",
    "resize_",
    "resize_as_sparse_",
    "sparse_dim",
    "sparse_resize_",
    "sparse_resize_and_clear_",
    "zero_",
    "zeros.out",
};

bool is_on_ours(const c10::OperatorHandle& op, std::string_view name) {
  return returns_view(op.schema()) ||
         std::find(kOnOurs.begin(), kOnOurs.end(), name) != kOnOurs.end();
}

// The device that a call is for: new sparse tensors are born on the current.
std::optional<c10::Device> device_of(const c10::OperatorHandle& op,
                                     const Stack& stack) {
  const std::size_t count = op.schema().arguments().size();
  std::optional<c10::Device> of_tensor;
  for (std::size_t i = stack.size() - count; i < stack.size(); ++i) {
    const c10::IValue& value = stack[i];
    if (value.isDevice()) return value.toDevice();
    if (!of_tensor && value.isTensor() && value.toTensor().defined() &&
        backend::is_chameleon(*value.unsafeToTensorImpl())) {
      of_tensor = value.toTensor().device();
    }
  }
  return of_tensor;
}

template <DispatchKey native>
void call_on_ours(const c10::OperatorHandle& op, Stack* stack) {
  redirect_new_kernels_if_any();
  const c10::OptionalDeviceGuard guard(device_of(op, *stack));
  op.redispatchBoxed(c10::DispatchKeySet(native), stack);
}

template <bool compressed>
void call_sparse(const c10::OperatorHandle& op, Stack* stack) {
  if (!backend::target().holds_data) {
    TORCH_CHECK_NOT_IMPLEMENTED(
        !compressed, op.operator_name(),
        ": a simulated chameleon works on dense (strided) and sparse COO "
        "tensors; compressed ones work on the others");
    return simulated::run_sparse(op, *stack);
  }
  TORCH_CHECK_NOT_IMPLEMENTED(
      op.hasComputedKernelForDispatchKey(
          sparse_dispatch_key(compressed).highestPriorityTypeId()),
      op.operator_name(), ": PyTorch has no kernel for ",
      compressed ? "compressed sparse" : "sparse COO", " tensors on ",
      backend::target().type,
      ", which computes chameleon's; call to_dense() first");
  call_native(*traits_of(op), op, stack);
}

// `cpu` and `cuda`: where native has its kernels. The dispatcher prefers an
// op's composite kernel to a fallback, so each is registered.
template <DispatchKey cpu, DispatchKey cuda, bool compressed>
void register_for(torch::Library& m) {
  std::set<std::string> names;
  for (const DispatchKey key : {cpu, cuda}) {
    for (const c10::OperatorName& name :
         c10::Dispatcher::singleton().getRegistrationsForDispatchKey(key)) {
      const std::string text = c10::toString(name);
      if (text.starts_with("aten::")) names.insert(text.substr(6));
    }
  }
  for (const std::string& name : names) {
    const std::size_t dot = name.find('.');
    const auto op = c10::Dispatcher::singleton().findSchema(
        {"aten::" + name.substr(0, dot),
         dot == std::string::npos ? std::string() : name.substr(dot + 1)});
    if (!op) continue; // a kernel without a schema is nobody's
    m.impl(name.c_str(),
           is_on_ours(*op, name)
               ? torch::CppFunction::makeFromBoxedFunction<&call_on_ours<cpu>>()
               : torch::CppFunction::makeFromBoxedFunction<
                     &call_sparse<compressed>>());
  }
}

TORCH_LIBRARY_IMPL(aten, SparsePrivateUse1, m) {
  register_for<DispatchKey::SparseCPU, DispatchKey::SparseCUDA, false>(m);
}
TORCH_LIBRARY_IMPL(aten, SparseCsrPrivateUse1, m) {
  register_for<DispatchKey::SparseCsrCPU, DispatchKey::SparseCsrCUDA, true>(m);
}
TORCH_LIBRARY_IMPL(_, SparsePrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&call_sparse<false>>());
}
TORCH_LIBRARY_IMPL(_, SparseCsrPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&call_sparse<true>>());
}

} // namespace
} // namespace chameleon::kernels
