// When each value is outside HBM, as ranges of positions, and how they are
// stretched until what is placed fits at every op.
//
// A schedule made in virtual time, of two repetitions, becomes one cycle: the
// repetitions need not agree where they meet, and then there is too little
// room somewhere. There a value that came early comes later (the farthest
// deadline first), or one that lingers leaves earlier (the farthest next use
// first). Both only ever give room; with all gaps stretched to their ends the
// room is what stage 1 made sure of, so this always succeeds.
//
// Cost: O((uses + ops) * log) where room is short, O(uses + ops) else.
// Thread safety: a function of its arguments.
//
// Tests: planner_test.cpp, planner_random_test.cpp.
#pragma once

#include <cstdint>
#include <vector>

#include "memory/policy/plan/use_table.h"
#include "memory/policy/swapping/swap_schedule.h"
#include "memory/policy/swapping/victim_gaps.h"

namespace chameleon::memory {

// The value is outside HBM at the positions [leaves, returns) of gap `use`,
// which count from the repetition in which the gap begins. An empty range: it
// stays.
struct Absence {
  UseIndex use;
  std::int32_t leaves;
  std::int32_t returns;
};

// One per gap that stage 1 chose.
std::vector<Absence> fit_absences(const UseTable& table, const VictimGaps& gaps,
                                  const SwapSchedule& schedule,
                                  std::int64_t budget);

} // namespace chameleon::memory
