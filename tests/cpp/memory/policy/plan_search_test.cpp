// When plans are made anew. (What the search finds: joint_planner_test, and
// that it is followed: forecast_policy_drops_test.)
#include "memory/policy/plan_search.h"

#include <cstdint>
#include <gtest/gtest.h>
#include <utility>

#include "memory/policy/headroom_trial.h"
#include "tests/cpp/memory/policy/random_cycles.h"
#include "tests/cpp/memory/policy/residual_network.h"

namespace chameleon::memory {
namespace {

using profiler::Cycle;

PlanSearch search(const Cycle& cycle, std::uint64_t budget_bytes,
                  double bytes_per_ns, bool recompute = false) {
  const LinkModel link{bytes_per_ns, bytes_per_ns, 2 * bytes_per_ns, 1};
  profiler::CycleMap map;
  map.cycle = cycle;
  return {{{0, budget_bytes}, link, 0, recompute}, std::move(map)};
}

// Bytes that move while nothing waits for them cost less than ops that run
// again, however little these take; even where more room would cost time.
TEST(PlanSearch, NothingIsDroppedWhereSwappingAloneTakesNoTime) {
  const Cycle cycle = residual_network(12);
  const std::uint64_t most_bytes = needs_of(cycle, 0).most_bytes;
  for (const std::uint64_t tenths : {11, 20}) {
    const std::uint64_t budget = most_bytes * 10 / tenths;
    int free = 0;
    for (double bytes_per_ns = 50; free < 5; bytes_per_ns *= 1.01) {
      const PathPlanPtr swapping = search(cycle, budget, bytes_per_ns).plan();
      const double least_ns = swapping->plan->modelled.compute_ns;
      if (swapping->plan->modelled.duration_ns > 1.001 * least_ns) continue;
      ++free;
      PlanSearch found =
          search(cycle, budget, bytes_per_ns, /*recompute=*/true);
      while (found.tryNext()) {
      }
      EXPECT_TRUE(found.plan()->plan->recorded.empty());
    }
  }
}

TEST(PlanSearch, WhereAllFitsNothingIsLeft) {
  const Cycle cycle = residual_network(12);
  const std::uint64_t peak_bytes = needs_of(cycle, 0).most_bytes;
  const LinkModel link{1, 1, 2, 1};
  const auto made = [&](std::uint64_t budget_bytes, int level) {
    profiler::CycleMap map;
    map.cycle = cycle;
    return PlanSearch({{0, budget_bytes}, link, 0, false, level},
                      std::move(map))
        .plan();
  };
  for (const int level : {HeadroomTrial::kOnce, HeadroomTrial::kNoHeadroom}) {
    const PathPlanPtr whole = made(peak_bytes, level);
    EXPECT_TRUE(whole->plan->actions.empty());
    EXPECT_EQ(whole->headroom_level, HeadroomTrial::kNoHeadroom);
    EXPECT_FALSE(made(peak_bytes - 512, level)->plan->actions.empty());
  }
  // It turned out to need some.
  const PathPlanPtr left = made(peak_bytes, 0);
  EXPECT_FALSE(left->plan->actions.empty());
  EXPECT_EQ(left->headroom_level, 0);
  // What is usually left is there anyway.
  const PathPlanPtr much = made(peak_bytes * 2, HeadroomTrial::kNoHeadroom);
  EXPECT_TRUE(much->plan->actions.empty());
  EXPECT_EQ(much->headroom_level, 0);
  EXPECT_EQ(made(peak_bytes - 512, HeadroomTrial::kNoHeadroom)->headroom_level,
            0);
}

TEST(PlanSearch, WhatCannotBePlannedIsNoPlan) {
  const Cycle cycle = residual_network(2);
  PlanSearch found = search(cycle, needs_of(cycle, 0).least_bytes / 2, 1);
  EXPECT_FALSE(found.goesOn());
  EXPECT_FALSE(found.tryNext());
  EXPECT_EQ(found.plan()->plan, nullptr);
}

// In the background: what the search takes for better is made once, whether it
// turns out to be or not. (At a budget of 1/5.8 once it does not.)
TEST(PlanSearch, BetterPlansAreMadeOnce) {
  const Cycle cycle = residual_network(12);
  for (const std::uint64_t tenths : {25, 40, 58}) {
    const std::uint64_t budget = needs_of(cycle, 0).most_bytes * 10 / tenths;
    PlanSearch found = search(cycle, budget, 1, /*recompute=*/true);
    double best_ns = found.plan()->plan->modelled.duration_ns;
    int asked = 0;
    int better = 0;
    for (bool more = true; more;) {
      more = found.tryNext();
      if (!found.isWorthIt(more)) continue;
      ++asked;
      const PathPlanPtr made = found.better();
      if (made == nullptr) continue;
      ++better;
      EXPECT_LT(made->plan->modelled.duration_ns, best_ns);
      best_ns = made->plan->modelled.duration_ns;
    }
    EXPECT_LE(asked, better + 3);
    EXPECT_LE(found.plan()->plan->modelled.duration_ns, best_ns);
  }
}

} // namespace
} // namespace chameleon::memory
