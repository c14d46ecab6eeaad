// Nested tensors of torch's strided layout: a storage like any tensor's, and
// on the CPU three small tensors that tell sizes, strides and offsets. (Those
// of layout=torch.jagged are Python objects made of dense tensors.)
//
// Tests: alias_tensors_test.cpp, test_layouts.py.
//
// Thread safety: functions of their arguments.
#pragma once

#include <c10/core/TensorImpl.h>

namespace chameleon::kernels {

inline bool is_nested(const c10::TensorImpl& tensor) {
  return tensor.key_set().has(c10::DispatchKey::NestedTensor);
}

// Where an op on nested tensors has its native kernel.
c10::DispatchKeySet nested_dispatch_key();

// A nested tensor over `storage` with the metadata of `like`, a nested one.
// What of that was allocated inside the running call is copied.
c10::intrusive_ptr<c10::TensorImpl> make_nested(const c10::TensorImpl& like,
                                                c10::Storage storage,
                                                c10::Device device);

} // namespace chameleon::kernels
