#include "memory/policy/what_if.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <numeric>
#include <string>

#include "memory/policy/headroom_trial.h"
#include "memory/policy/plan/use_table.h"
#include "memory/policy/plan_search.h"
#include "memory/policy/planning_thread.h"
#include "memory/policy/swapping/planner.h"

namespace chameleon::memory {

using profiler::Cycle;
using profiler::Trace;
using runtime::Error;
using runtime::ErrorCode;
using runtime::Result;

namespace {

constexpr std::uint64_t kMostBudget = std::uint64_t{1} << 62; // it has a sign
// Of a link, beside the trace's: beyond them times leave what a plan counts in.
constexpr double kMostFactor = 1e6;

// With room for everything.
WhatIf without_limit(const Cycle& cycle) {
  WhatIf result;
  const UseTable table(cycle, 0);
  result.peak_bytes = static_cast<std::uint64_t>(table.peakBytes());
  const auto largest =
      std::max_element(table.operand_bytes.begin(), table.operand_bytes.end());
  if (largest != table.operand_bytes.end()) {
    result.largest_op = static_cast<std::uint64_t>(*largest);
    result.largest_op_at =
        static_cast<std::size_t>(largest - table.operand_bytes.begin());
  }
  result.compute_ns =
      std::accumulate(cycle.duration_ns.begin(), cycle.duration_ns.end(), 0.0);
  return result;
}

} // namespace

LinkModel link_of(const profiler::TraceHeader& header) {
  return {header.in_bytes_per_second / 1e9, header.out_bytes_per_second / 1e9,
          header.both_bytes_per_second / 1e9,
          static_cast<double>(header.copy_latency_ns)};
}

Result<WhatIf> what_if(const Trace& trace,
                       std::span<const std::uint64_t> budgets,
                       double link_factor) {
  // A NaN compares with nothing.
  if (!(link_factor >= 1 / kMostFactor && link_factor <= kMostFactor)) {
    std::array<char, 32> given{};
    std::snprintf(given.data(), given.size(), "%g", link_factor);
    return Error(ErrorCode::kInvalidArgument,
                 std::string("link_factor is how many times as fast the link "
                             "shall be, from 1e-6 to 1e6, not ") +
                     given.data());
  }
  const profiler::TraceHeader& header = trace.header;
  if (header.in_bytes_per_second <= 0 || header.out_bytes_per_second <= 0 ||
      header.both_bytes_per_second <= 0) {
    return Error(ErrorCode::kInvalidArgument,
                 "the trace does not say how fast the link is (bw_in, bw_out, "
                 "bw_both)");
  }
  Result<Cycle> made = profiler::make_cycle(trace, trace.step_ends.size() - 1);
  if (!made.ok()) return made.takeError();
  const Cycle& cycle = *made;
  PlannerOptions options;
  options.link = link_of(header).times(link_factor);

  WhatIf result = without_limit(cycle);
  for (const std::uint64_t budget : budgets) {
    options.budget_bytes = std::min(budget, kMostBudget);
    Result<PlanPtr> plan = plan_cycle(cycle, options);
    result.steps.push_back(plan.ok() ? (*plan)->modelled : ModelledStep{});
  }
  return result;
}

WhatIf what_if(const profiler::CycleMap& map, const LinkModel& link,
               bool recompute, std::span<const std::uint64_t> budgets) {
  WhatIf result = without_limit(map.cycle);
  for (const std::uint64_t budget : budgets) {
    const std::uint64_t bytes = std::min(budget, kMostBudget);
    // Somebody waits for the answer. Of a Llama of 1.3 B these are a quarter of
    // what is tried for a run, and come within 3 % of it.
    const PlanSearch::Request request{{map.path, bytes},
                                      link,
                                      PlanningThread::keptBytes(bytes),
                                      recompute,
                                      HeadroomTrial::kNoHeadroom,
                                      PlanSearch::kLeastTries};
    PlanSearch search(request, map);
    while (search.tryNext()) {
    }
    const PathPlanPtr made = search.plan();
    result.steps.push_back(made->plan ? made->plan->modelled : ModelledStep{});
  }
  return result;
}

} // namespace chameleon::memory
