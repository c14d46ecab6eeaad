// Pinned host memory for users (DataLoader's pin_memory, Tensor.pin_memory()).
// On cpu nothing needs pinning: ordinary memory that remembers its addresses,
// so that is_pinned() tells the truth about what was asked.
//
// Thread safety: all functions, any thread.
#pragma once

#include <ATen/core/CachingHostAllocator.h>

namespace chameleon::backend {

at::HostAllocator* host_allocator() noexcept;
bool host_allocator_owns(const void* address) noexcept;

} // namespace chameleon::backend
