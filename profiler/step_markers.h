// Where the program itself says that steps end, by step().
//
// Thread safety: none; the caller synchronises.
#pragma once

#include <algorithm>
#include <cstdint>

namespace chameleon::profiler {

class StepMarkers {
 public:
  // `op_count`: ops so far.
  void mark(std::uint64_t op_count) noexcept {
    longest_ops_ = std::max(longest_ops_, op_count - last_at_);
    last_at_ = op_count;
    used_ = true;
  }
  bool used() const noexcept { return used_; }
  // Only markers end steps, until none has come for far longer than any step
  // took: then the program marks no more.
  bool decide(std::uint64_t op_count) const noexcept {
    return used_ && op_count - last_at_ <= kPatience * longest_ops_ + kMoreOps;
  }

 private:
  static constexpr std::uint64_t kPatience = 4; // x the longest step
  static constexpr std::uint64_t kMoreOps = 1 << 16;

  bool used_ = false;
  std::uint64_t last_at_ = 0;
  std::uint64_t longest_ops_ = 0;
};

} // namespace chameleon::profiler
