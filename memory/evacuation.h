// One hole of a given size, made by moving what lies there into holes
// elsewhere, which may have to be made in the same way first: which place, and
// what goes where. The search alone, on plain figures; pager_compact.cpp
// carries it out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace chameleon::memory {

// A part of the arena. All of them tile it, in address order.
struct Part {
  enum class Kind : std::uint8_t { kFree, kMovable, kStays };
  Kind kind;
  std::size_t bytes;
  // Movable: what its move costs. Free: 0 if what moves there need not wait,
  // else more the longer it may have to.
  std::size_t cost;
};

struct Evacuation {
  struct Move {
    std::size_t from;   // a part; none moves twice
    std::size_t offset; // where its first byte goes; free when its turn comes
  };
  std::vector<Move> moves; // in this order; then the hole is there
  std::size_t offset;      // the hole's
  std::size_t cost;
};

// Of the places that can be emptied for less than `most_cost` the one that
// costs least. What lies in it goes into the holes outside, the largest first,
// each into the smallest one that takes it (of those that need no wait, if
// there are any); where none does, a place of its size is emptied for it first.
// Nothing: no such place was found. Among very many parts not all are tried.
std::optional<Evacuation> find_evacuation(std::span<const Part> parts,
                                          std::size_t bytes,
                                          std::size_t most_cost);

} // namespace chameleon::memory
