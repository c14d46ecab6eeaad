// What a pager may use.
//
// Thread safety: plain values.
#pragma once

#include <algorithm>
#include <cstddef>

namespace chameleon::memory {

struct Limits {
  std::size_t hbm_budget_bytes;
  std::size_t host_budget_bytes;
  double oversubscription; // logical limit = this x hbm budget
  // The part that host_budget_bytes takes of what the machine gains later; 0:
  // of nothing (HostPool::followMachine()).
  double host_growth_share = 0;
  bool recompute = false; // plans may drop blocks and run ops again
  // Of the logical limit, what a program allows itself:
  // set_per_process_memory_fraction.
  double live_fraction = 1;
};

// oversubscription x budget, as far as a size_t goes.
inline std::size_t logical_limit_bytes(double oversubscription,
                                       std::size_t hbm_budget_bytes) {
  constexpr double kMost = 9.0e18;
  return static_cast<std::size_t>(std::min(
      oversubscription * static_cast<double>(hbm_budget_bytes), kMost));
}
inline std::size_t logical_limit_bytes(const Limits& limits,
                                       std::size_t hbm_budget_bytes) {
  return logical_limit_bytes(limits.oversubscription * limits.live_fraction,
                             hbm_budget_bytes);
}

} // namespace chameleon::memory
