// The planner on random steps: every plan is checked in host order by code
// that shares nothing with it, and no modelled time beats what must be moved.
#include <algorithm>
#include <cstdint>
#include <gtest/gtest.h>
#include <random>
#include <string>

#include "memory/policy/plan/plan_model.h"
#include "memory/policy/swapping/planner.h"
#include "tests/cpp/memory/policy/demand_model.h"
#include "tests/cpp/memory/policy/plan_checker.h"
#include "tests/cpp/memory/policy/random_cycles.h"

namespace chameleon::memory {
namespace {

std::string text(const PlanParameters& p) {
  return "price " + std::to_string(p.gaps.dirty_price) + " margin " +
         std::to_string(p.gaps.planning_margin) + " window " +
         std::to_string(p.gaps.window) + " refill " +
         std::to_string(p.gaps.refill) + " lead " + std::to_string(p.lead);
}

// No schedule takes less than its ops, nor than its bytes in a link's time.
void expect_possible(const ModelledStep& step, const LinkModel& link) {
  const double in = static_cast<double>(step.bytes_in);
  const double out = static_cast<double>(step.bytes_out);
  const double least = std::max({step.compute_ns, in / link.in_bytes_per_ns,
                                 out / link.out_bytes_per_ns,
                                 (in + out) / link.both_bytes_per_ns});
  EXPECT_GE(step.duration_ns, 0.999 * least - 1);
}

void check_seed(std::uint64_t seed, const CycleShape& shape,
                std::uint64_t keep_bytes, int candidates) {
  std::mt19937_64 random(seed);
  const profiler::Cycle cycle = random_cycle(random, shape);
  ASSERT_EQ(cycle.problem(), "") << "seed " << seed;
  const Needs needs = needs_of(cycle, keep_bytes);
  PlannerOptions options;
  options.keep_bytes = keep_bytes;
  options.link = {1, 1, 1.5, 20};
  const auto portfolio = plan_portfolio(true);
  for (const std::uint64_t part : {0, 10, 50, 100}) {
    options.budget_bytes =
        needs.least_bytes +
        (std::max(needs.most_bytes, needs.least_bytes) - needs.least_bytes) *
            part / 100;
    auto made = make_use_table(cycle, options);
    ASSERT_TRUE(made.ok()) << "seed " << seed;
    for (int i = 0; i < candidates; ++i) {
      const PlanParameters& parameters = portfolio[random() % portfolio.size()];
      const Plan plan = plan_once(*made, options, parameters);
      ASSERT_EQ(check_plan(cycle, plan, keep_bytes), "")
          << "seed " << seed << " part " << part << ' ' << text(parameters);
      expect_possible(model_plan(*made, plan, options.link), options.link);
      if (part == 100) {
        ASSERT_TRUE(plan.actions.empty() ||
                    parameters.gaps.planning_margin > 0);
      }
      ASSERT_FALSE(testing::Test::HasFailure())
          << "seed " << seed << " part " << part << ' ' << text(parameters);
    }
    for (const Victims victims :
         {Victims::kLeastRecentlyUsed, Victims::kFarthestNextUse}) {
      expect_possible(
          model_demand_paging(*made, victims,
                              static_cast<std::int64_t>(options.budget_bytes),
                              options.link),
          options.link);
    }
  }
}

TEST(PlannerRandom, Small) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    ASSERT_NO_FATAL_FAILURE(check_seed(seed, {8, 5, 2, 100}, 0, 3));
  }
}

TEST(PlannerRandom, ManyValues) {
  for (std::uint64_t seed = 1; seed <= 15; ++seed) {
    ASSERT_NO_FATAL_FAILURE(check_seed(seed, {40, 60, 4, 1000}, 0, 3));
  }
}

TEST(PlannerRandom, SmallValuesStay) {
  for (std::uint64_t seed = 1; seed <= 15; ++seed) {
    ASSERT_NO_FATAL_FAILURE(check_seed(seed, {40, 40, 4, 1000}, 300, 3));
  }
}

TEST(PlannerRandom, Long) {
  ASSERT_NO_FATAL_FAILURE(check_seed(1, {300, 200, 5, 1000}, 100, 2));
}

} // namespace
} // namespace chameleon::memory
