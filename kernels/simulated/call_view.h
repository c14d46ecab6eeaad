// One op call as the models of time and memory see it: shapes and types of its
// arguments and results, after the call. No bytes.
//
// Thread safety: belongs to its call.
#pragma once

#include <cstddef>
#include <string_view>

#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/UndefinedTensorImpl.h>
#include <c10/util/ArrayRef.h>

#include "kernels/layouts/sparse_parts.h"
#include "kernels/op_traits.h"

namespace chameleon::kernels::simulated {

struct CallView {
  const OpTraits& traits;
  const c10::FunctionSchema& schema;
  c10::ArrayRef<c10::IValue> arguments;
  c10::ArrayRef<c10::IValue> results;

  // Null: not a tensor, or undefined.
  const c10::TensorImpl* argument(std::size_t index) const {
    return tensor(arguments[index]);
  }
  const c10::TensorImpl* result(std::size_t index) const {
    return tensor(results[index]);
  }
  bool flag(std::size_t index) const {
    return index < arguments.size() && arguments[index].isBool() &&
           arguments[index].toBool();
  }

  static const c10::TensorImpl* tensor(const c10::IValue& value) {
    if (!value.isTensor()) return nullptr;
    const c10::TensorImpl* impl = value.unsafeToTensorImpl();
    return impl == c10::UndefinedTensorImpl::singleton() ? nullptr : impl;
  }
};

// "aten::add" of "aten::add.Tensor".
inline std::string_view base_name(std::string_view name) {
  return name.substr(0, name.find('.'));
}

// As CUDA's kernels touch them: an expanded element counts once.
inline double touched_bytes(const c10::TensorImpl& tensor) {
  if (is_sparse(tensor)) { // has no strides
    double bytes = 0;
    for (const at::Tensor& part : parts_of(tensor)) {
      bytes += touched_bytes(*part.unsafeGetTensorImpl());
    }
    return bytes;
  }
  double elements = 1;
  for (int64_t i = 0; i < tensor.dim(); ++i) {
    if (tensor.stride(i) != 0 || tensor.size(i) == 0) {
      elements *= static_cast<double>(tensor.size(i));
    }
  }
  return elements * static_cast<double>(tensor.dtype().itemsize());
}

} // namespace chameleon::kernels::simulated
