// The last step of a trace (profiler/trace/trace.h) with what the planners need
// to know beside it.
//
// Thread safety: functions of their arguments.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "backend/runtime/result.h"
#include "memory/policy/plan/link_model.h"
#include "profiler/cycle.h"

namespace chameleon::benchmarks {

struct TracedStep {
  profiler::Cycle cycle; // may_rerun by the ops' names (rerun_names.h)
  memory::LinkModel link;
};

// The text in a gzipped file; empty: it cannot be read.
std::string unpacked(const std::string& path);
// kInvalidArgument: the text is no trace, or its step no cycle.
runtime::Result<TracedStep> read_step(std::string_view text);

// What is live at a time, at most, divided by `k`.
std::uint64_t budget_bytes(const profiler::Cycle& cycle, double k);

// The step `times` times over as one step: persistent values are shared,
// transients are new each time.
profiler::Cycle tile(const profiler::Cycle& cycle, int times);

} // namespace chameleon::benchmarks
