// Which work on which streams uses a block: positions that are stamped on it
// when an op ends, and fences made of them when the block, or a place that it
// leaves, is used anew.
//
// Thread safety: any thread, no lock, but that a block's stamps are read as a
// whole only by who has the pager's lock, or a pin, and stamp() needs a pin.
// No method waits on the host, unless streams cannot be joined. Made where it
// is needed: it is nothing but the streams.
#pragma once

#include <atomic>
#include <cstdint>

#include "memory/block.h"
#include "memory/streams/stream_positions.h"

namespace chameleon::memory {

class BlockUses {
 public:
  // REQUIRES: `streams` outlives it.
  explicit BlockUses(StreamPositions& streams) : streams_(streams) {}

  // The block is used up to `position`.
  void stamp(Block& block, Position position) noexcept {
    std::atomic<std::uint64_t>& slot = block.last_use[0];
    std::uint64_t old = slot.load(std::memory_order_relaxed);
    if ((old != 0 && (Position{old}.stream() != position.stream() ||
                      old >= position.word)) ||
        !slot.compare_exchange_strong(old, position.word,
                                      std::memory_order_release,
                                      std::memory_order_relaxed)) {
      stampSlow(block, position);
    }
  }
  static void clearUses(Block& block) noexcept;

  Fence usesOf(const Block& block); // all work on the device bytes
  Fence writesOf(const Block& block);
  Fence hostUsesOf(const Block& block); // copies from and to the host copy

  // Adds to a fence what has not passed; where streams cannot be joined the
  // host waits instead.
  void addTo(Fence& fence, Position position) noexcept {
    if (streams_.passed(position) || fence.add(position)) return;
    joinTo(fence, position);
  }
  void addTo(Fence& fence, const Fence& other) noexcept;
  // One position that covers a fence.
  Position join(const Fence& fence) noexcept;

  // True: later work on the stream runs after the position in any case.
  bool inOrder(Position position, StreamIndex stream) const noexcept {
    return streams_.follows(stream, position);
  }
  bool inOrder(const Fence& fence, StreamIndex stream) const noexcept {
    for (const Position position : fence.slots()) {
      if (position.none()) return true;
      if (!inOrder(position, stream)) return false;
    }
    return true;
  }
  bool usesInOrder(const Block& block, StreamIndex stream) const noexcept {
    const auto at = [](const std::atomic<std::uint64_t>& word) {
      return Position{word.load(std::memory_order_acquire)};
    };
    const auto& uses = block.last_use; // in use from the front
    return inOrder(at(uses[0]), stream) &&
           inOrder(at(block.last_write), stream) &&
           (at(uses[1]).none() ||
            (inOrder(at(uses[1]), stream) && inOrder(at(uses[2]), stream)));
  }

 private:
  void stampSlow(Block& block, Position position) noexcept;
  void joinTo(Fence& fence, Position position) noexcept;

  StreamPositions& streams_;
};

} // namespace chameleon::memory
