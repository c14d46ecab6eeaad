// The round so far as a shape variant of the path that is followed: the same
// ops on the same blocks, in other sizes. Keeps how far these are apart, and
// which rounds were such variants before.
//
// Thread safety: none; the caller synchronises.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "profiler/token.h"

namespace chameleon::profiler {

class ShapeVariant {
 public:
  // The path is followed although sizes are others.
  bool isFollowed() const noexcept { return is_followed_; }
  void follow(bool follows) noexcept { is_followed_ = follows; }
  // It has been from the round's beginning, so that the recording is a shape
  // variant of the whole path.
  bool isWholeRound() const noexcept { return is_whole_round_; }
  // A recording begins, which is the path so far; what began on it has so many
  // bytes.
  void beginRound(std::uint64_t bytes) noexcept {
    is_whole_round_ = true;
    beginWeighing(bytes);
  }
  void leave() noexcept { is_followed_ = is_whole_round_ = false; }

  // ---- sizes ---------------------------------------------------------------
  // Of values that begin in this round: up to here all had the path's sizes.
  void beginWeighing(std::uint64_t bytes) noexcept {
    seen_bytes_ = known_bytes_ = bytes;
  }
  // One that has `seen` bytes, and `known` on the path.
  void weigh(std::uint64_t seen, std::uint64_t known) noexcept {
    seen_bytes_ += seen;
    known_bytes_ += known;
  }
  // Else what is planned for the path would be far from what is needed.
  bool sizesAreNear() const noexcept {
    const std::uint64_t apart = std::max(seen_bytes_, known_bytes_) -
                                std::min(seen_bytes_, known_bytes_);
    return apart <= known_bytes_ / kNearShare;
  }

  // ---- rounds --------------------------------------------------------------
  // A round of these ops was a variant before; else this one is remembered.
  bool cameBefore(Token tokens) {
    if (std::find(rounds_.begin(), rounds_.end(), tokens) != rounds_.end()) {
      return true;
    }
    rounds_.resize(std::min(rounds_.size() + 1, kRemembered));
    rounds_[rounds_end_++ % kRemembered] = tokens;
    return false;
  }

 private:
  // What a path's results hold may differ so much, in total.
  static constexpr std::uint64_t kNearShare = 4;  // a quarter
  static constexpr std::size_t kRemembered = 256; // rounds

  bool is_followed_ = false;
  bool is_whole_round_ = false;
  std::uint64_t seen_bytes_ = 0;
  std::uint64_t known_bytes_ = 0;
  std::vector<Token> rounds_; // a ring
  std::size_t rounds_end_ = 0;
};

} // namespace chameleon::profiler
