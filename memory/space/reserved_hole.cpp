#include "memory/space/reserved_hole.h"

#include <algorithm>
#include <iterator>

#include "backend/runtime/check.h"

namespace chameleon::memory {

void ReservedHole::reserve(Extent* hole) {
  CHAMELEON_CHECK(empty(), "a second hole for one call");
  begin_ = hole->offset;
  end_ = hole->offset + hole->bytes;
  pieces_.push_back(hole);
}

Extent* ReservedHole::cut(Arena& arena, std::size_t offset, std::size_t bytes) {
  const std::size_t begin = begin_ + offset;
  const auto at =
      std::find_if(pieces_.begin(), pieces_.end(), [&](const Extent* piece) {
        return piece->offset + piece->bytes > begin;
      });
  if (at == pieces_.end() || (*at)->offset > begin ||
      (*at)->offset + (*at)->bytes < begin + bytes) {
    return nullptr;
  }
  Extent* extent = *at;
  auto behind = at;
  if (extent->offset < begin) {
    extent = arena.split(extent, begin - extent->offset);
    ++behind;
  } else {
    behind = pieces_.erase(at);
  }
  if (extent->bytes > bytes) pieces_.insert(behind, arena.split(extent, bytes));
  arena.revived(*extent);
  return extent;
}

bool ReservedHole::takeBack(Arena& arena, Extent* extent, const Fence& fence) {
  if (extent->offset < begin_ || extent->offset >= end_) return false;
  arena.addFence(extent, fence);
  arena.discarded(*extent);
  auto at = std::find_if(
      pieces_.begin(), pieces_.end(),
      [&](const Extent* piece) { return piece->offset > extent->offset; });
  at = pieces_.insert(at, extent);
  const auto next = std::next(at);
  if (next != pieces_.end() && extent->next == *next) {
    arena.join(extent);
    pieces_.erase(next);
  }
  if (at != pieces_.begin() && extent->previous == *std::prev(at)) {
    arena.join(*std::prev(at));
    pieces_.erase(at);
  }
  return true;
}

std::size_t ReservedHole::largestPiece() const noexcept {
  std::size_t largest = 0;
  for (const Extent* piece : pieces_) largest = std::max(largest, piece->bytes);
  return largest;
}

std::size_t ReservedHole::release(Arena& arena) noexcept {
  std::size_t bytes = 0;
  for (Extent* piece : pieces_) {
    bytes += piece->bytes;
    arena.free(piece, {});
  }
  pieces_.clear();
  begin_ = 0;
  end_ = 0;
  return bytes;
}

} // namespace chameleon::memory
