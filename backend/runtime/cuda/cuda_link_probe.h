// Measures the link between one GPU and pinned host memory.
//
// Tests: cuda_runtime_test.cpp, cuda_failures_test.cpp.
//
// Thread safety: any thread; one probe at a time, or they measure each other.
#pragma once

#include "backend/runtime/cuda/cuda_context.h"
#include "backend/runtime/device_runtime.h"

namespace chameleon::runtime {

// Copies 32 MiB each way alone, then both at a time, on the given streams;
// takes 64 MiB of device and of host memory meanwhile. Blocks the host until
// done: some 30 ms, most of it for pinning. Needs the context to be current.
Result<LinkSpeeds> measure_link(const CudaContext& context, CUstream in,
                                CUstream out);

} // namespace chameleon::runtime
