// Alias tensors for direct calls: each with an alias storage of its own, made
// once and used again. A thread has one stack of them; a call pushes its alias
// tensors and pops them in the end, calls inside calls push theirs on top.
//
// No alias tensor stays bound after its call: popping takes its memory away. An
// alias tensor that somebody kept, or attached something to, is replaced by
// another.
//
// Tests: alias_tensors_test.cpp.
//
// Thread safety: belongs to its thread.
#pragma once

#include <array>
#include <cstddef>

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>

#include "kernels/tensor_access.h"

namespace chameleon::kernels {

class AliasTensorStack {
 public:
  // Of the longest lists, and of calls inside them.
  static constexpr std::size_t kCapacity = 2048;

  bool hasRoomFor(std::size_t count) const noexcept {
    return depth_ + count <= kCapacity;
  }
  // An alias tensor of a plain tensor on pinned bytes at `address`, with the
  // keys and the device of the target. REQUIRES: room.
  void push(const c10::TensorImpl& outer, std::byte* address,
            c10::DispatchKeySet keys, c10::Device target);
  // Down to `first`, what top() was.
  void popTo(const at::Tensor* first) noexcept;
  // Where the next alias tensor will be; those pushed after it follow it.
  at::Tensor* top() noexcept { return &alias_tensors_[depth_]; }

 private:
  // The kernel kept, grew or marked it: another will take its place.
  static void drop(at::Tensor& alias_tensor, c10::StorageImpl& alias) noexcept;
  static at::Tensor make();

  std::size_t depth_ = 0;
  std::array<at::Tensor, kCapacity> alias_tensors_;
};

[[gnu::always_inline]] inline void AliasTensorStack::push(
    const c10::TensorImpl& outer, std::byte* address, c10::DispatchKeySet keys,
    c10::Device target) {
  at::Tensor& alias_tensor = alias_tensors_[depth_];
  if (!alias_tensor.defined()) [[unlikely]]
    alias_tensor = make();
  ++depth_;
  c10::TensorImpl& impl = *alias_tensor.unsafeGetTensorImpl();
  c10::StorageImpl& alias =
      *TensorAccess::storageOf(impl).unsafeGetStorageImpl();
  // Owns nothing: what it has for a deleter does nothing.
  alias._mutable_data_ptr_no_checks().unsafe_reset_data_and_ctx(address);
  alias.unsafe_set_nbytes(
      outer.unsafe_storage().unsafeGetStorageImpl()->nbytes());
  TensorAccess::showPlain(outer, impl, keys, target);
}

[[gnu::always_inline]] inline void AliasTensorStack::popTo(
    const at::Tensor* first) noexcept {
  while (top() != first) {
    at::Tensor& alias_tensor = alias_tensors_[--depth_];
    const c10::Storage& storage =
        TensorAccess::storageOf(*alias_tensor.unsafeGetTensorImpl());
    c10::StorageImpl& alias = *storage.unsafeGetStorageImpl();
    // False: the kernel gave it memory of its own.
    const bool bare =
        alias._mutable_data_ptr_no_checks().unsafe_reset_data_and_ctx(nullptr);
    if (bare && is_empty_shell(alias_tensor.getIntrusivePtr()) &&
        storage.use_count() == 1 && alias.resizable()) [[likely]] {
      continue;
    }
    drop(alias_tensor, alias);
  }
}

} // namespace chameleon::kernels
