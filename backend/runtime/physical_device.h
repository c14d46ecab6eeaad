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
#include "backend/runtime/local_ranks.h"
#include "backend/runtime/result.h"

namespace chameleon::runtime {

// Devices of the chosen kind. Uses none of them. On cuda there are as many as
// the process sees GPUs. On cpu and simulated there is one for each local rank,
// so that a script may use device LOCAL_RANK, as it would on a machine with
// that many GPUs: each is made when it is first used, with memory of its own,
// so a process pays for those that it uses.
int physical_device_count(const LocalRanks& ranks = {}) noexcept;

// kUnavailable: this machine or build has no such device. kInvalidArgument:
// REQUIRES 0 <= device_index < physical_device_count(ranks).
Result<std::unique_ptr<DeviceRuntime>> make_runtime(
    int device_index, const LocalRanks& ranks = {});

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

// Among how many the default budgets of one device are divided.
struct MemorySharers {
  int of_device_memory = 1;
  int of_host_memory = 1;
};

// Host memory is divided among the local ranks, each of which is taken to use
// one device; without a launcher among the devices of the process, any of which
// it may use. Device memory is divided where ranks have it together: on cpu,
// whose device memory is the host's, among all, on cuda among those on a card.
// `devices`: of this process.
MemorySharers memory_sharers(const DeviceRuntime& runtime,
                             const LocalRanks& ranks, int devices);

// hbm_budget where none is given: 1 GiB on cpu, a simulated card's memory, else
// 90 % of what is free; divided among `sharers`.
std::size_t default_hbm_budget_bytes(const DeviceRuntime& runtime,
                                     int sharers = 1);

// host_budget where none is given: 80 % of the host memory that is available
// when the device is first used (machine_memory.h says what is read), and later
// of what the machine gains, divided among `sharers`. On cpu the device takes
// its budget from the same memory, so that is left out, down to 10 %.
inline constexpr double kDefaultHostShare = 0.8;
std::size_t default_host_budget_bytes(const DeviceRuntime& runtime,
                                      std::size_t hbm_budget_bytes,
                                      int sharers = 1);

} // namespace chameleon::runtime
