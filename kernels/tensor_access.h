// What torch keeps protected and twins need: the fields of a TensorImpl, its
// storage, and which key sets mean "an ordinary dense tensor".
//
// Private to kernels/. Written for the torch release the package is built for:
// the layout of TensorImpl is part of torch's ABI within one minor release.
#pragma once

#include <cstddef>
#include <cstring>

#include <c10/core/TensorImpl.h>

#include "backend/torch/device.h"

namespace chameleon::kernels {

// Reaches TensorImpl's protected state; never instantiated. (Naming a member
// through a derived class yields a pointer to the base's member.)
struct TensorAccess : c10::TensorImpl {
  // Key sets of dense tensors as they are born: no lazy bits, no subclass.
  static c10::DispatchKeySet outerKeys() {
    static const c10::DispatchKeySet keys = bornWith(backend::kChameleon);
    return keys;
  }
  // REQUIRES: the device was used.
  static c10::DispatchKeySet twinKeys() {
    static const c10::DispatchKeySet keys = bornWith(backend::target().type);
    return keys;
  }

  static c10::Storage& storageOf(c10::TensorImpl& tensor) {
    return tensor.*(&TensorAccess::storage_);
  }
  static bool hasExtraMeta(const c10::TensorImpl& tensor) {
    return tensor.*(&TensorAccess::extra_meta_) != nullptr;
  }
  static bool isPlain(const c10::TensorImpl& outer) {
    return outer.key_set() == outerKeys() && !hasExtraMeta(outer);
  }
  static bool sameShape(const c10::TensorImpl& a, const c10::TensorImpl& b) {
    return a.*(&TensorAccess::sizes_and_strides_) ==
               b.*(&TensorAccess::sizes_and_strides_) &&
           a.*(&TensorAccess::storage_offset_) ==
               b.*(&TensorAccess::storage_offset_);
  }

  // `tensor` gets another device, and of `keys` those that go with it.
  static void retarget(c10::TensorImpl& tensor, c10::DispatchKeySet keys,
                       c10::Device device) {
    tensor.*(&TensorAccess::device_opt_) = device;
    const bool to_outer = device.type() == backend::kChameleon;
    if (keys == (to_outer ? twinKeys() : outerKeys())) [[likely]] {
      tensor.*(&TensorAccess::key_set_) = to_outer ? outerKeys() : twinKeys();
      return;
    }
    tensor.*(&TensorAccess::key_set_) = keys;
    tensor._change_backend_component_keys(device);
  }

  // All metadata of any tensor, and `storage`.
  static void show(const c10::TensorImpl& like, c10::TensorImpl& tensor,
                   c10::Storage storage, c10::Device device) {
    copy_generic_tensor_metadata(&like, &tensor);
    storageOf(tensor) = std::move(storage);
    retarget(tensor, like.key_set() - c10::python_ks, device);
  }

  // The same for a plain one, keeping the storage: a quarter of the cost.
  static void showPlain(const c10::TensorImpl& like, c10::TensorImpl& twin,
                        c10::Device device) {
    twin.*(&TensorAccess::sizes_and_strides_) =
        like.*(&TensorAccess::sizes_and_strides_);
    // Offset, count, dtype, device and flags lie side by side, as plain data;
    // flags are bit-fields, which can be named by no pointer.
    const auto* from = reinterpret_cast<const std::byte*>(
        &(like.*(&TensorAccess::storage_offset_)));
    const auto* end =
        reinterpret_cast<const std::byte*>(&(like.*(&TensorAccess::key_set_)));
    std::memcpy(
        reinterpret_cast<std::byte*>(&(twin.*(&TensorAccess::storage_offset_))),
        from, static_cast<std::size_t>(end - from));
    twin.set_allow_tensor_metadata_change(true);
    twin.*(&TensorAccess::device_opt_) = device;
    twin.*(&TensorAccess::key_set_) = twinKeys();
  }

 private:
  static c10::DispatchKeySet bornWith(c10::DeviceType type) {
    return c10::make_intrusive<c10::TensorImpl>(
               c10::DispatchKeySet(c10::computeDispatchKey(
                   std::nullopt, std::nullopt, c10::Device(type))),
               caffe2::TypeMeta::Make<float>(), c10::Device(type))
        ->key_set();
  }
};

// Nobody else holds the shell, and nothing was attached to it.
template <typename Pointer> // at::Tensor's pointer type differs from ours
[[gnu::always_inline]] inline bool is_empty_shell(const Pointer& tensor) {
  return tensor.use_count() == 1 && tensor.weak_use_count() == 1 &&
         tensor->autograd_meta() == nullptr &&
         !TensorAccess::hasExtraMeta(*tensor) &&
         tensor->pyobj_slot()->load_pyobj() == nullptr;
}

} // namespace chameleon::kernels
