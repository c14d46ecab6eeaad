// Ops on nested tensors of torch's strided layout.
//
// Tests: alias_tensors_test.cpp, test_layouts.py.
#include <set>
#include <string>

#include <ATen/NestedTensorImpl.h>
#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include "backend/torch/device.h"
#include "backend/torch/storage.h"
#include "kernels/late_ops.h"
#include "kernels/layouts/nested_parts.h"
#include "kernels/op_call.h"

namespace chameleon::kernels {
namespace {

using at::native::NestedTensorImpl;

// `to(device)` is dispatched by where its result will be.
bool is_making_first(const OpTraits& traits, const torch::jit::Stack& stack) {
  const std::size_t first = stack.size() - traits.argument_count;
  for (const ArgumentTraits& argument : traits.arguments) {
    const c10::IValue& value = stack[first + argument.index];
    if (argument.kind != ArgumentKind::kTensor) {
      if (value.isList()) return false;
    } else if (value.isTensor() &&
               backend::is_chameleon(*value.unsafeToTensorImpl())) {
      return false;
    }
  }
  return true;
}

void call_nested(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      backend::target().holds_data, op.operator_name(),
      ": a simulated chameleon works on dense (strided) tensors; nested "
      "tensors work on the others");
  const std::shared_ptr<const OpTraits> traits = traits_of(op);
  if (is_making_first(*traits, *stack)) {
    return op.redispatchBoxed(nested_dispatch_key(), stack);
  }
  call_native(*traits, op, stack);
}

at::Tensor view_from_buffer(const at::Tensor& buffer, const at::Tensor& sizes,
                            const at::Tensor& strides,
                            const at::Tensor& offsets) {
  for (const at::Tensor& metadata : {sizes, strides, offsets}) {
    TORCH_CHECK(metadata.is_cpu() && metadata.scalar_type() == at::kLong,
                "a nested tensor's sizes, strides and offsets are integers on "
                "the CPU, not ",
                metadata.toString(), " on ", metadata.device());
  }
  return at::detail::make_tensor<NestedTensorImpl>(
      c10::TensorImpl::VIEW, buffer, sizes, strides, offsets);
}

// These are on the CPU wherever the tensor is.
at::Tensor nested_sizes(const at::Tensor& self) {
  return at::native::get_nested_tensor_impl(self)->get_nested_sizes();
}
at::Tensor nested_strides(const at::Tensor& self) {
  return at::native::get_nested_tensor_impl(self)->get_nested_strides();
}
at::Tensor storage_offsets(const at::Tensor& self) {
  return at::native::get_nested_tensor_impl(self)->get_storage_offsets();
}

TORCH_LIBRARY_IMPL(_, NestedTensorPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&call_nested>());
}
TORCH_LIBRARY_IMPL(aten, NestedTensorPrivateUse1, m) {
  m.impl("_nested_tensor_size", TORCH_FN(nested_sizes));
  m.impl("_nested_tensor_strides", TORCH_FN(nested_strides));
  m.impl("_nested_tensor_storage_offsets", TORCH_FN(storage_offsets));
  // The dispatcher prefers an op's composite kernel to a fallback.
  std::set<std::string> done{"aten::_nested_tensor_size",
                             "aten::_nested_tensor_strides",
                             "aten::_nested_tensor_storage_offsets"};
  for (const auto key : {c10::DispatchKey::NestedTensorCPU,
                         c10::DispatchKey::NestedTensorCUDA}) {
    for (const c10::OperatorName& name :
         c10::Dispatcher::singleton().getRegistrationsForDispatchKey(key)) {
      const std::string text = c10::toString(name);
      if (!text.starts_with("aten::") || !done.insert(text).second) {
        continue;
      }
      m.impl(text.c_str(),
             torch::CppFunction::makeFromBoxedFunction<&call_nested>());
    }
  }
}
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_nested_view_from_buffer", TORCH_FN(view_from_buffer));
}

} // namespace

} // namespace chameleon::kernels
