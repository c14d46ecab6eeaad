// A GPU whose times are done by hand: a kernel of n bytes takes n + 1,000 ns;
// the link moves 1,000 bytes a microsecond each way alone, 1,500 both ways; a
// batch of copies begins after 2,000 ns.
#pragma once

#include <cstddef>

#include "backend/runtime/simulated/gpu_profiles.h"

namespace chameleon::memory {

inline runtime::GpuProfile hand_profile() {
  runtime::GpuProfile profile;
  profile.name = "hand";
  profile.memory_bytes = std::size_t{1} << 34;
  profile.host_memory_bytes = std::size_t{1} << 34;
  profile.hbm_bytes_per_s = 1e9;
  profile.flops_per_s.fill(1e12);
  profile.compute_fraction = 1;
  profile.bandwidth_fraction = 1;
  profile.launch_ns = 1000;
  profile.link_in_bytes_per_s = 1e9;
  profile.link_out_bytes_per_s = 1e9;
  profile.link_both_bytes_per_s = 1.5e9;
  profile.copy_latency_ns = 2000;
  return profile;
}

} // namespace chameleon::memory
