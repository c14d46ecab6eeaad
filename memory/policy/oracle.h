// The forecast policy for a run whose step is known beforehand, from a trace
// (option `oracle_trace`): its plan is made before the first op, from the
// trace's times. What differs from the trace is learned and planned for as the
// forecast policy does. For benchmarks: a trace is of one model, in one shape.
//
// A trace does not know blocks. Values that a step makes are known by their
// birth, all others from their first use on: what a first step uses for the
// first time is not fetched ahead.
#pragma once

#include <memory>

#include "memory/policy/policy.h"

namespace chameleon::memory {

// kInvalidArgument: no trace was given, or it cannot be read.
runtime::Result<std::unique_ptr<Policy>> make_oracle(
    const PolicyInputs& inputs);

} // namespace chameleon::memory
