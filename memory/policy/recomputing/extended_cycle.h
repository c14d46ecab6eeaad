// A step in which some values are dropped and made again, as a cycle of its
// own: what the swap planner and the plan model can work on.
//
// A dropped value is two values: the first life ends with its last use before
// the pass boundary, the second begins where it is made again. Nodes run again
// as ops of their own, just before the program's op that needs one of their
// outputs first, those that they need before them, each once. The second life
// lasts to the program's last reference or the last node that reads it; what
// else a node reads is held that long. Outputs that were not dropped are made
// again too, and freed at once.
//
// Tests: joint_planner_test.cpp.
//
// Thread safety: functions of their arguments.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "memory/policy/plan/plan.h"
#include "memory/policy/recomputing/rerun_graph.h"
#include "profiler/cycle.h"

namespace chameleon::memory {

struct ExtendedCycle {
  profiler::Cycle cycle;
  // Per op: the program's op that it is or comes just before; the last op of
  // those with the same number is the program's.
  std::vector<std::uint32_t> program_op;
  // Per value beyond the program's own: which one of those it is again.
  std::vector<ValueIndex> again;
  // Ops of the program that run again, ascending.
  std::vector<std::uint32_t> recorded;
  // Which value is dropped before which op, ascending.
  std::vector<std::pair<std::uint32_t, ValueIndex>> drops;

  ValueIndex programValue(ValueIndex value) const noexcept {
    const std::size_t own = cycle.values() - again.size();
    return value < own ? value : again[value - own];
  }
};

// `dropped`: per value. REQUIRES: a dropped value has a node.
ExtendedCycle extend_cycle(const profiler::Cycle& cycle,
                           const RerunGraph& graph,
                           const std::vector<std::uint8_t>& dropped);

// A plan for the extended cycle as one for the program: with its drops, and
// with what is to move while ops run again at the op that has them run. That
// is before them, or after the op where one of them still uses the value: room
// is as planned at the program's ops, not between ops that run again.
Plan program_plan(const ExtendedCycle& extended, const Plan& plan);

} // namespace chameleon::memory
