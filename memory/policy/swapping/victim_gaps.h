// Stage 1 of the planner: which gaps between uses are spent outside HBM.
//
// Walks the ops in order and evicts when the resident bytes pass the limit: the
// value whose next use is farthest (MIN: L. A. Belady, "A study of replacement
// algorithms for a virtual-storage computer", IBM Systems Journal 5(2), 1966),
// where a value that would have to be written back first competes at a price,
// and what lies beyond the look-ahead is taken as unknown: it goes first, least
// recently used first, or spread over all of it.
// Two heaps, clean and dirty, compared at the current op: that keeps MIN's
// order inside each. No times: only order and bytes.
//
// The walk covers two repetitions and keeps the decisions of the steady one.
// Then what fits back in is taken back in (refill), shortest gaps first.
//
// Cost: O(uses * log uses). Thread safety: a function of its arguments.
//
// Tests: planner_test.cpp, planner_random_test.cpp.
#pragma once

#include <cstdint>
#include <vector>

#include "memory/policy/plan/use_table.h"

namespace chameleon::memory {

struct GapParameters {
  // A dirty victim must be this much farther away (0: not at all, 1: twice as
  // far; very much: clean ones first) than a clean one.
  double dirty_price = 0;
  // Part of the budget that is left free, for copies to run ahead.
  double planning_margin = 0;
  // Look-ahead, as a part of the cycle's ops; 0: all of them.
  double window = 0;
  bool refill = false;
  // The first victims are values that are used again only beyond the
  // look-ahead. False: the one that was used longest ago goes first. True: some
  // of all of them go, spread evenly. An example is an optimizer's state of
  // which a part must leave. With `spread` each of its ops waits for a small
  // part of its own operands, while a part of those of the op before goes out.
  // Else some ops wait for all of theirs.
  bool spread = false;

  friend bool operator==(const GapParameters&, const GapParameters&) = default;
};

struct VictimGaps {
  // Per use: gap u is spent outside HBM, from position away_from[u] in
  // [begin(u), end(u)) to end(u).
  std::vector<std::uint8_t> away;
  std::vector<std::int32_t> away_from;
  // Per op: bytes in HBM during it if every gap is spent so exactly. At most
  // the budget.
  std::vector<std::int64_t> resident;
};

// REQUIRES: every op's operand_bytes are within the budget.
VictimGaps choose_victim_gaps(const UseTable& table, std::int64_t budget,
                              const GapParameters& parameters);

} // namespace chameleon::memory
