// A sequence of numbers with "add to a range" and "where in a range is the
// last number above a limit", each O(log n). A segment tree without
// propagation: a node holds what was added to all of its range, and the
// maximum of its range, that included.
//
// Thread safety: none.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace chameleon::memory {

class RangeMax {
 public:
  static constexpr std::int32_t kNone = -1;

  // `numbers`, `repeats` times over.
  RangeMax(const std::vector<std::int64_t>& numbers, std::int32_t repeats)
      : leaves_(std::bit_ceil(std::max<std::size_t>(
            1, numbers.size() * static_cast<std::size_t>(repeats)))),
        nodes_(2 * leaves_) {
    std::size_t leaf = leaves_;
    for (std::int32_t round = 0; round < repeats; ++round) {
      for (const std::int64_t number : numbers) nodes_[leaf++].max = number;
    }
    for (; leaf < 2 * leaves_; ++leaf) nodes_[leaf].max = kLowest;
    for (std::size_t node = leaves_ - 1; node > 0; --node) pull(node);
  }

  // Adds to the numbers in [from, to).
  void add(std::int32_t from, std::int32_t to, std::int64_t amount) {
    if (from >= to) return;
    std::size_t left = leaves_ + static_cast<std::size_t>(from);
    std::size_t right = leaves_ + static_cast<std::size_t>(to);
    const std::size_t first = left;
    const std::size_t last = right - 1;
    for (; left < right; left /= 2, right /= 2) {
      if (left % 2 == 1) apply(left++, amount);
      if (right % 2 == 1) apply(--right, amount);
    }
    for (std::size_t node = first / 2; node > 0; node /= 2) pull(node);
    for (std::size_t node = last / 2; node > 0; node /= 2) pull(node);
  }

  // The last position in [from, to) whose number is above the limit, or kNone.
  std::int32_t lastAbove(std::int32_t from, std::int32_t to,
                         std::int64_t limit) const {
    if (from >= to) return kNone;
    return search(1, 0, static_cast<std::int32_t>(leaves_), from, to, limit);
  }

 private:
  static constexpr std::int64_t kLowest = -(std::int64_t{1} << 62);

  struct Node {
    std::int64_t max = 0;
    std::int64_t added = 0;
  };
  void apply(std::size_t node, std::int64_t amount) {
    nodes_[node].max += amount;
    nodes_[node].added += amount;
  }
  void pull(std::size_t node) {
    nodes_[node].max =
        std::max(nodes_[2 * node].max, nodes_[2 * node + 1].max) +
        nodes_[node].added;
  }
  std::int32_t search(std::size_t node, std::int32_t low, std::int32_t high,
                      std::int32_t from, std::int32_t to,
                      std::int64_t limit) const {
    if (to <= low || high <= from || nodes_[node].max <= limit) return kNone;
    if (high - low == 1) return low;
    const std::int32_t middle = low + (high - low) / 2;
    const std::int64_t below = limit - nodes_[node].added;
    const std::int32_t right =
        search(2 * node + 1, middle, high, from, to, below);
    return right != kNone ? right
                          : search(2 * node, low, middle, from, to, below);
  }

  std::size_t leaves_;
  std::vector<Node> nodes_;
};

} // namespace chameleon::memory
