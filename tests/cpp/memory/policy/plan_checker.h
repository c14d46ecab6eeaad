// Carries a plan out in host order, with no model of time, and says what is
// wrong with it. Shares nothing with the planner but the plan's and the
// cycle's formats.
#pragma once

#include <string>

#include "memory/policy/plan/plan.h"
#include "profiler/cycle.h"

namespace chameleon::memory {

// Empty: nothing is wrong in three steps, and each begins where the one before
// began. Values of at most `keep_bytes` must not be moved.
std::string check_plan(const profiler::Cycle& cycle, const Plan& plan,
                       std::uint64_t keep_bytes);

} // namespace chameleon::memory
