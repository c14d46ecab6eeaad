#include "kernels/adoption.h"

#include <cstring>
#include <span>

#include "backend/torch/device_allocator.h"
#include "backend/torch/error.h"
#include "backend/torch/storage.h"
#include "backend/torch/stream.h"
#include "kernels/alias_tensors.h"
#include "kernels/layouts/nested_parts.h"
#include "kernels/layouts/other_layouts.h"
#include "kernels/layouts/sparse_parts.h"
#include "kernels/simulated/kernel_memory.h"
#include "kernels/tensor_access.h"

namespace chameleon::kernels {

using backend::kChameleon;

namespace {

// Memory of the call's own becomes a block, or is given back.
c10::DataPtr adopt_or_free(const Adoption& adoption, std::byte* address,
                           std::size_t bytes) {
  auto block = adoption.pager.adopt(adoption.call, address, bytes);
  if (!block.ok()) adoption.pager.free(&adoption.call, address);
  return backend::own_block(backend::value_or_throw(std::move(block)),
                            adoption.index);
}

} // namespace

c10::DataPtr Adoption::memory(c10::DataPtr data, std::size_t bytes) const {
  if (bytes != 0 && !backend::target().holds_data) {
    // A Meta kernel allocates nothing: here is where its result gets a place.
    std::byte* place = simulated::KernelMemory::adopt();
    if (place == nullptr) {
      place = backend::value_or_throw(pager.allocate(call, bytes));
    }
    return adopt_or_free(*this, place, bytes);
  }
  if (bytes == 0 || data.get() == nullptr) {
    return {nullptr, c10::Device(kChameleon, index)};
  }
  auto* address = static_cast<std::byte*>(data.get());
  if (pager.contains(address)) {
    auto block = pager.adopt(call, address, bytes);
    if (block.ok()) [[likely]] {
      data.release_context();
      return backend::own_block(*block, index);
    }
    if (block.error().code() != runtime::ErrorCode::kInvalidArgument) {
      backend::throw_error(block.error());
    }
  }
  // Memory that the kernel got elsewhere (another thread's, a cache's).
  std::byte* copy = backend::value_or_throw(pager.allocate(call, bytes));
  if (backend::target().type == c10::DeviceType::CPU) {
    std::memcpy(copy, address, bytes);
  } else {
    const runtime::Copy whole{copy, address, bytes};
    backend::throw_if(backend::context(index, "a copy")
                          .runtime->copy(backend::current_stream(index),
                                         std::span(&whole, 1)));
  }
  return adopt_or_free(*this, copy, bytes);
}

at::Tensor Adoption::tensor(at::Tensor native) const {
  const c10::Device device(kChameleon, index);
  c10::TensorImpl& impl = *native.unsafeGetTensorImpl();
  c10::StorageImpl& storage = *impl.unsafe_storage().unsafeGetStorageImpl();
  // mutant: shared-result
  if (storage.device_type() != kChameleon) { // else: shared with a sibling
    c10::DataPtr data = std::move(storage._mutable_data_ptr_no_checks());
    storage.set_data_ptr_noswap(memory(std::move(data), storage.nbytes()));
    storage.set_allocator(backend::device_allocator());
  }
  if (native.use_count() == 1 && !is_nested(impl)) [[likely]] {
    TensorAccess::retarget(impl, impl.key_set(), device);
    return native;
  }
  return at::Tensor(make_outer(impl, native.storage(), device));
}

void Adoption::storage(c10::StorageImpl& outer, c10::StorageImpl& alias,
                       const std::byte* before) const {
  // Without data nothing is allocated where it grows.
  const bool grown =
      !backend::target().holds_data && alias.nbytes() > outer.nbytes();
  // mutant: out-growth
  if (alias.data() != before || grown) {
    c10::DataPtr data = alias.set_data_ptr(
        c10::DataPtr(nullptr, backend::target_device(index)));
    outer.set_data_ptr_noswap(memory(std::move(data), alias.nbytes()));
  }
  if (alias.nbytes() != outer.nbytes()) outer.set_nbytes(alias.nbytes());
}

void Adoption::shape(c10::TensorImpl& outer,
                     const c10::TensorImpl& alias_tensor) {
  if (is_nested(alias_tensor)) return; // it stays as it was made
  // linalg_lu_solve.out leaves a lazy conjugation.
  if (outer.is_conj() != alias_tensor.is_conj())
    outer._set_conj(alias_tensor.is_conj());
  if (outer.is_neg() != alias_tensor.is_neg())
    outer._set_neg(alias_tensor.is_neg());
  if (TensorAccess::sameShape(outer, alias_tensor)) [[likely]]
    return;
  if (outer.sizes() != alias_tensor.sizes() ||
      outer.strides() != alias_tensor.strides()) {
    outer.set_sizes_and_strides(alias_tensor.sizes(), alias_tensor.strides());
  }
  if (outer.storage_offset() != alias_tensor.storage_offset()) {
    outer.set_storage_offset(alias_tensor.storage_offset());
  }
}

bool is_native_result_slow(const at::Tensor& tensor, const OpTraits& traits) {
  if (!tensor.defined() || tensor.device().type() != backend::target().type) {
    return false;
  }
  TORCH_CHECK_NOT_IMPLEMENTED(
      is_sparse(*tensor.unsafeGetTensorImpl()) ||
          (tensor.layout() == c10::kStrided && tensor.has_storage()),
      traits.name, ": its result has layout ", tensor.layout(),
      "; chameleon works on dense (strided) tensors");
  if (tensor.is_quantized()) refuse_quantized(traits.name);
  return true;
}

} // namespace chameleon::kernels
