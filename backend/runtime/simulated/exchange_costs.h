// How long a collective takes among GPUs of a profile: the alpha-beta model,
// latency x steps + bytes / bandwidth, of the algorithms that NCCL chooses from
// (Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication
// Operations in MPICH", 2005, sections 4.1 to 4.5; the ring, the tree and the
// protocols as NCCL's own model has them, src/graph/tuning.cc). The fastest is
// taken.
//
// It knows GPUs that are alike, machines that are alike, and a group with
// equally many ranks on each. Not modelled: what groups that run at once take
// from each other, the sockets of a machine, the switches of a network.
//
// Tests: exchange_costs_test.cpp.
//
// Thread safety: a function of its arguments.
#pragma once

#include "backend/runtime/device_runtime.h"
#include "backend/runtime/simulated/gpu_profiles.h"

namespace chameleon::runtime {

struct ExchangeCost {
  double latency_ns = 0; // no byte flows
  double flow_ns = 0;    // at full speed
  // Of what flows: over the GPU's link to the host, so much each way. All of
  // it, but what NVLink carries.
  double host_link_bytes = 0;
};

// REQUIRES: 1 <= machines <= ranks. With one rank it is a copy, or nothing.
ExchangeCost cost_of_exchange(const Exchange& exchange,
                              const GpuProfile& profile);

} // namespace chameleon::runtime
