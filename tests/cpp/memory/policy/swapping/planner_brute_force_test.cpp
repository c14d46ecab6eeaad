// Tiny steps, all choices tried: which of their gaps are spent outside HBM is
// enumerated, each choice goes through the same later stages, and the planner
// is compared with the best of them.
#include <algorithm>
#include <cstdint>
#include <gtest/gtest.h>
#include <limits>
#include <random>
#include <vector>

#include "memory/policy/plan/plan_model.h"
#include "memory/policy/plan/range_sum.h"
#include "memory/policy/swapping/plan_emission.h"
#include "memory/policy/swapping/planner.h"
#include "memory/policy/swapping/swap_schedule.h"
#include "tests/cpp/memory/policy/plan_checker.h"
#include "tests/cpp/memory/policy/random_cycles.h"

namespace chameleon::memory {
namespace {

// Slow: most steps wait for it.
constexpr LinkModel kLink{0.2, 0.2, 0.3, 20};

// The best over all sets of gaps that leave room at every op; and the fewest
// bytes in.
struct Best {
  double duration_ns = std::numeric_limits<double>::infinity();
  std::uint64_t bytes_in = std::numeric_limits<std::uint64_t>::max();
  int choices = 0;
};

Best try_all(const profiler::Cycle& cycle, const UseTable& table,
             std::int64_t budget) {
  std::vector<UseIndex> open;
  for (UseIndex use = 0; use < table.uses(); ++use) {
    if (table.length(use) > 0) open.push_back(use);
  }
  Best best;
  for (std::uint32_t set = 0; set < std::uint32_t{1} << open.size(); ++set) {
    VictimGaps gaps;
    gaps.away.resize(table.uses());
    gaps.away_from.resize(table.uses());
    gaps.resident = table.live_bytes;
    RangeSum away(table.ops);
    for (std::size_t i = 0; i < open.size(); ++i) {
      if ((set >> i & 1) == 0) continue;
      gaps.away[open[i]] = 1;
      gaps.away_from[open[i]] = table.begin(open[i]);
      away.add(table.begin(open[i]), table.end[open[i]], -table.bytes[open[i]]);
    }
    away.addTo(gaps.resident);
    if (*std::max_element(gaps.resident.begin(), gaps.resident.end()) >
        budget) {
      continue;
    }
    const SwapSchedule schedule =
        schedule_swaps(table, gaps, budget, kLink, -1);
    const Plan plan = emit_plan(table, gaps, schedule, budget, 0);
    EXPECT_EQ(check_plan(cycle, plan, 0), "") << "set " << set;
    const ModelledStep step = model_plan(table, plan, kLink);
    best.duration_ns = std::min(best.duration_ns, step.duration_ns);
    best.bytes_in = std::min(best.bytes_in, step.bytes_in);
    ++best.choices;
  }
  return best;
}

TEST(PlannerBruteForce, CloseToTheBestOfAllChoices) {
  double sum = 0;
  int cases = 0;
  int reached = 0;
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    std::mt19937_64 random(seed);
    const profiler::Cycle cycle = random_cycle(random, {8, 5, 2, 500});
    PlannerOptions options;
    options.keep_bytes = 0;
    options.link = kLink;
    options.batch_latencies = 0;
    options.portfolio = plan_portfolio(true);
    const Needs needs = needs_of(cycle, 0);
    options.budget_bytes = (needs.least_bytes + needs.most_bytes) / 2;
    const auto made = make_use_table(cycle, options);
    ASSERT_TRUE(made.ok());
    const UseTable& table = made.value();
    if (table.uses() > 11) continue;
    const Best best =
        try_all(cycle, table, static_cast<std::int64_t>(options.budget_bytes));
    ASSERT_GT(best.choices, 0) << "seed " << seed;
    const PlanPtr plan = plan_cycle(cycle, options).value();
    EXPECT_EQ(check_plan(cycle, *plan, 0), "") << "seed " << seed;
    const double ratio = plan->modelled.duration_ns / best.duration_ns;
    EXPECT_LE(ratio, 1.1) << "seed " << seed;
    sum += ratio;
    if (ratio < 1.0001) ++reached;
    ++cases;
  }
  EXPECT_EQ(cases, 32);
  EXPECT_GE(reached, 28);
  EXPECT_LE(sum / cases, 1.003);
}

} // namespace
} // namespace chameleon::memory
