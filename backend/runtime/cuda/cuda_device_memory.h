// Device memory of one GPU by the driver's virtual memory management: address
// ranges are reserved once; physical memory is mapped into them, and taken
// out again, in units of unitBytes(), each its own allocation. Where a device
// lacks that, a range is one plain allocation of what is free: commits and
// decommits inside it cost nothing and give nothing back.
//
// Tests: cuda_runtime_test.cpp, cuda_failures_test.cpp.
//
// Thread safety: every method may be called from any thread; callers keep
// commits of one range apart, as DeviceRuntime asks.
#pragma once

#include <cstddef>
#include <map>
#include <memory>

#include "backend/runtime/cuda/cuda_context.h"
#include "backend/runtime/ranked_mutex.h"

namespace chameleon::runtime {

class CudaDeviceMemory {
 public:
  // `unit_bytes` is rounded up to a power of two that the device can map.
  static Result<std::unique_ptr<CudaDeviceMemory>> create(
      const CudaContext& context, std::size_t unit_bytes);
  CudaDeviceMemory(const CudaDeviceMemory&) = delete;
  CudaDeviceMemory& operator=(const CudaDeviceMemory&) = delete;

  std::size_t unitBytes() const noexcept { return unit_bytes_; }
  bool maps() const noexcept { return maps_; } // false: plain allocations

  // As in DeviceRuntime, whose requirements hold. All need the context to be
  // current.
  Result<std::byte*> reserve(std::size_t bytes);
  Error commit(std::byte* address, std::size_t bytes);
  Error decommit(std::byte* address, std::size_t bytes);
  void unreserve(std::byte* address, std::size_t bytes) noexcept;

 private:
  CudaDeviceMemory(const CudaContext& context, std::size_t unit_bytes,
                   bool maps)
      : context_(context), unit_bytes_(unit_bytes), maps_(maps) {}
  Result<std::byte*> allocatePlain(std::size_t bytes);
  Error commitPlain(const std::byte* address, std::size_t bytes);
  Error mapUnit(CUdeviceptr address);

  const CudaContext& context_;
  const std::size_t unit_bytes_;
  const bool maps_;
  RankedMutex<LockRank::kRuntimePart> mutex_;
  std::map<const std::byte*, std::size_t> plain_; // guarded by mutex_
};

} // namespace chameleon::runtime
