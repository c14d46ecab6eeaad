// How much room plans leave. (What the search finds: joint_planner_test, and
// that it is followed: recompute_policy_test.)
#include "memory/policy/plan_search.h"

#include <algorithm>
#include <cstdint>
#include <gtest/gtest.h>
#include <vector>

#include "memory/policy/headroom_trial.h"
#include "random_cycles.h"
#include "residual_network.h"

namespace chameleon::memory {
namespace {

using profiler::Cycle;
using profiler::Operand;

// In the second of two steps. REQUIRES: the plan drops nothing.
std::uint64_t most_placed_bytes(const Cycle& cycle, const Plan& plan) {
  std::vector<std::uint64_t> placed(cycle.values());
  std::uint64_t now = 0;
  std::uint64_t most = 0;
  const auto place = [&](ValueIndex value, std::uint64_t bytes) {
    now += bytes - placed[value];
    placed[value] = bytes;
    most = std::max(most, now);
  };
  for (int step = 0; step < 2; ++step) {
    most = 0;
    for (std::uint32_t op = 0; op < cycle.ops(); ++op) {
      for (const Action action : plan.actionsBefore(op)) {
        const ValueIndex value = action.value();
        if (action.kind() == Action::Kind::kRelease) place(value, 0);
        if (action.kind() == Action::Kind::kFetch) {
          place(value, cycle.value_bytes[value]);
        }
      }
      for (const Operand operand : cycle.operandsOf(op)) {
        place(operand.value(), cycle.value_bytes[operand.value()]);
      }
      for (const ValueIndex value : cycle.freedAfter(op)) place(value, 0);
    }
  }
  return most;
}

PlanSearch search(const Cycle& cycle, std::uint64_t budget_bytes,
                  double bytes_per_ns, bool recompute = false,
                  int headroom = 0) {
  const LinkModel link{bytes_per_ns, bytes_per_ns, 2 * bytes_per_ns, 1};
  profiler::CycleMap map;
  map.cycle = cycle;
  return {
      {{0, budget_bytes}, link, 0, recompute, headroom}, std::move(map), {}};
}

TEST(PlanSearch, MoreRoomIsLeftWhereItIsFree) {
  const Cycle cycle = residual_network(12);
  const std::uint64_t budget = needs_of(cycle, 0).most_bytes / 2;
  const auto most = [&](double bytes_per_ns) {
    PlanSearch found = search(cycle, budget, bytes_per_ns);
    EXPECT_FALSE(found.goesOn());
    return most_placed_bytes(cycle, *found.plan()->plan);
  };
  EXPECT_LE(most(10'000), budget - budget / 8);
  // Where the link takes the time, each byte that stays counts.
  EXPECT_GT(most(1), budget - budget / 16);
  EXPECT_LE(most(1), budget - budget / 200);
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
