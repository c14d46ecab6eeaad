// What a step would take with other budgets or another link: the planner's
// model, nothing runs. All figures are modelled. A trace does not say what may
// be run again, so of a trace it is swapping alone.
//
// Thread safety: functions of their arguments. Cost: one plan for each budget.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "backend/runtime/result.h"
#include "memory/policy/plan/link_model.h"
#include "memory/policy/plan/plan.h"
#include "profiler/cycle_builder.h"
#include "profiler/trace/trace.h"

namespace chameleon::memory {

struct WhatIf {
  std::uint64_t peak_bytes = 0;    // live at a time, at most
  std::uint64_t largest_op = 0;    // bytes that one op needs at a time
  std::size_t largest_op_at = 0;   // that op
  double compute_ns = 0;           // the step's, with room for everything
  std::vector<ModelledStep> steps; // per budget; duration 0: does not fit
};

// The link that a header names, in what the planner counts in; a rate is 0
// where it names none.
LinkModel link_of(const profiler::TraceHeader& header);

// Of the trace's last step, over the link that its header names, or one that
// is `link_factor` times as fast (1e-6 to 1e6). kInvalidArgument: another
// factor, the header names no link, or the trace is broken.
runtime::Result<WhatIf> what_if(const profiler::Trace& trace,
                                std::span<const std::uint64_t> budgets,
                                double link_factor = 1);

// Of a step as it runs, with the plans that would be followed: they leave as
// much of a budget as those do, and run ops again where `recompute` has it.
WhatIf what_if(const profiler::CycleMap& map, const LinkModel& link,
               bool recompute, std::span<const std::uint64_t> budgets);

} // namespace chameleon::memory
