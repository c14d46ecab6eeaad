// A timeline in Chrome's trace event format, which Perfetto reads as well: one
// thread per row of a lane (compute, in, out, re-runs, stalls, decisions; see
// timeline_rows.h), times in microseconds from the first interval's begin.
//
// Tests: timeline_test.cpp.
//
// Thread safety: none needed; values in, text out.
#pragma once

#include <span>
#include <string>

#include "profiler/op_names.h"
#include "profiler/timeline/timeline.h"

namespace chameleon::profiler {

std::string write_timeline(std::span<const Interval> intervals,
                           const OpNames& names);

} // namespace chameleon::profiler
