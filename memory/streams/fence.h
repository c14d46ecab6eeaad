// When bytes may be touched: a set of positions on streams, all of which must
// have passed. Positions replace one event per use: each stream counts the
// work submitted to it, and stream_positions.h finds or makes an event that
// covers a position only when somebody has to wait for it.
//
// Thread safety: plain values.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace chameleon::memory {

// Index of a stream in StreamPositions: those of the runtime come first,
// compute streams follow in order of first use.
using StreamIndex = std::uint8_t;
inline constexpr StreamIndex kCopyIn = 0;
inline constexpr StreamIndex kCopyOut = 1;
inline constexpr StreamIndex kMoves = 2;
inline constexpr StreamIndex kFirstCompute = 3;
inline constexpr std::size_t kMaxStreams = 64;

// "Everything that was submitted to `stream` up to and including number
// `count`". Packed into one word so that it can be stored atomically; 0 is
// "nothing to wait for".
struct Position {
  std::uint64_t word = 0;

  static constexpr Position make(StreamIndex stream, std::uint64_t count) {
    return {(std::uint64_t{stream} << 56) | count};
  }
  constexpr bool none() const { return word == 0; }
  constexpr StreamIndex stream() const {
    return static_cast<StreamIndex>(word >> 56);
  }
  constexpr std::uint64_t count() const {
    return word & ((std::uint64_t{1} << 56) - 1);
  }
  bool operator==(const Position&) const = default;
};

// At most kCapacity positions, one per stream. When a fifth stream comes in,
// add() answers false and the caller joins streams first
// (StreamPositions::add).
class Fence {
 public:
  static constexpr std::size_t kCapacity = 4;

  // Keeps the later of two positions of one stream. False: no slot left,
  // nothing changed.
  bool add(Position position) noexcept {
    if (position.none()) return true;
    for (Position& slot : slots_) {
      if (slot.none()) {
        slot = position;
        return true;
      }
      if (slot.stream() == position.stream()) {
        if (slot.word < position.word) slot = position;
        return true;
      }
    }
    return false;
  }
  bool empty() const noexcept { return slots_[0].none(); }
  void clear() noexcept { slots_ = {}; }
  // Positions in use come first; iteration may stop at the first none().
  const std::array<Position, kCapacity>& slots() const noexcept {
    return slots_;
  }
  std::array<Position, kCapacity>& slots() noexcept { return slots_; }

 private:
  std::array<Position, kCapacity> slots_{};
};

} // namespace chameleon::memory
