// One hole of a given size, made by moving what lies there into holes
// elsewhere: which place, and what goes where. The search alone, on plain
// figures; pager_compact.cpp carries it out.
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
  // Parts [begin, end) become the hole.
  std::size_t begin;
  std::size_t end;
  // In this order, each to the lower end of what is left of a hole.
  struct Move {
    std::size_t from;
    std::size_t hole;
  };
  std::vector<Move> moves;
};

// The cheapest place that can be emptied: what lies in it fits into the holes
// outside, the largest first, each into the smallest one that takes it (of
// those that need no wait, if there are any). Nothing: there is no such place,
// or, among very many parts, none in the cheapest places.
std::optional<Evacuation> find_evacuation(std::span<const Part> parts,
                                          std::size_t bytes);

} // namespace chameleon::memory
