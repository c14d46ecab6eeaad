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
#include "profiler/trace/trace.h"

namespace chameleon::benchmarks {

struct TracedStep {
  profiler::Cycle cycle;
  memory::LinkModel link;
};

// Ops may be run again by their names (rerun_names.h), unless the trace itself
// says of any that it may.
void mark_reruns(profiler::Trace& trace);

// The text in a gzipped file; empty: it cannot be read.
std::string unpacked(const std::string& path);
// Marks reruns. kInvalidArgument: the text is no trace, or its step no cycle.
runtime::Result<TracedStep> read_step(std::string_view text);

// What is live at a time, at most, divided by `k`.
std::uint64_t budget_bytes(const profiler::Cycle& cycle, double k);

// The step `times` times over as one step: persistent values are shared,
// transients are new each time.
profiler::Cycle tile(const profiler::Cycle& cycle, int times);

} // namespace chameleon::benchmarks
