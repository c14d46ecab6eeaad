// The device on an NVIDIA GPU: device memory by virtual memory management, a
// stream of its own for copies each way, pooled events, host memory that is
// pinned in the background. It speaks to the driver through a table
// (cuda_driver.h), so tests run these very sources on an emulated one.
//
// Compute streams are the framework's; nothing here waits for one on the host
// but synchronize(), and no driver callback runs host code.
//
// Thread safety: that of DeviceRuntime.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

#include "backend/runtime/device_runtime.h"

struct CUstream_st; // CUstream is a pointer to it

namespace chameleon::runtime {

struct CudaDriver;

struct CudaRuntimeOptions {
  // The driver's handle of compute stream `id` of device `ordinal`. Null: an
  // id is the handle itself, as CUDA's default stream and the external streams
  // of PyTorch have it.
  CUstream_st* (*stream_of)(int ordinal, std::uint64_t id) = nullptr;
  // Unit of device memory, raised to what the device can map. Large units
  // make few driver calls; the last one may be committed in part only.
  std::size_t commit_bytes = std::size_t{32} << 20;
  // How host slabs are registered (cuda_host_memory.h).
  std::size_t register_chunk_bytes = std::size_t{64} << 20;
  bool register_in_background = true;
  // Told once when host memory cannot be pinned. Empty: stderr.
  std::function<void(std::string_view)> warn;
};

// What is held of CUDA.
struct CudaRuntimeStats {
  std::size_t registered_host_bytes; // now
  std::size_t events;                // made so far
};

class CudaRuntime : public DeviceRuntime {
 public:
  virtual CudaRuntimeStats stats() const noexcept = 0;
};

// `driver` must outlive the runtime. Waits for its own copies when destroyed,
// if it is; leaked in a forked child.
Result<std::unique_ptr<CudaRuntime>> make_cuda_runtime(
    const CudaDriver& driver, int ordinal,
    const CudaRuntimeOptions& options = {});

} // namespace chameleon::runtime
