#include "kernels/adoption.h"

#include <cstring>

#include "backend/torch/device_allocator.h"
#include "backend/torch/error.h"
#include "backend/torch/storage.h"
#include "kernels/twins.h"

namespace chameleon::kernels {

using backend::kChameleon;

c10::DataPtr Adoption::memory(c10::DataPtr data, std::size_t bytes) const {
  if (bytes != 0 && !backend::target().holds_data) {
    // A Meta kernel allocates nothing: here is where its result gets a place.
    std::byte* place = backend::value_or_throw(pager.allocate(call, bytes));
    return backend::own_block(
        backend::value_or_throw(pager.adopt(call, place, bytes)), index);
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
  }
  // Memory that the kernel got elsewhere (another thread's, a cache's).
  std::byte* copy = backend::value_or_throw(pager.allocate(call, bytes));
  std::memcpy(copy, address, bytes);
  return backend::own_block(
      backend::value_or_throw(pager.adopt(call, copy, bytes)), index);
}

at::Tensor Adoption::tensor(at::Tensor native) const {
  const c10::Device device(kChameleon, index);
  c10::TensorImpl& impl = *native.unsafeGetTensorImpl();
  c10::StorageImpl& storage = *impl.unsafe_storage().unsafeGetStorageImpl();
  if (storage.device().type() != kChameleon) { // else: shared with a sibling
    c10::DataPtr data =
        storage.set_data_ptr(c10::DataPtr(nullptr, storage.device()));
    storage.set_data_ptr_noswap(memory(std::move(data), storage.nbytes()));
    storage.set_allocator(backend::device_allocator());
  }
  if (native.use_count() == 1) [[likely]] {
    retag(impl, device);
    return native;
  }
  return at::Tensor(make_outer(impl, native.storage(), device));
}

} // namespace chameleon::kernels
