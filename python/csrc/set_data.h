// `tensor.data = new_data` across devices: the tensor object keeps its
// identity (optimizers, ties, hooks and weak references point at it) and shows
// other bytes on another device from now on.
//
// Thread safety: the GIL is held.
#pragma once

#include <ATen/core/Tensor.h>

namespace chameleon::python {

// As VariableHooks::set_data, without its check that both tensors' devices
// allow a shallow copy: for tensors with plain storage, and for sparse ones of
// one layout, it is sound. A leaf's gradient accumulator is renewed where
// device or dtype changed; a live graph keeps the old one.
void set_data(const at::Tensor& tensor, const at::Tensor& new_data);

// From now on `x.data = y` does so for sparse tensors of one layout, one of
// them here: PyTorch takes no sparse tensor to a device that it does not know.
// All else is PyTorch's.
//
// Needs the GIL. Once.
void take_sparse_data();

} // namespace chameleon::python
