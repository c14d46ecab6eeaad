#include "kernels/layouts/nested_parts.h"

#include <ATen/NestedTensorImpl.h>
#include <ATen/core/Tensor.h>

#include "backend/torch/device.h"
#include "backend/torch/in_kernel_allocator.h"
#include "kernels/tensor_access.h"

namespace chameleon::kernels {
namespace {

using at::native::NestedTensorImpl;

at::Tensor out_of_call(const at::Tensor& metadata) {
  if (!backend::is_in_kernel(metadata.storage().data_ptr())) return metadata;
  const backend::InKernelScope suspended(nullptr, nullptr);
  return metadata.clone();
}

} // namespace

c10::DispatchKeySet nested_dispatch_key() {
  return c10::DispatchKeySet(backend::target().type == c10::DeviceType::CUDA
                                 ? c10::DispatchKey::NestedTensorCUDA
                                 : c10::DispatchKey::NestedTensorCPU);
}

c10::intrusive_ptr<c10::TensorImpl> make_nested(const c10::TensorImpl& like,
                                                c10::Storage storage,
                                                c10::Device device) {
  const auto& nested = static_cast<const NestedTensorImpl&>(like);
  auto made = c10::make_intrusive<NestedTensorImpl>(
      std::move(storage), like.key_set(), like.dtype(),
      out_of_call(nested.get_nested_sizes()),
      out_of_call(nested.get_nested_strides()),
      out_of_call(nested.get_storage_offsets()));
  TensorAccess::retarget(*made, like.key_set() - c10::python_ks, device);
  return made;
}

} // namespace chameleon::kernels
