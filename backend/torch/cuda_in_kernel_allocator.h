// What CUDA kernels allocate during an op call comes from the arena; all else
// is the native allocator's, which keeps its caching, statistics, pools and
// graphs for plain CUDA tensors in the same process.
//
// Tests: test_cuda_emulated.py.
//
// Thread safety: that of CUDA's own allocator: any thread.
#pragma once

#include <c10/core/Device.h>

namespace chameleon::backend {

// Idempotent. REQUIRES: CUDA was initialised.
void install_cuda_in_kernel_allocator();

// True: somebody directs allocations to a memory pool, as graph captures do.
// Lock-free.
bool memory_pools_are_open() noexcept;
// Throws if the calling thread's current stream is being captured: a graph
// holds addresses, and tensors here have none for longer than a call.
void refuse_capture(c10::DeviceIndex device);

} // namespace chameleon::backend
