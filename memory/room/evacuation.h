// One hole of a given size, made by moves: of what lies in a place into holes
// elsewhere, and of blocks that slide together. Which place, and what goes
// where: the search alone, on plain figures; Compaction carries it out.
//
// Thread safety: functions of their arguments.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace chameleon::memory {

// A part of the arena. All of them tile it, in address order; no two that are
// free are neighbours.
struct Part {
  enum class Kind : std::uint8_t {
    kFree,
    kMovable, // to anywhere
    kSlides,  // down, to what is free below it, and to nowhere else
    kStays,
  };
  Kind kind;
  std::size_t bytes;
  // What a move costs, as bytes that HBM copies in that time. Free: 0 if what
  // moves there need not wait, else more the longer it may have to.
  std::size_t cost_bytes;
};

struct Evacuation {
  struct Move {
    std::size_t from;         // a part; none moves twice
    std::size_t offset_bytes; // where its first byte goes when its turn comes
    bool slides; // down, over what is free right below it; else into a hole
  };
  std::vector<Move> moves;  // in this order; then the hole is there
  std::size_t offset_bytes; // the hole's
  std::size_t cost_bytes;
};

// How many parts a search looks at, at most: a millisecond or two.
inline constexpr std::size_t kMostLooks = std::size_t{1} << 16;

// The cheapest way found to a hole of `bytes` that costs less than
// `most_cost_bytes`. Two kinds of place are tried:
//   - one whose blocks go into holes outside, the largest block first, each
//   into
//     the smallest hole that takes it, if possible one that needs no wait;
//     where no hole is large enough, blocks slide together for it first;
//   - one where sliding alone is enough.
// Nothing: no such way was found. After some `most_looks` parts the search
// gives up.
std::optional<Evacuation> find_evacuation(std::span<const Part> parts,
                                          std::size_t bytes,
                                          std::size_t most_cost_bytes,
                                          std::size_t most_looks = kMostLooks);

} // namespace chameleon::memory
