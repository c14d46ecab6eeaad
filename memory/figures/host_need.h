// How much host memory steps need: the most that the last ones had in use at a
// time, and a margin. What the first steps took besides, before there was a
// plan, can be given back.
//
// Thread safety: none; the pager's mutex guards it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace chameleon::memory {

class HostNeed {
 public:
  // A step ended that had at most `peak_bytes` in use at a time.
  void stepEnded(std::size_t peak_bytes) noexcept {
    // Some steps need more than those before them, like a validation pass: the
    // next one shall find its memory there.
    if (peak_bytes > bytes())
      window_steps_ = std::min(2 * window_steps_, kMost);
    now_bytes_ = std::max(now_bytes_, peak_bytes);
    if (++steps_ < window_steps_) return;
    before_bytes_ = now_bytes_;
    now_bytes_ = 0;
    steps_ = 0;
    is_known_ = true;
  }
  // SIZE_MAX: not known yet.
  std::size_t bytes() const noexcept {
    if (!is_known_) return SIZE_MAX;
    const std::size_t most = std::max(before_bytes_, now_bytes_);
    return most + most / kMargin;
  }

 private:
  static constexpr std::size_t kMargin = 16;
  // Steps that count together. Plans change in the first few.
  static constexpr std::size_t kFirst = 4;
  static constexpr std::size_t kMost = 1024;

  std::size_t window_steps_ = kFirst;
  std::size_t steps_ = 0; // of the window that is open
  std::size_t now_bytes_ = 0;
  std::size_t before_bytes_ = 0; // of the last window
  bool is_known_ = false;
};

} // namespace chameleon::memory
