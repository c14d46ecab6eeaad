// The device on machines without a GPU: a range of host memory poses as HBM,
// two copy threads pose as the copy engines. Compute streams run on the
// calling thread, so their work is complete when it was submitted and wait()
// on one blocks the caller; the adversarial modes (cpu_adversary.h) take the
// first of these comforts away and check every caller.
//
// Thread safety: that of DeviceRuntime.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>

#include "backend/runtime/cpu/cpu_adversary.h"
#include "backend/runtime/device_runtime.h"
#include "backend/runtime/simulated/gpu_profiles.h"

namespace chameleon::runtime {

struct CpuRuntimeOptions {
  CpuAdversary adversary;  // inactive: prompt copies, nothing is checked
  MisuseHandler on_misuse; // empty: print and abort
  // Of make_runtime(): a modelled clock (clocked_cpu_runtime.h), no adversary.
  std::optional<GpuProfile> clock = std::nullopt;
  int devices = 1; // that make_runtime() knows, each on its own
};

inline constexpr std::size_t kCpuCommitBytes = std::size_t{2} << 20;

// Starts no thread and takes no memory until they are needed. The object may
// be leaked; destroyed, it runs what was submitted first. A forked child gets
// an Error from every method that returns one.
std::unique_ptr<DeviceRuntime> make_cpu_runtime(
    const CpuRuntimeOptions& options = {});

} // namespace chameleon::runtime
