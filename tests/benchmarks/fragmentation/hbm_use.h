// What a trace's steps take and move within a budget of HBM, once they are
// steady: by the pager as it ships, on the simulated GPU.
//
// Thread safety: a function of its arguments.
#pragma once

#include <cstddef>
#include <cstdint>

#include "profiler/trace/trace.h"

namespace chameleon::benchmarks {

struct HbmUse {
  std::int64_t resident_bytes = 0; // in the arena at most
  std::int64_t mapped_bytes = 0;   // device memory that backs the arena
  // Of all steady steps:
  std::int64_t steps = 0;
  std::int64_t link_bytes = 0;  // from or to the host
  std::int64_t moved_bytes = 0; // inside HBM
  std::int64_t commits = 0;     // driver calls that map or unmap memory
};

// Of the trace's steps again and again. Steady ones are those after the last
// plan was chosen. An error of the pager ends the process (trace_replay.h).
// REQUIRES: the trace was read without an error.
HbmUse hbm_use(const profiler::Trace& trace, std::size_t budget_bytes);

} // namespace chameleon::benchmarks
