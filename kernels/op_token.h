// What an op call is to the profiler: 64 bits of the op, of its operands'
// shapes, strides and dtypes, and of which results are wanted. Values and
// addresses do not count, nor do scalars: a learning rate may change every
// step. The quick half is of the op and of how many elements each operand has.
// Tensors in lists are left out of it: their many blocks say enough.
//
// Thread safety: functions of their arguments.
#pragma once

#include <cstdint>

#include <c10/core/TensorImpl.h>

#include "kernels/layouts/nested_parts.h"
#include "profiler/token.h"

namespace chameleon::kernels {

inline void add_to_token(profiler::TokenHasher& hasher,
                         const c10::TensorImpl& tensor) {
  if (is_nested(tensor)) [[unlikely]] { // its sizes differ inside
    hasher.add(static_cast<std::uint64_t>(tensor.numel()));
    return;
  }
  const bool contiguous = tensor.is_contiguous();
  hasher.add(
      static_cast<std::uint64_t>(tensor.dim()) << 9 |
      (contiguous ? 1U : 0U) << 8 |
      static_cast<std::uint8_t>(c10::typeMetaToScalarType(tensor.dtype())));
  for (const std::int64_t size : tensor.sizes()) {
    hasher.add(static_cast<std::uint64_t>(size));
  }
  if (contiguous) return;
  for (const std::int64_t stride : tensor.strides()) {
    hasher.add(static_cast<std::uint64_t>(stride));
  }
}

// The quick half.
inline void add_to_token(profiler::QuickHasher& hasher,
                         const c10::TensorImpl& tensor) {
  hasher.add(static_cast<std::uint64_t>(tensor.numel()));
}

} // namespace chameleon::kernels
