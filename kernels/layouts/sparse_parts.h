// Sparse tensors have no storage: COO ones (indices, values) and compressed
// ones, CSR, CSC, BSR and BSC (compressed indices, plain indices, values), are
// made of dense tensors. These are what is pinned, moved and adopted; here
// sparse tensors are taken apart and put together.
//
// Thread safety: functions of their arguments.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/SmallVector.h>

namespace chameleon::kernels {

using SparseParts = c10::SmallVector<at::Tensor, 3>;

inline bool is_compressed(const c10::TensorImpl& tensor) {
  return tensor.key_set().has(c10::DispatchKey::SparseCsr);
}
inline bool is_sparse(const c10::TensorImpl& tensor) {
  return tensor.key_set().has(c10::DispatchKey::Sparse) ||
         is_compressed(tensor);
}

// Where an op on sparse tensors of the target has its native kernel.
c10::DispatchKeySet sparse_dispatch_key(bool compressed);

// Those of a sparse tensor, in the order above.
SparseParts parts_of(const c10::TensorImpl& sparse);
// The same, and `sparse` no longer holds them: the end of its life.
SparseParts take_parts(c10::TensorImpl& sparse);

// A sparse tensor of `parts`, on their device, and else as `like`.
at::Tensor make_sparse(const c10::TensorImpl& like, const SparseParts& parts);
// `sparse` becomes as `like`, of `parts`: an op wrote it.
void show_sparse(const c10::TensorImpl& like, c10::TensorImpl& sparse,
                 const SparseParts& parts);
// `to` shows what `from` does, on the same device and in the same dtype; what
// belongs to the object (version, derivative) stays. REQUIRES: one layout.
void copy_sparse(const c10::TensorImpl& from, c10::TensorImpl& to);

} // namespace chameleon::kernels
