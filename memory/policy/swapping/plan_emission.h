// Stage 3 of the planner: a schedule becomes a plan in host order.
//
// Positions come from the schedule, stretched where room is short
// (absences.h). A write-back comes before the first gap in which the value is
// really away, once per write; values that never really leave are not written
// back at all.
//
// Neighbours in a copy queue become one batch while it stays below
// `batch_bytes` and none of them misses its deadline: a batch is ready as a
// whole, so batches are kept small beside what they save, one latency a copy.
//
// Cost: O(uses + actions * log). Thread safety: a function of its arguments.
//
// Tests: planner_test.cpp, planner_random_test.cpp.
#pragma once

#include <cstdint>

#include "memory/policy/plan/plan.h"
#include "memory/policy/plan/use_table.h"
#include "memory/policy/swapping/swap_schedule.h"
#include "memory/policy/swapping/victim_gaps.h"

namespace chameleon::memory {

// Fills all but `modelled`.
Plan emit_plan(const UseTable& table, const VictimGaps& gaps,
               const SwapSchedule& schedule, std::int64_t budget,
               std::int64_t batch_bytes);

} // namespace chameleon::memory
