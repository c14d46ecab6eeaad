#include "backend/runtime/simulated/exchange_costs.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <limits>

namespace chameleon::runtime {

namespace {

using enum ExchangePattern;

// ---- constants ------------------------------------------------------------
// Sources:
//  [1] NCCL, src/graph/tuning.cc: baseLatencies, hwLatencies, llMaxBws and the
//      factors of ncclTopoTuneModel().
//  [2] nccl-tests, issue 212, an author of NCCL on 8 H100: a ring's bus
//      bandwidth is 370 GB/s, with NVLink SHARP it is 480 GB/s.
//  [3] nccl-tests, issue 290, an author of NCCL: 46 to 48 GB/s of 400 Gbit/s.
//  [4] NCCL, issue 1639: 8 RTX 5090 without peer access, bus bandwidth 28 GB/s,
//      4 of them 35 GB/s.

enum class Protocol : std::uint8_t { kLowLatency, kLowLatency128, kSimple };
constexpr Protocol kProtocols[] = {Protocol::kLowLatency,
                                   Protocol::kLowLatency128, Protocol::kSimple};

struct Latencies { // us, by protocol [1]
  double of[3];
  double operator[](Protocol protocol) const {
    return of[static_cast<std::size_t>(protocol)];
  }
};
constexpr Latencies kRingBase{{6.6, 14.0, 8.4}};
constexpr Latencies kTreeBase{{6.8, 14.0, 8.4}};
constexpr Latencies kRingNvlink{{0.6, 1.9, 3.4}};
constexpr Latencies kRingPcie{{1.0, 2.5, 5.7}};
constexpr Latencies kRingNetwork{{2.7, 4.0, 14.0}};
constexpr Latencies kTreeNvlink{{0.6, 1.25, 4.0}};
constexpr Latencies kTreePcie{{1.0, 1.9, 4.0}};
constexpr Latencies kTreeNetwork{{5.0, 8.5, 14.0}};
constexpr double kSharpUs = 25;
constexpr double kSharpNetworkUs = 20.9;
// A step of a ring across machines takes at least this, on a host by Intel.
constexpr double kNetworkStepUs = 1.0;

constexpr double kLowLatencyFraction = 0.5; // flags are half of what is sent
constexpr double kLowLatency128Fraction = 0.92;
constexpr double kTreeFraction = 0.92;
constexpr double kTreeLowLatencyFraction = 1 / 3.8;
constexpr double kTreeLowLatency128Fraction = 7.0 / 9;
constexpr double kTreeLowLatency128NetworkFraction = 120.0 / 128;
// The switch's all-reduce, of what a ring's links carry: 480 GB/s of bus
// bandwidth are 274 GB/s of the tensor [2].
constexpr double kSharpFraction = 480.0 / 370 * 8 / 14;
constexpr double kNetworkFraction = 47.0 / 50; // of the line rate [3]
// Through host memory, of the link when both directions flow: 35 of 45 GB/s,
// and a machine's GPUs write and read 8 x 28 GB/s each at most [4].
constexpr double kThroughHostFraction = 35.0 / 45;
constexpr double kHostMemoryBytesPerS = 2 * 8 * 28e9;

// The low-latency protocol has no more than this, bytes a second [1].
double most_of_low_latency(const GpuProfile& profile, int machines) {
  if (machines == 2) return 39.0e9;
  if (machines > 2) return 20.4e9;
  if (profile.capability.major >= 10) return 282.0e9;
  if (profile.capability.major == 9) return 141.0e9;
  return profile.capability.major == 8 ? 87.7e9 : 39.0e9;
}

// ---- where the ranks are --------------------------------------------------

struct Group {
  explicit Group(const Exchange& exchange, const GpuProfile& gpu)
      : profile(gpu),
        ranks(exchange.ranks),
        machines(exchange.machines),
        here(static_cast<double>(exchange.ranks) / exchange.machines) {
    const double both_ways = gpu.link_both_bytes_per_s / 2;
    network = gpu.network_bytes_per_s * kNetworkFraction;
    if (gpu.nvlink_bytes_per_s > 0) {
      within = gpu.nvlink_bytes_per_s;
    } else if (gpu.peer_access) {
      within = both_ways;
    } else {
      within = std::min(both_ways * kThroughHostFraction,
                        kHostMemoryBytesPerS / 2 / std::max(here, 1.0));
    }
  }

  bool isWithin() const { return machines == 1; }
  bool hasNvlink() const { return profile.nvlink_bytes_per_s > 0; }
  // Of a ring: each of the machine's GPUs sends a part of what leaves it.
  double ring() const {
    if (isWithin()) return within;
    return here > 1 ? std::min(within, here * network) : network;
  }

  const GpuProfile& profile;
  int ranks;
  int machines;
  double here;       // ranks on a machine
  double within = 0; // bytes a second each way, of a GPU
  double network = 0;
};

// ---- algorithms -----------------------------------------------------------

struct Time {
  double latency_us = 0;
  double flow_s = 0;
  double total() const { return latency_us * 1e-6 + flow_s; }
};

// How much of the tensor goes over each link of a ring, in how many steps. What
// begins or ends on one rank passes through all, in pieces.
struct Ring {
  double parts;
  int steps;
  int steps_between; // machines
};
Ring ring_of(ExchangePattern pattern, const Group& group) {
  const double others = group.ranks - 1;
  const int between = group.machines - 1;
  switch (pattern) {
    case kAllReduce:
      return {2 * others / group.ranks, 2 * (group.ranks - 1), 2 * between};
    case kAllGather:
    case kReduceScatter:
      return {others / group.ranks, group.ranks - 1, between};
    default:
      return {1, group.ranks - 1, between};
  }
}

Time ring_time(ExchangePattern pattern, double bytes, const Group& group,
               Protocol protocol) {
  const Ring ring = ring_of(pattern, group);
  double bandwidth = group.ring();
  if (protocol == Protocol::kLowLatency) {
    bandwidth = std::min(most_of_low_latency(group.profile, group.machines),
                         bandwidth * kLowLatencyFraction);
  } else if (protocol == Protocol::kLowLatency128) {
    bandwidth *= kLowLatency128Fraction;
  }
  double step_us = (group.hasNvlink() ? kRingNvlink : kRingPcie)[protocol];
  double between_us = kRingNetwork[protocol];
  if (!group.isWithin()) {
    const double pieces = protocol == Protocol::kSimple ? 3 : 1;
    step_us = std::max(step_us, kNetworkStepUs * pieces);
    if (group.here <= 1) between_us = kTreeNetwork[protocol];
  }
  return {kRingBase[protocol] + (ring.steps - ring.steps_between) * step_us +
              ring.steps_between * between_us,
          bytes * ring.parts / bandwidth};
}

double log2_of(int machines) { return std::floor(std::log2(machines)); }

// Up and down a chain in each machine and a double binary tree between them:
// every link carries the whole tensor both ways.
Time tree_time(double bytes, const Group& group, Protocol protocol) {
  // Between two machines nobody has two children [1].
  double bandwidth = group.ring();
  if (group.machines == 2 && group.here > 1) {
    bandwidth = std::min(group.within, 2 * group.here * group.network);
  }
  bandwidth *= kTreeFraction;
  if (protocol == Protocol::kLowLatency) {
    bandwidth = std::min(bandwidth * kTreeLowLatencyFraction,
                         most_of_low_latency(group.profile, group.machines));
  } else if (protocol == Protocol::kLowLatency128) {
    bandwidth *= group.isWithin() ? kTreeLowLatency128Fraction
                                  : kTreeLowLatency128NetworkFraction;
  }
  const double step_us =
      (group.hasNvlink() ? kTreeNvlink : kTreePcie)[protocol];
  return {kTreeBase[protocol] +
              2 * ((group.here - 1) * step_us +
                   log2_of(group.machines) * kTreeNetwork[protocol]),
          bytes * 2 / bandwidth};
}

// The switch adds up; between machines a tree of what each GPU has of the sum.
Time sharp_time(double bytes, const Group& group) {
  double bandwidth = group.within * kSharpFraction;
  Time time{kSharpUs, 0};
  if (!group.isWithin()) {
    const double children = group.machines == 2 ? 1 : 2;
    bandwidth = std::min(bandwidth, group.here * group.network / children);
    time.latency_us += kRingBase[Protocol::kSimple] +
                       2 * log2_of(group.machines) * kSharpNetworkUs;
  }
  time.flow_s = bytes / bandwidth;
  return time;
}

// Each rank's own messages, at once, to those here and to those elsewhere.
Time messages_time(double sent_bytes, const Group& group, int messages) {
  const double others = std::max(1, group.ranks - 1);
  const double elsewhere =
      group.isWithin() ? 0 : (group.ranks - group.here) / others;
  const double step_us =
      group.isWithin()
          ? (group.hasNvlink() ? kRingNvlink : kRingPcie)[Protocol::kSimple]
          : kRingNetwork[Protocol::kSimple];
  return {kRingBase[Protocol::kSimple] + step_us * std::log2(1 + messages),
          std::max(sent_bytes * (1 - elsewhere) / group.within,
                   sent_bytes * elsewhere / group.network)};
}

Time best(ExchangePattern pattern, double bytes, const Group& group) {
  const double others = group.ranks - 1;
  switch (pattern) {
    case kAllToAll:
    case kGather:
    case kScatter:
      return messages_time(bytes * others / group.ranks, group,
                           group.ranks - 1);
    case kSend:
      return messages_time(bytes, group, 1);
    default:
      break;
  }
  Time least{0, std::numeric_limits<double>::infinity()};
  const auto consider = [&least](const Time& time) {
    if (time.total() < least.total()) least = time;
  };
  for (const Protocol protocol : kProtocols) {
    // Only NVLink keeps 128 bytes together.
    if (protocol == Protocol::kLowLatency128 && !group.hasNvlink()) continue;
    consider(ring_time(pattern, bytes, group, protocol));
    if (pattern == kAllReduce) consider(tree_time(bytes, group, protocol));
  }
  if (pattern == kAllReduce && group.profile.nvlink_reduces &&
      group.here >= 2) {
    consider(sharp_time(bytes, group));
  }
  return least;
}

// Each way, over a GPU's link to the host.
double host_link_bytes(ExchangePattern pattern, double bytes,
                       const Group& group) {
  const double others = group.ranks - 1;
  const bool is_message = pattern == kAllToAll || pattern == kGather ||
                          pattern == kScatter || pattern == kSend;
  const double all = is_message
                         ? bytes * (pattern == kSend ? 1 : others / group.ranks)
                         : bytes * ring_of(pattern, group).parts;
  if (!group.hasNvlink()) return all;
  if (group.isWithin()) return 0;
  // Its own part of what goes through the network card.
  return is_message ? all * (group.ranks - group.here) / others
                    : all / group.here;
}

} // namespace

ExchangeCost cost_of_exchange(const Exchange& exchange,
                              const GpuProfile& profile) {
  ExchangeCost cost;
  if (exchange.ranks <= 1) { // read and written
    cost.latency_ns = static_cast<double>(profile.launch_ns);
    cost.flow_ns = 2 * exchange.bytes / profile.bytesPerSecond() * 1e9;
    return cost;
  }
  const Group group(exchange, profile);
  const Time time = best(exchange.pattern, exchange.bytes, group);
  cost.latency_ns = time.latency_us * 1e3;
  cost.flow_ns = time.flow_s * 1e9;
  if (cost.flow_ns > 0) {
    cost.host_link_bytes =
        host_link_bytes(exchange.pattern, exchange.bytes, group);
  }
  return cost;
}

} // namespace chameleon::runtime
