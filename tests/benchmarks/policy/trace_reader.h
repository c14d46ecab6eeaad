// Reads a trace of one step (profiler.export_trace: JSON lines) as a cycle.
//
// Strict: it reads exactly this format, keys in any order, and says where it
// met something else. Ids become value indices in order of appearance.
//
// Thread safety: a function of its argument.
#pragma once

#include <string_view>

#include "backend/runtime/result.h"
#include "profiler/cycle.h"

namespace chameleon::benchmarks {

struct Trace {
  profiler::Cycle cycle; // may_rerun by the ops' names (rerun_names.h)
  double bytes_in_per_s = 0;
  double bytes_out_per_s = 0;
  double bytes_both_per_s = 0;
  double copy_latency_ns = 0;
  double peak_bytes = 0;
};

runtime::Result<Trace> read_trace(std::string_view text);

// The step `times` times over as one step: persistent values are shared,
// transients are new each time.
profiler::Cycle tile(const profiler::Cycle& cycle, int times);

} // namespace chameleon::benchmarks
