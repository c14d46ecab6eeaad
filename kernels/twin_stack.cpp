#include "kernels/twin_stack.h"

#include <c10/core/StorageImpl.h>

#include "backend/torch/device.h"
#include "kernels/tensor_access.h"
#include "kernels/twins.h"

namespace chameleon::kernels {
constinit thread_local TwinStack* TwinStack::current = nullptr;

TwinStack& TwinStack::makeForThread() {
  struct Owner {
    ~Owner() { delete std::exchange(current, nullptr); }
  };
  thread_local Owner owner; // a later call of the thread's end makes one more
  (void)owner;
  return *(current = new TwinStack);
}

void TwinStack::push(const c10::TensorImpl& outer, std::byte* address,
                     c10::Device target) {
  at::Tensor& twin = twins_[depth_];
  if (!twin.defined()) [[unlikely]]
    twin = new_twin();
  ++depth_;
  c10::TensorImpl& impl = *twin.unsafeGetTensorImpl();
  c10::StorageImpl& alias =
      *TensorAccess::storageOf(impl).unsafeGetStorageImpl();
  // Owns nothing: what it has for a deleter does nothing.
  alias._mutable_data_ptr_no_checks().unsafe_reset_data_and_ctx(address);
  alias.set_nbytes(outer.unsafe_storage().unsafeGetStorageImpl()->nbytes());
  TensorAccess::showPlain(outer, impl, target);
}

void TwinStack::popTo(std::size_t depth) noexcept {
  while (depth_ > depth) {
    at::Tensor& twin = twins_[--depth_];
    const c10::Storage& storage =
        TensorAccess::storageOf(*twin.unsafeGetTensorImpl());
    c10::StorageImpl& alias = *storage.unsafeGetStorageImpl();
    // False: the kernel gave it memory of its own.
    const bool bare =
        alias._mutable_data_ptr_no_checks().unsafe_reset_data_and_ctx(nullptr);
    if (bare && is_empty_shell(twin.getIntrusivePtr()) &&
        storage.use_count() == 1 && alias.resizable()) [[likely]] {
      continue;
    }
    close(alias);
    twin.reset();
  }
}

} // namespace chameleon::kernels
