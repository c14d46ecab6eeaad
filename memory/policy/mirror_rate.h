// How many bytes leave for the mirror in a step: what the way out carries
// beside a plan's own copies.
//
// Whoever commits does so every so many steps, and the bytes of a commit count
// for all of these. Where no other one comes they count for more and more.
//
// Tests: mirror_rate_test.cpp.
//
// Thread safety: bytesPerStep() from any thread, the others from one at a time.
#pragma once

#include <atomic>
#include <cstdint>

namespace chameleon::memory {

class MirrorRate {
 public:
  // `mirrored_bytes`: the sum since any fixed moment.
  void stepEnded(std::int64_t mirrored_bytes) noexcept {
    ++steps_;
    if (mirrored_bytes != sum_bytes_) {
      commit_bytes_ = mirrored_bytes - sum_bytes_;
      sum_bytes_ = mirrored_bytes;
      interval_ = steps_;
      steps_ = 0;
    } else if (steps_ > interval_) {
      interval_ = steps_;
    }
    if (interval_ > 0) {
      bytes_per_step_.store(commit_bytes_ / interval_,
                            std::memory_order_relaxed);
    }
  }
  // What is counted goes to zero.
  void rebase(std::int64_t mirrored_bytes) noexcept {
    sum_bytes_ -= mirrored_bytes;
  }

  std::int64_t bytesPerStep() const noexcept {
    return bytes_per_step_.load(std::memory_order_relaxed);
  }

 private:
  std::int64_t sum_bytes_ = 0;
  std::int64_t commit_bytes_ = 0; // of the last one
  std::int64_t steps_ = 0;        // since then
  std::int64_t interval_ = 0;     // steps from a commit to the next
  std::atomic<std::int64_t> bytes_per_step_{0};
};

} // namespace chameleon::memory
