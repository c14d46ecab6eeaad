// Chooses what carries the device, by the option `physical_device`, and the
// budgets that hold where the user gave none.
//
// Thread safety: all functions may be called from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "backend/runtime/cpu/cpu_runtime.h"
#include "backend/runtime/cuda/cuda_runtime.h"
#include "backend/runtime/device_runtime.h"
#include "backend/runtime/result.h"

namespace chameleon::runtime {

// Devices of the chosen kind. Uses none of them.
int physical_device_count() noexcept;

// kUnavailable: this machine or build has no such device. kInvalidArgument:
// REQUIRES 0 <= device_index < physical_device_count().
Result<std::unique_ptr<DeviceRuntime>> make_runtime(int device_index);

// The option `debug`: everything is checked after every so many op calls; 0:
// never. A cpu runtime is then adversarial as well, unless it is already.
std::uint64_t debug_interval();

// What make_runtime() gives to the cpu runtimes it makes from now on; tests
// set an adversary here before the first use.
void set_cpu_runtime_options(CpuRuntimeOptions options);

// What the layer that runs kernels on a GPU offers.
struct CudaSupport {
  CudaRuntimeOptions options;
  const CudaDriver* driver = nullptr; // null: the machine's own
  // How many GPUs there are, found without using one. Null: one.
  int (*device_count)() noexcept = nullptr;
};

// From now on "cuda" can be chosen, and "auto" means it where a driver finds a
// GPU. Without it, and in a build without CUDA headers, "cuda" is refused.
void set_cuda_support(std::optional<CudaSupport> support);

// hbm_budget where none is given: 1 GiB on cpu, a simulated card's memory, else
// 90 % of what is free.
std::size_t default_hbm_budget_bytes(const DeviceRuntime& runtime);

// host_budget where none is given: 80 % of the host memory that is available
// when the device is first used (machine_memory.h says what is read), and later
// of what the machine gains. On cpu the device takes its share from the same
// memory, so that is left out, down to 10 %.
inline constexpr double kDefaultHostShare = 0.8;
std::size_t default_host_budget_bytes(const DeviceRuntime& runtime,
                                      std::size_t hbm_budget_bytes);

} // namespace chameleon::runtime
