// What the planner promises, one promise a test.
#include "memory/policy/swapping/planner.h"

#include <algorithm>
#include <cstdint>
#include <gtest/gtest.h>
#include <vector>

#include "memory/policy/plan/plan_model.h"
#include "tests/cpp/memory/policy/plan_checker.h"

namespace chameleon::memory {
namespace {

using profiler::Cycle;
using profiler::Operand;
using Kind = Action::Kind;

// `count` values of 100 bytes, each used by one op of 10 ns, in turn.
Cycle round_robin(int count, std::uint32_t flags) {
  Cycle cycle;
  for (int i = 0; i < count; ++i) {
    const ValueIndex value = cycle.addValue(100);
    cycle.addOp(10);
    cycle.addOperand(value, flags);
  }
  return cycle;
}

PlannerOptions with_budget(std::uint64_t bytes) {
  PlannerOptions options;
  options.budget_bytes = bytes;
  options.keep_bytes = 0;
  options.link = {1, 1, 2, 1};
  return options;
}

int count(const Plan& plan, Kind kind) {
  int found = 0;
  for (const Action& action : plan.actions) found += action.kind() == kind;
  return found;
}

// The op before which the action is done; -1: never.
int position(const Plan& plan, Kind kind, ValueIndex value) {
  for (std::size_t op = 0; op < plan.ops(); ++op) {
    for (const Action& action : plan.actionsBefore(op)) {
      if (action.kind() == kind && action.value() == value) {
        return static_cast<int>(op);
      }
    }
  }
  return -1;
}

TEST(Planner, WhatFitsNeedsNoActions) {
  const Cycle cycle = round_robin(5, Operand::kReads | Operand::kWrites);
  std::vector<Candidate> tried;
  const PlanPtr plan = plan_cycle(cycle, with_budget(500), &tried).value();
  EXPECT_TRUE(plan->actions.empty());
  EXPECT_EQ(tried.size(), 1U);
  EXPECT_DOUBLE_EQ(plan->modelled.duration_ns, 50);
  EXPECT_DOUBLE_EQ(plan->modelled.stall_ns(), 0);
}

TEST(Planner, NoOpsNoPlan) {
  const PlanPtr plan = plan_cycle(Cycle{}, with_budget(1)).value();
  EXPECT_EQ(plan->ops(), 0U);
}

TEST(Planner, MovesNoMoreThanItMust) {
  // Of ten values four stay; the six others come in once a step.
  const Cycle cycle = round_robin(10, Operand::kReads);
  const PlanPtr plan = plan_cycle(cycle, with_budget(500)).value();
  EXPECT_EQ(check_plan(cycle, *plan, 0), "");
  EXPECT_EQ(count(*plan, Kind::kFetch), 6);
  EXPECT_EQ(count(*plan, Kind::kEvict), 6);
}

TEST(Planner, WhatIsNeverWrittenIsNeverWrittenBack) {
  const Cycle cycle = round_robin(10, Operand::kReads);
  const PlanPtr plan = plan_cycle(cycle, with_budget(300)).value();
  EXPECT_GT(count(*plan, Kind::kFetch), 0);
  EXPECT_EQ(count(*plan, Kind::kWriteBack), 0);
  EXPECT_EQ(plan->modelled.bytes_out, 0U);
}

TEST(Planner, WhatIsOverwrittenIsNeverFetched) {
  const Cycle cycle = round_robin(10, Operand::kOverwrites);
  const PlanPtr plan = plan_cycle(cycle, with_budget(300)).value();
  EXPECT_EQ(check_plan(cycle, *plan, 0), "");
  EXPECT_EQ(count(*plan, Kind::kFetch), 0);
  // Its bytes are saved all the same: a forecast may be wrong.
  EXPECT_GT(count(*plan, Kind::kWriteBack), 0);
  EXPECT_EQ(count(*plan, Kind::kWriteBack), count(*plan, Kind::kEvict));
}

constexpr ValueIndex kGradient = 0;

// Op 0 makes a gradient of 100 bytes, op 21 something that leaves it no room.
Cycle made_long_before_pressure() {
  Cycle cycle;
  EXPECT_EQ(cycle.addValue(100), kGradient);
  const ValueIndex late = cycle.addValue(250);
  cycle.addOp(10);
  cycle.addOperand(kGradient, Operand::kCreates);
  for (int i = 0; i < 20; ++i) cycle.addOp(10);
  cycle.addOp(10);
  cycle.addOperand(late, Operand::kCreates);
  cycle.addFree(late);
  return cycle;
}

TEST(Planner, WritesBackRightAfterTheLastWriteNotUnderPressure) {
  Cycle cycle = made_long_before_pressure();
  cycle.addOp(10);
  cycle.addOperand(kGradient, Operand::kReads);
  cycle.addFree(kGradient);
  const PlanPtr plan = plan_cycle(cycle, with_budget(300)).value();
  EXPECT_EQ(check_plan(cycle, *plan, 0), "");
  EXPECT_EQ(position(*plan, Kind::kWriteBack, kGradient), 1);
  // As soon as it is copied, ten ops later, not when its room is needed.
  EXPECT_EQ(position(*plan, Kind::kEvict, kGradient), 11);
  // Written while ops run: only the way back costs time.
  EXPECT_LE(plan->modelled.duration_ns, 23 * 10 + 101);
}

TEST(Planner, WritesBackWhatHasNoFurtherUseButLives) {
  Cycle cycle = made_long_before_pressure();
  cycle.addFree(kGradient);
  const PlanPtr plan = plan_cycle(cycle, with_budget(300)).value();
  EXPECT_EQ(check_plan(cycle, *plan, 0), "");
  EXPECT_EQ(position(*plan, Kind::kWriteBack, kGradient), 1);
  EXPECT_EQ(count(*plan, Kind::kFetch), 0);
  EXPECT_DOUBLE_EQ(plan->modelled.stall_ns(), 0);
}

// All values leave before one large op, and come back when it has ended.
TEST(Planner, SmallNeighboursTravelInBatches) {
  Cycle cycle = round_robin(50, Operand::kReads);
  const ValueIndex large = cycle.addValue(5000);
  cycle.addOp(10);
  cycle.addOperand(large, Operand::kCreates);
  cycle.addFree(large);
  cycle.addOp(6000); // time to come back
  PlannerOptions options = with_budget(5000);
  options.link.latency_ns = 100;
  options.batch_latencies = 10; // batches of at most 1000 bytes
  const PlanPtr plan = plan_cycle(cycle, options).value();
  EXPECT_EQ(check_plan(cycle, *plan, 0), "");
  EXPECT_EQ(plan->modelled.bytes_in, 5000U);
  EXPECT_EQ(plan->modelled.copies, 13U);
  std::uint64_t bytes = 0;
  for (const Action& action : plan->actions) {
    if (action.kind() != Kind::kFetch) continue;
    bytes = action.joined() ? bytes + 100 : 100;
    EXPECT_LE(bytes, 1000U);
  }
  options.batch_latencies = 0;
  const PlanPtr alone = plan_cycle(cycle, options).value();
  EXPECT_EQ(alone->modelled.copies, 50U);
  EXPECT_LT(plan->modelled.duration_ns, 0.7 * alone->modelled.duration_ns);
}

// An optimizer of four ops with four values each, half of which leave for one
// large op. What an op needs must all be there before it, and goes out after
// it: the less of it was away, the more of both runs at once.
TEST(Planner, SpreadVictimsComeInWhileOthersGoOut) {
  Cycle cycle;
  for (int op = 0; op < 4; ++op) {
    cycle.addOp(10);
    for (int i = 0; i < 4; ++i) {
      cycle.addOperand(cycle.addValue(100), Operand::kReads | Operand::kWrites);
    }
  }
  const ValueIndex large = cycle.addValue(800);
  cycle.addOp(10);
  cycle.addOperand(large, Operand::kCreates);
  cycle.addFree(large);
  const PlannerOptions options = with_budget(1600);
  const UseTable table = make_use_table(cycle, options).value();
  PlanParameters parameters;
  parameters.gaps.window = 0.25;
  const Plan oldest = plan_once(table, options, parameters);
  parameters.gaps.spread = true;
  const Plan spread = plan_once(table, options, parameters);
  EXPECT_EQ(check_plan(cycle, spread, 0), "");
  EXPECT_EQ(count(spread, Kind::kFetch), 8);
  EXPECT_EQ(count(oldest, Kind::kFetch), 8);
  const auto duration_ns = [&](const Plan& plan) {
    return model_plan(table, plan, options.link).duration_ns;
  };
  EXPECT_LT(duration_ns(spread), 0.95 * duration_ns(oldest));
}

TEST(Planner, AnOpThatDoesNotFitIsAnError) {
  Cycle cycle = round_robin(3, Operand::kReads);
  cycle.workspace_bytes[1] = 250;
  const auto plan = plan_cycle(cycle, with_budget(349));
  ASSERT_FALSE(plan.ok());
  EXPECT_EQ(plan.error().code(), runtime::ErrorCode::kOutOfDeviceMemory);
  EXPECT_EQ(plan.error().message(),
            "op 1 of the step needs 350 bytes in HBM at once, the budget is "
            "349; raise hbm_budget");
  EXPECT_TRUE(plan_cycle(cycle, with_budget(350)).ok());
}

TEST(Planner, SmallValuesMoveOnlyIfTheBudgetDemandsIt) {
  Cycle cycle = round_robin(10, Operand::kReads);
  const ValueIndex large = cycle.addValue(400);
  cycle.addOp(10);
  cycle.addOperand(large, Operand::kCreates);
  cycle.addFree(large);
  PlannerOptions options = with_budget(1400);
  options.keep_bytes = 100;
  EXPECT_TRUE(plan_cycle(cycle, options).value()->actions.empty());
  options.budget_bytes = 1399;
  const PlanPtr plan = plan_cycle(cycle, options).value();
  EXPECT_EQ(check_plan(cycle, *plan, 0), "");
  EXPECT_GT(count(*plan, Kind::kFetch), 0);
}

TEST(Planner, TheBestCandidateIsKeptAndAllCandidatesDiffer) {
  const Cycle cycle = round_robin(20, Operand::kReads | Operand::kWrites);
  PlannerOptions options = with_budget(700);
  options.portfolio = plan_portfolio(true);
  for (std::size_t i = 0; i < options.portfolio.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      ASSERT_FALSE(options.portfolio[i] == options.portfolio[j]);
    }
  }
  std::vector<Candidate> tried;
  const PlanPtr plan = plan_cycle(cycle, options, &tried).value();
  EXPECT_EQ(tried.size(), options.portfolio.size());
  double least = tried.front().modelled.duration_ns;
  for (const Candidate& candidate : tried) {
    least = std::min(least, candidate.modelled.duration_ns);
  }
  EXPECT_LT(least, tried.front().modelled.duration_ns);
  EXPECT_NEAR(plan->modelled.duration_ns, least, 0.01 * least);
}

TEST(Planner, APlanIsTheSameEveryTime) {
  const Cycle cycle = round_robin(50, Operand::kReads | Operand::kWrites);
  const PlanPtr one = plan_cycle(cycle, with_budget(900)).value();
  const PlanPtr other = plan_cycle(cycle, with_budget(900)).value();
  EXPECT_EQ(one->actions, other->actions);
  EXPECT_EQ(one->action_end, other->action_end);
}

} // namespace
} // namespace chameleon::memory
