// The entry points of the CUDA driver that we use, as a table that is filled
// at run time: the package imports where no driver is, and a test puts an
// emulated driver in its place. Nothing here links against CUDA.
//
// Each row asks for one version of one function by name, so its signature
// does not depend on the toolkit that we were compiled with.
//
// Tests: cuda_runtime_test.cpp, cuda_failures_test.cpp.
//
// Thread safety: any thread; the table is filled once and never changes.
#pragma once

#include <cstddef>
#include <cuda.h>
#include <cudaTypedefs.h>

#include "backend/runtime/result.h"

namespace chameleon::runtime {

// CALL(name, the version whose signature is meant)
#define CHAMELEON_CUDA_CALLS(CALL)               \
  CALL(cuInit, 2000)                             \
  CALL(cuDriverGetVersion, 2020)                 \
  CALL(cuGetErrorName, 6000)                     \
  CALL(cuGetErrorString, 6000)                   \
  CALL(cuDeviceGetCount, 2000)                   \
  CALL(cuDeviceGet, 2000)                        \
  CALL(cuDeviceGetAttribute, 2000)               \
  CALL(cuDevicePrimaryCtxRetain, 7000)           \
  CALL(cuDevicePrimaryCtxRelease, 11000)         \
  CALL(cuCtxGetCurrent, 4000)                    \
  CALL(cuCtxPushCurrent, 4000)                   \
  CALL(cuCtxPopCurrent, 4000)                    \
  CALL(cuThreadExchangeStreamCaptureMode, 10010) \
  CALL(cuCtxGetStreamPriorityRange, 5050)        \
  CALL(cuMemGetInfo, 3020)                       \
  CALL(cuMemAlloc, 3020)                         \
  CALL(cuMemFree, 3020)                          \
  CALL(cuMemGetAllocationGranularity, 10020)     \
  CALL(cuMemAddressReserve, 10020)               \
  CALL(cuMemAddressFree, 10020)                  \
  CALL(cuMemCreate, 10020)                       \
  CALL(cuMemRelease, 10020)                      \
  CALL(cuMemMap, 10020)                          \
  CALL(cuMemUnmap, 10020)                        \
  CALL(cuMemSetAccess, 10020)                    \
  CALL(cuMemHostRegister, 6050)                  \
  CALL(cuMemHostUnregister, 4000)                \
  CALL(cuMemcpyAsync, 4000)                      \
  CALL(cuStreamCreateWithPriority, 5050)         \
  CALL(cuStreamDestroy, 4000)                    \
  CALL(cuStreamSynchronize, 2000)                \
  CALL(cuStreamWaitEvent, 3020)                  \
  CALL(cuEventCreate, 2000)                      \
  CALL(cuEventDestroy, 4000)                     \
  CALL(cuEventRecord, 2000)                      \
  CALL(cuEventQuery, 2000)                       \
  CALL(cuEventSynchronize, 2000)                 \
  CALL(cuEventElapsedTime, 2000)

// May be missing (null).
#define CHAMELEON_CUDA_OPTIONAL_CALLS(CALL) CALL(cuMemcpyBatchAsync, 13000)

struct CudaDriver {
#define CHAMELEON_ROW(name, version) PFN_##name##_v##version name = nullptr;
  CHAMELEON_CUDA_CALLS(CHAMELEON_ROW)
  CHAMELEON_CUDA_OPTIONAL_CALLS(CHAMELEON_ROW)
#undef CHAMELEON_ROW
};

// The machine's driver, loaded and initialised by the first call; never
// unloaded. kUnavailable: there is none, it is too old, or it finds no GPU.
// Thread safe.
Result<const CudaDriver*> cuda_driver();

// "cuMemCreate failed: out of memory (CUDA_ERROR_OUT_OF_MEMORY)".
// REQUIRES: result is not CUDA_SUCCESS.
Error cuda_error(const CudaDriver& driver, CUresult result, const char* call);

inline CUdeviceptr device_pointer(const std::byte* address) noexcept {
  return reinterpret_cast<CUdeviceptr>(address);
}

} // namespace chameleon::runtime
