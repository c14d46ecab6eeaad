// The planning thread beside a run: the ops neither wait for it nor it for
// them, and what both keep is small.
#include "memory/policy/planning_thread.h"

#include <gtest/gtest.h>

#include "profiler/forecast.h"
#include "tests/cpp/memory/policy/miniature_training.h"

namespace chameleon::memory {
namespace {

constexpr std::size_t kLayers = 40;
constexpr std::size_t kBudget = 32 * kBytes;

TEST(Planning, OpsNeverWaitForIt) {
  Device device("forecast", kBudget);
  Training training(*device.pager, kLayers);
  // Each budget is planned for anew, while steps go on.
  for (std::size_t i = 0; i < 60; ++i) {
    ASSERT_FALSE(
        device.pager->budgets().setHbmBudget(kBudget + i * kBytes / 4));
    for (int step = 0; step < 3; ++step) training.step();
  }
  EXPECT_GT(device.pager->policy().costs().plans_made, 10U);
  EXPECT_EQ(device.pager->profiler().state().lock_waits, 0U);
  EXPECT_EQ(device.pager->meter().durations().lockWaits(), 0U);
}

// A path that is known, its four ops of ten microseconds, and plans at once.
class PlanningAtOnce : public ::testing::Test {
 protected:
  PlanningAtOnce() {
    for (int step = 0; step < 4; ++step) training_.step();
    path = profiler::Forecast(profiler_).position().path;
    for (profiler::Token token = 1; token <= 4; ++token) {
      durations.addOp(token, 3 * kBytes, 10'000);
    }
  }

 private:
  Device device_{"lru", kBudget};
  Training training_{*device_.pager, kLayers};
  profiler::Profiler& profiler_ = device_.pager->profiler();

 protected:
  profiler::PathId path = 0;
  profiler::Durations durations;
  MirrorRate mirror;
  PlanningThread planning{profiler_, durations,
                          LinkEstimate(durations, {}, &mirror), [] {},
                          /*at_once=*/true};
};

TEST_F(PlanningAtOnce, IsDoneAgainWhereOpsTakeOtherTimes) {
  const auto forward_takes = [&](std::int64_t duration_ns) {
    for (int i = 0; i < 100; ++i) durations.addOp(2, 3 * kBytes, duration_ns);
  };
  const auto plansAfter = [&](int rounds) {
    for (int i = 0; i < rounds; ++i) {
      EXPECT_NE(planning.plan({path, kBudget}).value(), nullptr);
    }
    return planning.plansMade();
  };
  EXPECT_EQ(plansAfter(9), 1U);
  forward_takes(11'000); // of 4 ops one takes a tenth more
  EXPECT_EQ(plansAfter(16), 1U);
  forward_takes(40'000);
  EXPECT_EQ(plansAfter(7), 1U); // 31 rounds
  EXPECT_EQ(plansAfter(1), 2U);
  EXPECT_EQ(plansAfter(200), 2U);
}

// What leaves for the mirror counts where it keeps the next step waiting.
TEST_F(PlanningAtOnce, IsDoneAgainWhereAMirrorTakesLonger) {
  const PlanKey key{path, kBudget};
  const ModelledStep alone = planning.plan(key).value()->plan->modelled;
  EXPECT_EQ(alone.mirror_ns, 0);
  const double out_bytes_per_ns =
      LinkEstimate(durations, {}).now().out_bytes_per_ns;
  const auto way_out =
      static_cast<std::int64_t>(alone.duration_ns * out_bytes_per_ns);
  const auto left = way_out - static_cast<std::int64_t>(alone.bytes_out);
  ASSERT_GT(left, 0);
  mirror.commitBegins();
  mirror.commitEnded(left);
  EXPECT_EQ(planning.plan(key).value()->plan->modelled.mirror_ns, 0);
  EXPECT_EQ(planning.plansMade(), 1U);
  mirror.commitBegins();
  mirror.commitEnded(2 * way_out);
  (void)planning.plan(key); // ordered
  const ModelledStep both = planning.plan(key).value()->plan->modelled;
  EXPECT_EQ(planning.plansMade(), 2U);
  EXPECT_GT(both.mirror_ns, 0);
  // The way out has nothing else to do.
  EXPECT_NEAR(
      both.duration_ns * out_bytes_per_ns,
      static_cast<double>(both.bytes_out) + 2.0 * static_cast<double>(way_out),
      out_bytes_per_ns);
  EXPECT_LE(both.bytes_out, alone.bytes_out);
  for (int i = 0; i < 5; ++i) mirror.stepEnded(); // and no other commit
  (void)planning.plan(key);
  EXPECT_EQ(planning.plan(key).value()->plan->modelled.mirror_ns, 0);
}

// Steps that take longer than the model says: the path is planned with more
// headroom, and that plan is the one to follow.
TEST_F(PlanningAtOnce, OtherHeadroomIsTried) {
  const PathPlanPtr first = planning.plan({path, kBudget}).value();
  ASSERT_FALSE(first->plan->actions.empty());
  const auto step_ns =
      static_cast<std::int64_t>(2 * first->plan->modelled.duration_ns);
  constexpr std::size_t kSteps =
      HeadroomTrial::kTakeOver + HeadroomTrial::kSteps;
  planning.stepEnded(nullptr, step_ns);
  EXPECT_EQ(planning.plan({path, kBudget}).value(), first);
  planning.stepEnded(first->plan.get(), step_ns);
  const PathPlanPtr again = planning.plan({path, kBudget}).value();
  EXPECT_EQ(again->headroom_level, 0); // it was followed
  EXPECT_GT(again->plan->budget_bytes, first->plan->budget_bytes);
  for (std::size_t i = 0; i < kSteps; ++i) {
    EXPECT_EQ(planning.plan({path, kBudget}).value(), again);
    planning.stepEnded(again->plan.get(), step_ns);
  }
  const PathPlanPtr second = planning.plan({path, kBudget}).value();
  EXPECT_EQ(second->headroom_level, 1);
  EXPECT_LT(second->plan->budget_bytes, again->plan->budget_bytes);
  EXPECT_TRUE(planning.isTrying({path, kBudget}));
  EXPECT_EQ(planning.plansMade(), 3U);
  for (int slower = 1; planning.isTrying({path, kBudget}); ++slower) {
    ASSERT_LT(slower, 200);
    const PathPlanPtr now = planning.plan({path, kBudget}).value();
    planning.stepEnded(now->plan.get(), slower * step_ns);
  }
  EXPECT_EQ(planning.plan({path, kBudget}).value(), again);
  EXPECT_EQ(planning.plansMade(), 2 + HeadroomTrial::kMostHeadroom);
  EXPECT_FALSE(planning.isTrying({path, 2 * kBudget}));
}

} // namespace
} // namespace chameleon::memory
