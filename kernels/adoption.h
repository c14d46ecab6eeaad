// What a native kernel made inside a call becomes chameleon's, in place: the
// memory is adopted as a block, the storage shows its logical address, the
// tensor gets our device and keys. Nothing is copied, unless the kernel took
// the memory from elsewhere.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>

#include "memory/pager.h"

namespace chameleon::kernels {

struct Adoption {
  memory::Pager& pager;
  memory::Call& call; // running
  c10::DeviceIndex index;

  // A DataPtr of ours over the first `bytes` of `data`, which is taken over.
  c10::DataPtr memory(c10::DataPtr data, std::size_t bytes) const;
  // REQUIRES: dense; its storage is no operand's alias.
  at::Tensor tensor(at::Tensor native) const;
};

} // namespace chameleon::kernels
