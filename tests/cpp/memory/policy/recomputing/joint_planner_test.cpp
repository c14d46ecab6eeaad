// Plans with re-runs: right on any step, and worth it on the usual ones.
#include "memory/policy/recomputing/joint_planner.h"

#include <algorithm>
#include <cstdint>
#include <gtest/gtest.h>
#include <random>
#include <vector>

#include "memory/policy/recomputing/extended_cycle.h"
#include "memory/policy/recomputing/segments.h"
#include "tests/cpp/memory/policy/plan_checker.h"
#include "tests/cpp/memory/policy/random_cycles.h"
#include "tests/cpp/memory/policy/residual_network.h"
#include "tests/cpp/memory/recompute/rerun_checker.h"

namespace chameleon::memory {
namespace {

using profiler::Cycle;
using profiler::Operand;
using Kind = Action::Kind;

PlannerOptions with_budget(std::uint64_t bytes) {
  PlannerOptions options;
  options.budget_bytes = bytes;
  options.keep_bytes = 0;
  return options;
}

// What all layers read crosses their borders too.
TEST(Segments, ATableBesideTheStreamIsNoReasonToCutElsewhere) {
  using Borders = std::vector<std::vector<std::uint32_t>>;
  const auto borders = [](std::uint64_t table_bytes) {
    const Cycle cycle = residual_network(6, table_bytes);
    return find_segments(cycle, RerunGraph(cycle));
  };
  // A layer is four ops.
  EXPECT_EQ(borders(0), (Borders{{0, 1, 5, 9, 13, 17, 21}}));
  // Of one and of three megabytes, beside a stream of eight.
  EXPECT_EQ(borders(1 << 20), (Borders{{0, 1, 6, 10, 14, 18, 22}}));
  EXPECT_NE(borders(3 << 20), (Borders{{0, 1, 6, 10, 14, 18, 22}}));
}

TEST(ExtendedCycle, RunsEachNodeOnceJustInTime) {
  const Cycle cycle = residual_network(2);
  ASSERT_EQ(cycle.problem(), "");
  const RerunGraph graph(cycle);
  std::vector<std::uint8_t> dropped(cycle.values());
  // All that the second layer made; backward wants the last of it first.
  for (const ValueIndex value : {7U, 8U, 9U}) {
    ASSERT_NE(graph.values[value].node, kNone) << value;
    dropped[value] = 1;
  }
  const ExtendedCycle extended = extend_cycle(cycle, graph, dropped);
  EXPECT_EQ(extended.cycle.problem(), "");
  EXPECT_EQ(extended.cycle.ops(), cycle.ops() + 3);
  EXPECT_EQ(extended.recorded, (std::vector<std::uint32_t>{5, 6, 7}));
  EXPECT_EQ(extended.again, (std::vector<ValueIndex>{7, 8, 9}));
  ASSERT_EQ(extended.drops.size(), 3U);
  EXPECT_EQ(extended.drops[0], std::pair(7U, ValueIndex{7}));
  // Ops 0..9 as before, then the three again, all at op 10.
  for (const std::uint32_t at : {10U, 11U, 12U, 13U}) {
    EXPECT_EQ(extended.program_op[at], 10U);
  }
  EXPECT_EQ(extended.program_op[14], 11U);
}

TEST(JointPlanner, RunsCheapOpsAgainRatherThanMoveWhatTheyMade) {
  const Cycle cycle = residual_network(12);
  ASSERT_EQ(cycle.problem(), "");
  const std::uint64_t peak = needs_of(cycle, 0).most_bytes;
  double last_ns = 0;
  for (const std::uint64_t percent : {80, 50, 30}) {
    const PlannerOptions options = with_budget(peak / 100 * percent);
    const PlanPtr swaps = plan_cycle(cycle, options).value();
    JointPlanner planner(cycle, options, swaps);
    while (planner.tryNext()) {
    }
    const PlanPtr plan = planner.best();
    EXPECT_EQ(check_reruns(cycle, *plan), "") << percent;
    EXPECT_FALSE(plan->recorded.empty()) << percent;
    EXPECT_LT(plan->modelled.duration_ns, 0.7 * swaps->modelled.duration_ns);
    EXPECT_GE(plan->modelled.duration_ns, last_ns); // less memory, more time
    last_ns = plan->modelled.duration_ns;
    ASSERT_NE(planner.bestCycle(), nullptr);
    EXPECT_EQ(planner.bestCycle()->cycle.problem(), "");
    EXPECT_EQ(
        check_plan(planner.bestCycle()->cycle, *planner.bestExtendedPlan(), 0),
        "");
    // A search that is done again finds the same.
    JointPlanner again(cycle, options, swaps);
    while (again.tryNext()) {
    }
    EXPECT_EQ(again.best()->actions, plan->actions);
  }
}

// What was best with less memory is tried first with more: never slower.
TEST(JointPlanner, BeginsWithWhatWasBestUnderAnotherBudget) {
  const Cycle cycle = residual_network(12);
  const std::uint64_t peak = needs_of(cycle, 0).most_bytes;
  const PlannerOptions less = with_budget(peak / 3);
  JointPlanner first(cycle, less, plan_cycle(cycle, less).value());
  while (first.tryNext()) {
  }
  const PlanPtr small = first.best();
  ASSERT_FALSE(first.bestAssignment().joins.empty());
  const PlannerOptions more = with_budget(peak / 2);
  JointPlanner second(cycle, more, plan_cycle(cycle, more).value());
  second.alsoTry(first.bestAssignment());
  EXPECT_TRUE(second.tryNext());
  EXPECT_EQ(second.planned(), 1U);
  EXPECT_LE(second.best()->modelled.duration_ns, small->modelled.duration_ns);
}

TEST(JointPlanner, WhatFitsIsLeftAlone) {
  const Cycle cycle = residual_network(4);
  const PlannerOptions options = with_budget(needs_of(cycle, 0).most_bytes);
  JointPlanner planner(cycle, options, plan_cycle(cycle, options).value());
  EXPECT_FALSE(planner.tryNext());
  EXPECT_TRUE(planner.best()->recorded.empty());
}

TEST(JointPlanner, WithoutLeaveItIsTheSwapPlan) {
  Cycle cycle = residual_network(4);
  cycle.may_rerun.clear();
  const PlannerOptions options = with_budget(needs_of(cycle, 0).most_bytes / 2);
  const PlanPtr swaps = plan_cycle(cycle, options).value();
  JointPlanner planner(cycle, options, swaps);
  EXPECT_FALSE(planner.tryNext());
  EXPECT_EQ(planner.best(), swaps);
}

// Whatever the step and the prices are: the cycle with re-runs is a cycle, its
// plan holds, and the program's plan gives every op the bytes it has without.
TEST(JointPlanner, RandomSteps) {
  std::size_t drops = 0;
  for (std::uint64_t seed = 0; seed < 1200; ++seed) {
    std::mt19937_64 random(seed);
    CycleShape shape;
    shape.ops = 20 + static_cast<int>(random() % 40);
    shape.values = 10 + static_cast<int>(random() % 40);
    Cycle cycle =
        seed % 3 == 0 ? random_cycle(random, shape) : random_training(random);
    for (std::size_t op = 0; op < cycle.ops(); ++op) {
      cycle.may_rerun.push_back(random() % 5 > 0 ? 1 : 0);
    }
    ASSERT_EQ(cycle.problem(), "") << "seed " << seed;
    const RerunGraph graph(cycle);
    std::vector<std::uint8_t> dropped(cycle.values());
    if (seed % 2 == 0) { // any choice, not only those of a minimum cut
      for (ValueIndex v = 0; v < cycle.values(); ++v) {
        if (graph.values[v].node == kNone) continue;
        dropped[v] = random() % 2;
      }
    } else {
      const RerunChoices choices(cycle, graph);
      Assignment assignment;
      for (std::size_t i = 0; i < choices.segments(); ++i) {
        assignment.price_ns_per_byte.push_back(
            static_cast<double>(random() % 8));
        assignment.joins.push_back(
            !choices.beginsPass(i) && random() % 2 == 0 ? 1 : 0);
      }
      dropped = choices.choose(assignment);
    }
    const ExtendedCycle extended = extend_cycle(cycle, graph, dropped);
    ASSERT_EQ(extended.cycle.problem(), "") << "seed " << seed;
    const Needs needs = needs_of(extended.cycle, 0);
    const PlannerOptions options =
        with_budget(needs.least_bytes +
                    random() % (needs.most_bytes - needs.least_bytes + 1));
    const PlanPtr plan = plan_cycle(extended.cycle, options).value();
    ASSERT_EQ(check_plan(extended.cycle, *plan, 0), "") << "seed " << seed;
    const Plan own = program_plan(extended, *plan);
    ASSERT_EQ(own.ops(), cycle.ops());
    ASSERT_EQ(check_reruns(cycle, own), "") << "seed " << seed;
    drops += extended.drops.size();
  }
  EXPECT_GT(drops, 100U); // it is about something
}

} // namespace
} // namespace chameleon::memory
