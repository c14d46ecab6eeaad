// How bytes move inside a device whose copies must not overlap (CUDA has no
// memmove): as one copy where source and destination lie apart, else in pieces
// of their distance, and where these would be small, by way of a buffer. Known
// beforehand: one device does it, the simulated one takes as long.
//
// Thread safety: a function of its arguments.
#pragma once

#include <algorithm>
#include <cstddef>

#include "backend/runtime/device_runtime.h"

namespace chameleon::runtime {

struct MoveSteps {
  // A copy of so much takes longer than its launch.
  static constexpr std::size_t kLeastPieceBytes = std::size_t{4} << 20;
  static constexpr std::size_t kBounceBytes = std::size_t{16} << 20;

  std::size_t piece_bytes = 0; // of each piece but the last
  std::size_t pieces = 0;      // 0: there is nothing to move
  bool bounces = false;        // each piece is copied twice

  std::size_t copies() const noexcept { return bounces ? 2 * pieces : pieces; }
};

inline std::size_t distance_of(const Copy& copy) noexcept {
  return copy.destination < copy.source
             ? static_cast<std::size_t>(copy.source - copy.destination)
             : static_cast<std::size_t>(copy.destination - copy.source);
}

inline MoveSteps steps_of_move(const Copy& move) noexcept {
  MoveSteps steps;
  const std::size_t distance = distance_of(move);
  if (move.bytes == 0 || distance == 0) return steps;
  steps.bounces =
      distance < move.bytes && distance < MoveSteps::kLeastPieceBytes;
  steps.piece_bytes =
      steps.bounces ? MoveSteps::kBounceBytes : std::min(distance, move.bytes);
  steps.pieces = (move.bytes + steps.piece_bytes - 1) / steps.piece_bytes;
  return steps;
}

} // namespace chameleon::runtime
