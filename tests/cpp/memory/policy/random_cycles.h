// Random steps of a run, for tests: persistent and transient values of any
// size, lives across the end of the step, overwrites, workspaces, leaks.
#pragma once

#include <cstdint>
#include <random>

#include "profiler/cycle.h"

namespace chameleon::memory {

struct CycleShape {
  int ops = 30;
  int values = 20;
  int operands_per_op = 3;
  std::uint64_t largest_bytes = 1000;
};

profiler::Cycle random_cycle(std::mt19937_64& random, const CycleShape& shape);

// Forward ops, some of which finish in place what was made before, and backward
// ones that use what they made in the opposite order.
profiler::Cycle random_training(std::mt19937_64& random);

// The least budget under which each op alone fits, and what all live values
// take at most.
struct Needs {
  std::uint64_t least_bytes;
  std::uint64_t most_bytes;
};
Needs needs_of(const profiler::Cycle& cycle, std::uint64_t keep_bytes);

} // namespace chameleon::memory
