// Where the ops before a pass boundary can be cut into segments that are run
// again one by one: borders that few bytes cross.
//
// Best are *forks*: places that one value crosses with little beside it, and is
// read from several times (the residual stream between layers). A step with few
// of them is cut where the least bytes cross in each of some parts of about
// equal bytes.
//
// Tests: joint_planner_test.cpp.
//
// Thread safety: a function of its arguments.
#pragma once

#include <cstdint>
#include <vector>

#include "memory/policy/recomputing/rerun_graph.h"

namespace chameleon::memory {

// Per pass the segments' first ops, ascending; the first is the pass's begin.
std::vector<std::vector<std::uint32_t>> find_segments(
    const profiler::Cycle& cycle, const RerunGraph& graph);

} // namespace chameleon::memory
