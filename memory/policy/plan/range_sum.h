// Adds amounts to ranges of a cyclic sequence, all in one go: each amount goes
// in where its range begins, and out where it ends.
//
// Thread safety: none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace chameleon::memory {

class RangeSum {
 public:
  explicit RangeSum(std::int32_t size)
      : change_(2 * static_cast<std::size_t>(size) + 1) {}

  // For the positions [from, to), which may reach into the next repetition:
  // 0 <= from <= to <= 2 * size.
  void add(std::int32_t from, std::int32_t to, std::int64_t amount) {
    change_[static_cast<std::size_t>(from)] += amount;
    change_[static_cast<std::size_t>(to)] -= amount;
  }

  // REQUIRES: numbers.size() == size.
  void addTo(std::vector<std::int64_t>& numbers) const {
    std::int64_t sum = 0;
    auto change = change_.begin();
    for (int repetition = 0; repetition < 2; ++repetition) {
      for (std::int64_t& number : numbers) number += sum += *change++;
    }
  }

 private:
  std::vector<std::int64_t> change_;
};

} // namespace chameleon::memory
