// One number for what a cycle does: which ops, in which order, on which values
// of how many bytes. Equal in every process that runs the same program, unlike
// tokens and paths' numbers; how long ops take, and what kernels take beside
// their operands, is left out: it may differ from run to run.
//
// Tests: saved_plans_test.cpp.
//
// Thread safety: any thread; it reads the table of names.
#pragma once

#include <cstdint>

#include "profiler/cycle_builder.h"

namespace chameleon::memory {

std::uint64_t signature_of(const profiler::CycleMap& map);

} // namespace chameleon::memory
