#include "memory/room/budget_advice.h"

#include <algorithm>
#include <functional>

namespace chameleon::memory {

std::size_t budget_for(std::vector<std::size_t> piece_bytes,
                       std::span<const PinnedRange> pinned) {
  std::vector<std::size_t> gaps; // bytes before each range, still free
  std::size_t end = 0;
  for (const PinnedRange& range : pinned) {
    gaps.push_back(range.offset_bytes - end);
    end = range.offset_bytes + range.bytes;
  }
  std::ranges::sort(piece_bytes, std::greater<>());
  for (const std::size_t bytes : piece_bytes) {
    const auto gap = std::ranges::find_if(
        gaps, [&](std::size_t free_bytes) { return free_bytes >= bytes; });
    if (gap != gaps.end()) {
      *gap -= bytes;
    } else {
      end += bytes;
    }
  }
  return end;
}

} // namespace chameleon::memory
