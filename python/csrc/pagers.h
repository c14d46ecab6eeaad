// Whom the bindings ask: the pager of a device, the block of a tensor.
//
// Thread safety: any thread.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "memory/pager.h"

namespace chameleon::python {

// backend::finish_deferred_work(), for functions that Python calls: what the
// ops warn of are Python's warnings.
void finish_deferred_work();

// Index -1 is the current device. What was deferred runs first, as far as there
// is memory for it. pager() is a first use of the device, by `what`;
// pager_if_used() is none, and null where nothing has been.
memory::Pager& pager(c10::DeviceIndex index, const char* what);
memory::Pager* pager_if_used(c10::DeviceIndex index);

// Null: the storage has no block. What was deferred runs first, all of it.
memory::Block* block_of(const at::Tensor& tensor);

} // namespace chameleon::python
