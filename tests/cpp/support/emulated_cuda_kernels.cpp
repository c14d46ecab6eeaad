// Kernels of the stand-in for CUDA's libraries: they are found, configured and
// launched, and do nothing but count.
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "tests/cpp/support/emulated_cuda.h"

namespace {

std::atomic<std::uint64_t> kernels{0};

// What a kernel launch leaves between the two calls that it is made of.
struct Launch {
  dim3 grid, block;
  std::size_t shared = 0;
  cudaStream_t stream = nullptr;
};
thread_local Launch launch;

} // namespace

void chameleon::support::count_kernel() { ++kernels; }

// NOLINTBEGIN(readability-identifier-naming): CUDA's names
EXPORT std::uint64_t emulated_kernels() { return kernels; }

EXPORT void** __cudaRegisterFatBinary(void*) {
  static void* handle = nullptr;
  return &handle;
}
EXPORT void __cudaRegisterFatBinaryEnd(void**) {}
EXPORT void __cudaUnregisterFatBinary(void**) {}
EXPORT void __cudaRegisterFunction(void**, const char*, char*, const char*, int,
                                   uint3*, uint3*, dim3*, dim3*, int*) {}
EXPORT void __cudaRegisterVar(void**, char*, char*, const char*, int,
                              std::size_t, int, int) {}
EXPORT char __cudaInitModule(void**) { return 1; }
EXPORT cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void*>(function));
  return cudaSuccess;
}
EXPORT unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block,
                                            std::size_t shared,
                                            cudaStream_t stream) {
  launch = {grid, block, shared, stream};
  return 0;
}
EXPORT cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block,
                                              std::size_t* shared,
                                              void* stream) {
  *grid = launch.grid;
  *block = launch.block;
  *shared = launch.shared;
  *static_cast<cudaStream_t*>(stream) = launch.stream;
  return cudaSuccess;
}
EXPORT cudaError_t __cudaLaunchKernel(cudaKernel_t, dim3, dim3, void**,
                                      std::size_t, cudaStream_t) {
  chameleon::support::count_kernel();
  return chameleon::support::emulated_status();
}
EXPORT cudaError_t cudaLaunchKernel(const void*, dim3, dim3, void**,
                                    std::size_t, cudaStream_t) {
  chameleon::support::count_kernel();
  return chameleon::support::emulated_status();
}
EXPORT cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t*, const void*,
                                       void**) {
  chameleon::support::count_kernel();
  return chameleon::support::emulated_status();
}
EXPORT cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* of, const void*) {
  *of = {};
  of->maxThreadsPerBlock = 1024;
  of->binaryVersion = 90;
  of->ptxVersion = 90;
  of->numRegs = 32;
  return cudaSuccess;
}
EXPORT cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) {
  return cudaSuccess;
}
EXPORT cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    int* blocks, const void*, int, std::size_t, unsigned) {
  *blocks = 1;
  return cudaSuccess;
}
EXPORT cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks,
                                                                 const void*,
                                                                 int,
                                                                 std::size_t) {
  *blocks = 1;
  return cudaSuccess;
}
EXPORT cudaError_t cudaGetSymbolAddress(void** symbol, const void*) {
  static std::array<char, 4096> bytes;
  *symbol = bytes.data();
  return cudaSuccess;
}
// NOLINTEND(readability-identifier-naming)
