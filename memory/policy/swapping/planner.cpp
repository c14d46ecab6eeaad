#include "memory/policy/swapping/planner.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "memory/policy/plan/plan_model.h"
#include "memory/policy/swapping/plan_emission.h"
#include "memory/policy/swapping/swap_schedule.h"

namespace chameleon::memory {
namespace {

using runtime::Error;
using runtime::ErrorCode;
using runtime::Result;

// Clean values first, always.
constexpr double kCleanFirst = 1e6;

// Of plans that do not wait the one that moves less.
bool is_better(const ModelledStep& a, const ModelledStep& b) {
  if (a.waits() || b.waits()) return a.duration_ns < b.duration_ns;
  return a.bytes_in + a.bytes_out < b.bytes_in + b.bytes_out;
}

} // namespace

std::vector<PlanParameters> plan_portfolio(bool all) {
  // The first six cover (greedily) the grid below without `spread`, on the
  // traces of tests/benchmarks/policy; of its other half these two gain most.
  std::vector<PlanParameters> portfolio = {
      {{kCleanFirst, 0, 0, true, false}, -1},
      {{kCleanFirst, 0, 0.125, true, false}, 0.1},
      {{kCleanFirst, 0.15, 0.25, false, false}, 0.1},
      {{0, 0, 0.125, true, false}, -1},
      {{0, 0.05, 0, false, false}, -1},
      {{10, 0, 0.25, true, false}, -1},
      {{0, 0, 0.125, true, true}, -1},
      {{0, 0, 0.5, true, true}, -1},
  };
  if (!all) return portfolio;
  const auto add = [&](const PlanParameters& candidate) {
    if (std::find(portfolio.begin(), portfolio.end(), candidate) ==
        portfolio.end()) {
      portfolio.push_back(candidate);
    }
  };
  for (const double lead : {-1.0, 0.1}) {
    for (const double price : {0.0, 1.0, 3.0, 10.0, kCleanFirst}) {
      for (const double margin : {0.0, 0.05, 0.1, 0.15, 0.3}) {
        for (const double window : {0.0, 0.5, 0.25, 0.125}) {
          for (const bool refill : {true, false}) {
            add({{price, margin, window, refill, false}, lead});
            if (window > 0) add({{price, margin, window, refill, true}, lead});
          }
        }
      }
    }
  }
  return portfolio;
}

Result<UseTable> make_use_table(const profiler::Cycle& cycle,
                                const PlannerOptions& options) {
  for (std::uint64_t keep_bytes = options.keep_bytes;; keep_bytes = 0) {
    UseTable table(cycle, keep_bytes);
    const auto greatest = std::max_element(table.operand_bytes.begin(),
                                           table.operand_bytes.end());
    if (greatest == table.operand_bytes.end() ||
        std::cmp_less_equal(*greatest, options.budget_bytes)) {
      return table;
    }
    if (keep_bytes > 0) continue;
    return Error(
        ErrorCode::kOutOfDeviceMemory,
        "op " + std::to_string(greatest - table.operand_bytes.begin()) +
            " of the step needs " + std::to_string(*greatest) +
            " bytes in HBM at once, the budget is " +
            std::to_string(options.budget_bytes) + "; raise hbm_budget");
  }
}

Plan plan_once(const UseTable& table, const PlannerOptions& options,
               const PlanParameters& parameters) {
  if (table.ops == 0) return {};
  const auto budget = static_cast<std::int64_t>(options.budget_bytes);
  const auto lead = static_cast<std::int64_t>(
      parameters.lead < 0
          ? -1
          : parameters.lead * static_cast<double>(options.budget_bytes));
  const auto batch_bytes = static_cast<std::int64_t>(
      options.batch_latencies * options.link.latency_ns *
      std::min(options.link.in_bytes_per_ns, options.link.out_bytes_per_ns));
  const VictimGaps gaps = choose_victim_gaps(table, budget, parameters.gaps);
  const SwapSchedule schedule =
      schedule_swaps(table, gaps, budget, options.link, lead);
  return emit_plan(table, gaps, schedule, budget, batch_bytes);
}

Result<PlanPtr> plan_cycle(const profiler::Cycle& cycle,
                           const PlannerOptions& options,
                           std::vector<Candidate>* tried) {
  Result<UseTable> made = make_use_table(cycle, options);
  if (!made.ok()) return made.takeError();
  const UseTable& table = *made;
  std::optional<Plan> best;
  for (const PlanParameters& parameters : options.portfolio) {
    Plan plan = plan_once(table, options, parameters);
    // Few steps tell candidates apart; the winner gets the full count.
    plan.modelled = model_plan(table, plan, options.link, 1, 3);
    if (tried != nullptr) tried->push_back({parameters, plan.modelled});
    if (!best || is_better(plan.modelled, best->modelled)) {
      best = std::move(plan);
    }
    if (best->actions.empty()) break; // all fits: nothing can be better
  }
  best->modelled = model_plan(table, *best, options.link);
  return std::make_shared<const Plan>(std::move(*best));
}

} // namespace chameleon::memory
