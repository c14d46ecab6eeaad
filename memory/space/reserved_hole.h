// One hole of the arena that is reserved for one call: its kernel's allocations
// are cut out of it at offsets that the call chooses (FirstFit), and come back
// to it. Nobody else gets any of it before it is released. What becomes a block
// meanwhile is the hole's no more.
//
// The arena sees what is reserved as in-call extents. Thread safety: none; the
// pager's lock guards it. Invariant: pieces lie in [begin, end), by offset, and
// no two of them are neighbours.
#pragma once

#include <cstddef>
#include <vector>

#include "memory/space/arena.h"

namespace chameleon::memory {

class ReservedHole {
 public:
  bool empty() const noexcept { return end_ == 0; }
  // REQUIRES: empty(); an in-call extent.
  void reserve(Extent* hole);
  // The bytes at `offset` of the hole as an extent of their own; it carries
  // the fence of the piece it came from. Null: they are not all held.
  Extent* cut(Arena& arena, std::size_t offset, std::size_t bytes);
  // Takes an in-call extent back that was cut; earlier work on it is covered by
  // `fence` and the extent's own. False: it lies elsewhere.
  bool takeBack(Arena& arena, Extent* extent, const Fence& fence);
  std::size_t largestPiece() const noexcept;
  // Frees what is reserved, and returns how much that was.
  std::size_t release(Arena& arena) noexcept;

 private:
  std::vector<Extent*> pieces_;
  std::size_t begin_ = 0;
  std::size_t end_ = 0; // 0: nothing is reserved
};

} // namespace chameleon::memory
