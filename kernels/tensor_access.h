// What torch keeps protected and alias tensors need: the fields of a
// TensorImpl, its storage, and which key sets mean "an ordinary dense tensor".
//
// Private to kernels/. Written for the torch release the package is built for:
// the layout of TensorImpl is part of torch's ABI within one minor release.
//
// Thread safety: none; the caller holds the tensor alone, or only reads it.
#pragma once

#include <algorithm>
#include <array>
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
  static c10::DispatchKeySet aliasTensorKeys() {
    static const c10::DispatchKeySet keys = bornWith(backend::target().type);
    return keys;
  }

  static c10::Storage& storageOf(c10::TensorImpl& tensor) {
    return tensor.*(&TensorAccess::storage_);
  }
  static bool hasExtraMeta(const c10::TensorImpl& tensor) {
    return tensor.*(&TensorAccess::extra_meta_) != nullptr;
  }
  // That, or autograd's: it is private, between these two.
  static bool hasMeta(const c10::TensorImpl& tensor) {
    const auto* begin = reinterpret_cast<const std::byte*>(
        &(tensor.*(&TensorAccess::storage_)) + 1);
    std::array<const void*, 2> meta;
    std::memcpy(static_cast<void*>(meta.data()), begin, sizeof(meta));
    return meta[0] != nullptr || meta[1] != nullptr;
  }
  // `keys`: outerKeys().
  static bool isPlain(const c10::TensorImpl& outer, c10::DispatchKeySet keys) {
    return outer.key_set() == keys && !hasExtraMeta(outer);
  }
  static bool sameShape(const c10::TensorImpl& a, const c10::TensorImpl& b) {
    const auto& x = a.*(&TensorAccess::sizes_and_strides_);
    const auto& y = b.*(&TensorAccess::sizes_and_strides_);
    const std::size_t dim = x.size();
    if (y.size() != dim || a.*(&TensorAccess::storage_offset_) !=
                               b.*(&TensorAccess::storage_offset_)) {
      return false;
    }
    const std::int64_t* const x_sizes = x.sizes_data();
    const std::int64_t* const y_sizes = y.sizes_data();
    const std::int64_t* const x_strides = x.strides_data();
    const std::int64_t* const y_strides = y.strides_data();
    for (std::size_t i = 0; i < dim; ++i) {
      if (x_sizes[i] != y_sizes[i] || x_strides[i] != y_strides[i]) {
        return false;
      }
    }
    return true;
  }

  // Of plain tensors.
  static std::uint64_t numel(const c10::TensorImpl& tensor) {
    return static_cast<std::uint64_t>(tensor.*(&TensorAccess::numel_));
  }

  // `tensor` gets another device, and of `keys` those that go with it.
  static void retarget(c10::TensorImpl& tensor, c10::DispatchKeySet keys,
                       c10::Device device) {
    tensor.*(&TensorAccess::device_opt_) = device;
    const bool to_outer = device.type() == backend::kChameleon;
    if (keys == (to_outer ? aliasTensorKeys() : outerKeys())) [[likely]] {
      tensor.*(&TensorAccess::key_set_) =
          to_outer ? outerKeys() : aliasTensorKeys();
      return;
    }
    tensor.*(&TensorAccess::key_set_) = keys;
    tensor._change_backend_component_keys(device);
  }

  // All metadata of any tensor, and `storage`.
  static void show(const c10::TensorImpl& like, c10::TensorImpl& tensor,
                   c10::Storage storage, c10::Device device) {
    storageOf(tensor) = std::move(storage);
    if (device.type() != backend::kChameleon && isPlain(like, outerKeys())) {
      showPlain(like, tensor, aliasTensorKeys(), device);
      return;
    }
    copy_generic_tensor_metadata(&like, &tensor);
    retarget(tensor, like.key_set() - c10::python_ks, device);
  }

  // The same for a plain one, keeping the storage: a quarter of the cost.
  // `keys`: aliasTensorKeys().
  [[gnu::always_inline]] static void showPlain(const c10::TensorImpl& like,
                                               c10::TensorImpl& alias_tensor,
                                               c10::DispatchKeySet keys,
                                               c10::Device device) {
    // Sizes, strides, offset, count, dtype, device and flags lie side by side;
    // flags are bit-fields, which can be named by no pointer. All is plain data
    // but for sizes and strides of many dimensions, which lie elsewhere.
    const auto& sizes = like.*(&TensorAccess::sizes_and_strides_);
    auto& alias_tensor_sizes =
        alias_tensor.*(&TensorAccess::sizes_and_strides_);
    if (std::max(sizes.size(), alias_tensor_sizes.size()) <=
        C10_SIZES_AND_STRIDES_MAX_INLINE_SIZE) [[likely]] {
      copyBytes(like, alias_tensor, &TensorAccess::sizes_and_strides_);
    } else {
      alias_tensor_sizes = sizes;
      copyBytes(like, alias_tensor, &TensorAccess::storage_offset_);
    }
    alias_tensor.set_allow_tensor_metadata_change(true);
    alias_tensor.*(&TensorAccess::device_opt_) = device;
    alias_tensor.*(&TensorAccess::key_set_) = keys;
  }

 private:
  // All from `first` up to the keys.
  template <typename T>
  [[gnu::always_inline]] static void copyBytes(const c10::TensorImpl& from,
                                               c10::TensorImpl& to,
                                               T c10::TensorImpl::* first) {
    const auto* begin = reinterpret_cast<const std::byte*>(&(from.*first));
    const auto* end =
        reinterpret_cast<const std::byte*>(&(from.*(&TensorAccess::key_set_)));
    std::memcpy(reinterpret_cast<std::byte*>(&(to.*first)), begin,
                static_cast<std::size_t>(end - begin));
  }
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
  return tensor.is_uniquely_owned() && !TensorAccess::hasMeta(*tensor) &&
         tensor->pyobj_slot()->load_pyobj() == nullptr;
}

} // namespace chameleon::kernels
