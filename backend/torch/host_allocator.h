// Pinned host memory for users (DataLoader's pin_memory, Tensor.pin_memory()).
// On cpu nothing needs pinning: ordinary memory that remembers its addresses,
// so that is_pinned() tells the truth about what was asked. On CUDA it is what
// CUDA pins, so that its copies know the memory.
//
// Tests: test_serialization.py.
//
// Thread safety: all functions, any thread.
#pragma once

#include <string_view>

#include <ATen/core/CachingHostAllocator.h>

namespace chameleon::backend {

at::HostAllocator* host_allocator();
bool is_pinned(const void* address);

// CUDA's, where that is the target, which makes `use` a use of the device;
// else null.
at::HostAllocator* cuda_host_allocator(std::string_view use);

} // namespace chameleon::backend
