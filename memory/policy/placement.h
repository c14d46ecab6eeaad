// Where what a step allocates lies, planned for all of its ops at once: offsets
// at which nothing is in the way of anything, within hardly more than what is
// live at a time. For steps that fit into HBM whole.
//
// Before one op of each round, the one at which the least is live, all that is
// live is moved together at the bottom. What ops allocate from there on, until
// the next round is there again, lies above it, at offsets from where it ends.
// Whoever finds another's bytes in a place takes room elsewhere.
//
// The largest come first, each into the smallest gap that is free for as long
// as it lives: greedy by size (Pisarchyk and Lee, "Efficient Memory Management
// for Deep Neural Net Inference", arXiv 2001.03288, section 5.3).
//
// Thread safety: none while it is made; freely shared once it is const.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "profiler/cycle.h"

namespace chameleon::memory {

struct Placement {
  struct Place {
    std::uint64_t offset;
    std::uint64_t bytes;
    bool is_workspace; // for whatever the op gives back before it ends
  };

  // Of op i: places[place_end[i - 1] .. place_end[i]), from 0 for op 0.
  std::vector<std::uint32_t> place_end;
  std::vector<Place> places;
  std::uint32_t packed_before = 0; // this op all that is live moves together
  std::uint64_t span_bytes = 0;    // the end of the highest place

  // Within the budget, behind what is packed; but a few places that do not fit
  // do no harm: what is planned there lies elsewhere.
  bool fits(std::uint64_t packed_bytes,
            std::uint64_t budget_bytes) const noexcept {
    return packed_bytes + span_bytes <=
           budget_bytes + budget_bytes / kOverShare;
  }

  std::span<const Place> of(std::size_t op) const noexcept {
    const std::size_t from = op == 0 ? 0 : place_end[op - 1];
    return {places.data() + from, place_end[op] - from};
  }

 private:
  static constexpr std::uint64_t kOverShare = 100;
};

// Nothing: it does not fit into the budget, or there are more values than
// kMostPlaced. The time grows with their square: 0.2 s for 7,000.
inline constexpr std::size_t kMostPlaced = 20'000;
std::optional<Placement> place_values(const profiler::Cycle& cycle,
                                      std::uint64_t budget_bytes);

} // namespace chameleon::memory
