// Twins for direct calls: each with an alias storage of its own, made once and
// used again. A thread has one stack of them; a call pushes its twins and pops
// them in the end, calls inside calls push theirs on top.
//
// No twin stays bound after its call: popping takes its memory away. A twin
// that somebody kept, or attached something to, is replaced by another.
//
// Thread safety: belongs to its thread.
#pragma once

#include <array>
#include <cstddef>

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>

#include "kernels/tensor_access.h"

namespace chameleon::kernels {

class TwinStack {
 public:
  static constexpr std::size_t kCapacity = 128;

  bool hasRoomFor(std::size_t count) const noexcept {
    return depth_ + count <= kCapacity;
  }
  // A twin of a plain tensor on pinned bytes at `address`, with the keys and
  // the device of the target. REQUIRES: room.
  void push(const c10::TensorImpl& outer, std::byte* address,
            c10::DispatchKeySet keys, c10::Device target);
  // Down to `first`, what top() was.
  void popTo(const at::Tensor* first) noexcept;
  // Where the next twin will be; those pushed after it follow it.
  at::Tensor* top() noexcept { return &twins_[depth_]; }

 private:
  // The kernel kept, grew or marked it: another will take its place.
  static void drop(at::Tensor& twin, c10::StorageImpl& alias) noexcept;
  static at::Tensor make();

  std::size_t depth_ = 0;
  std::array<at::Tensor, kCapacity> twins_;
};

[[gnu::always_inline]] inline void TwinStack::push(const c10::TensorImpl& outer,
                                                   std::byte* address,
                                                   c10::DispatchKeySet keys,
                                                   c10::Device target) {
  at::Tensor& twin = twins_[depth_];
  if (!twin.defined()) [[unlikely]]
    twin = make();
  ++depth_;
  c10::TensorImpl& impl = *twin.unsafeGetTensorImpl();
  c10::StorageImpl& alias =
      *TensorAccess::storageOf(impl).unsafeGetStorageImpl();
  // Owns nothing: what it has for a deleter does nothing.
  alias._mutable_data_ptr_no_checks().unsafe_reset_data_and_ctx(address);
  alias.unsafe_set_nbytes(
      outer.unsafe_storage().unsafeGetStorageImpl()->nbytes());
  TensorAccess::showPlain(outer, impl, keys, target);
}

[[gnu::always_inline]] inline void TwinStack::popTo(
    const at::Tensor* first) noexcept {
  while (top() != first) {
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
    drop(twin, alias);
  }
}

} // namespace chameleon::kernels
