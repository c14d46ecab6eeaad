// What a run costs without a plan: demand paging, on the planner's own model,
// as a yardstick.
//
// Before an op its missing operands are fetched; room comes from victims that
// are chosen then, and written back then if they are dirty. The host runs
// ahead of the device, so copies begin as soon as the room's events allow.
//
// Thread safety: a function of its arguments.
#pragma once

#include <cstdint>

#include "memory/policy/plan/link_model.h"
#include "memory/policy/plan/plan.h"
#include "memory/policy/plan/use_table.h"

namespace chameleon::memory {

enum class Victims {
  kLeastRecentlyUsed,
  kFarthestNextUse, // Belady's MIN
};

// The mean of the steps [from, to) of to + 1. REQUIRES: every op's
// operand_bytes are within the budget.
ModelledStep model_demand_paging(const UseTable& table, Victims victims,
                                 std::int64_t budget, const LinkModel& link,
                                 int from = 2, int to = 6);

} // namespace chameleon::memory
