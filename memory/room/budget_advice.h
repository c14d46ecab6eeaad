// The budget that an error names: with it an op fits beside what others have
// pinned. Pinned bytes do not move, so each piece of the op must fit into a gap
// between them, or behind the last.
//
// Thread safety: functions of their arguments; arithmetic only, no lock.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace chameleon::memory {

// A part of HBM that cannot be moved.
struct PinnedRange {
  std::size_t offset_bytes;
  std::size_t bytes;
};

// A budget that is enough for `piece_bytes`, each in one piece: first fit, the
// largest first. If nothing is pinned it is their sum, the smallest that is
// enough. REQUIRES: `pinned` is in address order and does not overlap.
std::size_t budget_for(std::vector<std::size_t> piece_bytes,
                       std::span<const PinnedRange> pinned);

} // namespace chameleon::memory
