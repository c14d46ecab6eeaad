// How many bytes a step go out to the mirror: what the way out carries beside a
// plan's own copies.
//
// Whoever commits does so every so many steps, and what was sent of a commit
// counts for all of these. Where no other one comes it counts for more and
// more.
//
// Tests: mirror_rate_test.cpp.
//
// Thread safety: bytesPerStep() from any thread; the pager's mutex guards the
// others.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace chameleon::memory {

class MirrorRate {
 public:
  void stepEnded() noexcept {
    ++steps_;
    publish();
  }
  void commitBegins() noexcept {
    interval_ = steps_;
    steps_ = 0;
  }
  void commitEnded(std::int64_t sent_bytes) noexcept {
    sent_bytes_ = sent_bytes;
    publish();
  }

  std::int64_t bytesPerStep() const noexcept {
    return bytes_per_step_.load(std::memory_order_relaxed);
  }

 private:
  void publish() noexcept {
    bytes_per_step_.store(
        sent_bytes_ / std::max({interval_, steps_, std::int64_t{1}}),
        std::memory_order_relaxed);
  }

  std::int64_t sent_bytes_ = 0; // of the last commit
  std::int64_t interval_ = 0;   // steps from the one before to it
  std::int64_t steps_ = 0;      // since it began
  std::atomic<std::int64_t> bytes_per_step_{0};
};

} // namespace chameleon::memory
