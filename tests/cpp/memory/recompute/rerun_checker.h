// Carries a plan with drops out on symbolic bytes, and says what is wrong with
// it. It knows what the pager knows: ops were recorded where the plan says so,
// with the versions of their operands; a dropped value comes back by running
// the recorded ops that wrote it. Room and copies are not looked at.
#pragma once

#include <string>

#include "memory/policy/plan/plan.h"
#include "profiler/cycle.h"

namespace chameleon::memory {

// Empty: every op finds, in two steps, the bytes that it finds without the
// plan.
std::string check_reruns(const profiler::Cycle& cycle, const Plan& plan);

} // namespace chameleon::memory
