// What a native kernel made inside a call becomes chameleon's, in place: the
// memory is adopted as a block, the storage shows its logical address, the
// tensor gets our device and keys. Nothing is copied, unless the kernel took
// the memory from elsewhere.
//
// Tests: test_storage.py, direct_kernel_test.cpp.
//
// Thread safety: belongs to the thread of its call.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>

#include "backend/torch/device_allocator.h"
#include "backend/torch/in_kernel_allocator.h"
#include "backend/torch/storage.h"
#include "kernels/op_traits.h"
#include "kernels/tensor_access.h"
#include "memory/pager.h"

namespace chameleon::kernels {

struct Adoption {
  memory::Pager& pager;
  memory::Call& call; // running
  c10::DeviceIndex index;

  // A DataPtr of ours over the first `bytes` of `data`, which is taken over.
  c10::DataPtr memory(c10::DataPtr data, std::size_t bytes) const;
  // REQUIRES: is_native_result(); its storage is no operand's alias.
  at::Tensor tensor(at::Tensor native) const;
  // The same in place, for what most results are: a plain tensor, held by
  // nobody else, on memory allocated in this call. False: it is not one, and
  // unchanged. REQUIRES: is_native_result().
  bool fresh(at::Tensor& native) const;
  // After the kernel, for an operand that it wrote. storage(): `outer` gets the
  // memory and the size that the kernel gave `alias`, which showed `before` at
  // first. shape(): `outer` gets the shape that the kernel gave its alias
  // tensor. Mostly neither has changed.
  void storage(c10::StorageImpl& outer, c10::StorageImpl& alias,
               const std::byte* before) const;
  static void shape(c10::TensorImpl& outer,
                    const c10::TensorImpl& alias_tensor);
};

[[gnu::always_inline]] inline bool Adoption::fresh(at::Tensor& native) const {
  c10::TensorImpl& impl = *native.unsafeGetTensorImpl();
  c10::StorageImpl& storage = *impl.unsafe_storage().unsafeGetStorageImpl();
  c10::DataPtr& data = storage._mutable_data_ptr_no_checks();
  if (!backend::is_in_kernel(data) || storage.nbytes() == 0 ||
      native.use_count() != 1) {
    return false;
  }
  auto block =
      pager.adopt(call, static_cast<std::byte*>(data.get()), storage.nbytes());
  if (!block.ok()) return false;
  data.release_context();
  data = backend::own_block(*block, index);
  storage.set_allocator(backend::device_allocator());
  TensorAccess::retarget(impl, impl.key_set(),
                         c10::Device(backend::kChameleon, index));
  return true;
}

// True: a tensor to adopt, dense or sparse. False: undefined, or on another
// device than the target. Throws NotImplementedError for other layouts, and for
// quantized tensors.
bool is_native_result_slow(const at::Tensor& tensor, const OpTraits& traits);
inline bool is_native_result(const at::Tensor& tensor, const OpTraits& traits) {
  return tensor.unsafeGetTensorImpl()->key_set() ==
             TensorAccess::aliasTensorKeys() ||
         is_native_result_slow(tensor, traits);
}

} // namespace chameleon::kernels
