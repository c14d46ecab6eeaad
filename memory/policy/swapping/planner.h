// Plans the swaps of a whole cycle: which values are outside HBM when, and
// when they move, so that the link is busy before the pressure comes.
//
//   stage 1  victim_gaps.h     which gaps between uses are spent outside HBM
//   stage 2  swap_schedule.h   when their bytes move, in virtual time
//   stage 3  plan_emission.h   the order of actions for the host
//   score    plan_model.h      how long the steady step takes under the plan
//
// No choice of parameters is best for every run, so a portfolio of them is
// tried on the model, the few that pay most often first, and the best plan is
// kept.
//
// Cost: O(uses * log) per candidate. Thread safety: functions of their
// arguments; meant for a background thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "backend/runtime/result.h"
#include "memory/policy/plan/link_model.h"
#include "memory/policy/plan/plan.h"
#include "memory/policy/plan/use_table.h"
#include "memory/policy/swapping/victim_gaps.h"
#include "profiler/cycle.h"

namespace chameleon::memory {

struct PlanParameters {
  GapParameters gaps;
  // While a copy in is under way and at least this part of the budget is free,
  // no write back begins, so that the copy in has the link alone. < 0: a write
  // back is never held back.
  double lead = -1;

  friend bool operator==(const PlanParameters&,
                         const PlanParameters&) = default;
};

// The few that pay most often; `all`: the others too, after these.
std::vector<PlanParameters> plan_portfolio(bool all);

struct PlannerOptions {
  // Smaller values: more copies, each of which costs its latency.
  static constexpr std::uint64_t kKeepBytes = std::uint64_t{256} << 10;
  // More: fewer latencies, but a batch waits for the room of all its copies.
  static constexpr double kBatchLatencies = 40;

  std::uint64_t budget_bytes = 0;
  LinkModel link;
  // Values of at most so many bytes never move, unless the budget demands it:
  // then all may.
  std::uint64_t keep_bytes = kKeepBytes;
  // A batch of copies takes so many times the latency that it costs.
  double batch_latencies = kBatchLatencies;
  std::vector<PlanParameters> portfolio = plan_portfolio(false);
};

struct Candidate {
  PlanParameters parameters;
  ModelledStep modelled;
};

// The best plan. kOutOfDeviceMemory: an op alone needs more than the budget.
// `tried`: gets every candidate that was scored. REQUIRES: cycle.problem() is
// empty.
runtime::Result<PlanPtr> plan_cycle(const profiler::Cycle& cycle,
                                    const PlannerOptions& options,
                                    std::vector<Candidate>* tried = nullptr);

// The values that may move and their uses. An error as above.
runtime::Result<UseTable> make_use_table(const profiler::Cycle& cycle,
                                         const PlannerOptions& options);

// One candidate, not scored. REQUIRES: `table` comes from make_use_table().
Plan plan_once(const UseTable& table, const PlannerOptions& options,
               const PlanParameters& parameters);

} // namespace chameleon::memory
