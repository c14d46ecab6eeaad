// Where forward passes end: forward fills memory with what backward empties.
//
// Found from the cycle alone. Each value has a longest gap between two of its
// uses; the bytes that are in theirs at each position make a curve, and each
// of its high peaks is a pass boundary: what was made before it waits for what
// comes after it. A step with several passes of forward and backward has as
// many.
//
// Tests: rerun_graph_test.cpp.
//
// Thread safety: a function of its argument.
#pragma once

#include <cstdint>
#include <vector>

#include "profiler/cycle.h"

namespace chameleon::memory {

// A forward pass and its backward one: the ops [begin, at) make what the ops
// [at, end) need.
struct Pass {
  std::uint32_t begin;
  std::uint32_t at;
  std::uint32_t end;
};

// In order; together they cover the cycle. None: nothing waits for anything.
std::vector<Pass> find_pass_boundaries(const profiler::Cycle& cycle);

} // namespace chameleon::memory
