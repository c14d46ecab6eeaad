// What the simulated device is made of: the figures of a named GPU, or a
// user's own. Values with their sources are in gpu_profiles.cpp.
//
// Thread safety: no shared state.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "backend/runtime/device_runtime.h"
#include "backend/runtime/result.h"

namespace chameleon::runtime {

struct ComputeCapability {
  int major = 0;
  int minor = 0;
};

// Rates are peaks of dense arithmetic and of memory; what kernels reach is the
// peak times a fraction.
struct GpuProfile {
  std::string name;
  std::string product; // what CUDA calls it
  ComputeCapability capability;
  int multiprocessors = 0;
  std::size_t memory_bytes = 0;
  std::size_t host_memory_bytes = 0; // of the machine, for one GPU
  double hbm_bytes_per_s = 0;
  std::array<double, kMathTypes> flops_per_s{}; // by MathType
  double compute_fraction = 0;                  // 0 < fraction <= 1
  double bandwidth_fraction = 0;
  std::int64_t launch_ns = 0; // of a kernel, serial
  // The link to the host: what copies reach in each direction alone, and both
  // together.
  double link_in_bytes_per_s = 0;
  double link_out_bytes_per_s = 0;
  double link_both_bytes_per_s = 0;
  std::int64_t copy_latency_ns = 0; // of a batch of copies, serial
  // To other GPUs of the machine: what collectives take NVLink to carry each
  // way, over all its links (0: there is none, they go over PCIe); whether the
  // switch adds up, so that an all-reduce goes over the links once; whether
  // PCIe carries from GPU to GPU, or by way of host memory alone.
  double nvlink_bytes_per_s = 0;
  bool nvlink_reduces = false;
  bool peer_access = false;
  // To other machines: the line rate each way of the network's part that one
  // GPU has.
  double network_bytes_per_s = 0;
  // Fused attention kernels that PyTorch has for the GPU.
  bool flash_attention = false;
  bool efficient_attention = false;

  double flopsPerSecond(MathType math) const {
    return flops_per_s[static_cast<std::size_t>(math)] * compute_fraction;
  }
  double bytesPerSecond() const { return hbm_bytes_per_s * bandwidth_fraction; }
};

std::span<const GpuProfile> gpu_profiles();

// "h200", or figures: "memory=96GiB, base=h200" is an H200 with 96 GiB. Keys
// are the rows of kKeys in gpu_profiles.cpp; without `base` all are needed.
// kInvalidArgument in one sentence.
Result<GpuProfile> parse_gpu_profile(std::string_view text);

} // namespace chameleon::runtime
