// Which plan stays, by what the steps of each of them took.
#include "memory/policy/slack_trial.h"

#include <gtest/gtest.h>
#include <memory>

namespace chameleon::memory {
namespace {

constexpr double kComputeNs = 1e6;
constexpr auto kAll = SlackTrial::kTakeOver + SlackTrial::kLeastSteps;

PathPlanPtr made(int slack, bool moves = true) {
  auto plan = std::make_shared<Plan>();
  if (moves) plan->actions.emplace_back(Action::Kind::kWriteBack, 0);
  auto path_plan = std::make_shared<PathPlan>();
  path_plan->plan = std::move(plan);
  path_plan->slack = slack;
  path_plan->compute_ns = kComputeNs;
  return path_plan;
}

// Steps that take `ratio` times the ops alone. Whether another plan is wanted.
bool follow(SlackTrial& trial, double ratio, std::size_t steps = kAll) {
  bool wanted = false;
  const Plan* const plan = trial.plan()->plan.get();
  for (std::size_t i = 0; i < steps; ++i) {
    wanted =
        trial.stepEnded(plan, static_cast<std::int64_t>(ratio * kComputeNs));
  }
  return wanted;
}

// With the plan that is made when more is known than for the first one.
SlackTrial begun() {
  SlackTrial trial(made(0));
  EXPECT_TRUE(follow(trial, 9));
  EXPECT_EQ(trial.slack(), 0);
  const PathPlanPtr again = made(0);
  trial.add(again);
  EXPECT_EQ(trial.plan(), again);
  return trial;
}

TEST(SlackTrial, TheFirstPlanStaysIfItIsBetter) {
  SlackTrial trial(made(0));
  const PathPlanPtr first = trial.plan();
  EXPECT_TRUE(follow(trial, 1.5));
  EXPECT_EQ(trial.slack(), 0);
  trial.add(made(0));
  EXPECT_TRUE(follow(trial, 1.6));
  EXPECT_EQ(trial.plan(), first);
  EXPECT_EQ(trial.slack(), -1);
}

TEST(SlackTrial, WhatIsGoodEnoughStays) {
  SlackTrial trial(made(0));
  EXPECT_FALSE(follow(trial, 1.004, kAll - 1));
  EXPECT_FALSE(trial.isOver());
  EXPECT_FALSE(follow(trial, 1.004, 1));
  EXPECT_TRUE(trial.isOver());
  EXPECT_EQ(trial.slack(), 0);
}

TEST(SlackTrial, WhatMovesNothingStays) {
  SlackTrial trial(made(0, /*moves=*/false));
  EXPECT_FALSE(follow(trial, 2));
  EXPECT_TRUE(trial.isOver());
}

TEST(SlackTrial, LessAndLessWhileThatIsBetter) {
  SlackTrial trial = begun();
  const PathPlanPtr first = trial.plan();
  EXPECT_TRUE(follow(trial, 1.5));
  EXPECT_EQ(trial.slack(), -1);
  EXPECT_EQ(trial.plan(), first); // until the other is there
  EXPECT_FALSE(follow(trial, 1.5));
  const PathPlanPtr second = made(-1);
  trial.add(second);
  EXPECT_EQ(trial.plan(), second);
  EXPECT_TRUE(follow(trial, 1.4));
  EXPECT_EQ(trial.slack(), -2);
  trial.add(made(-2));
  EXPECT_FALSE(follow(trial, 1.45)); // and 0 was tried
  EXPECT_TRUE(trial.isOver());
  EXPECT_EQ(trial.plan(), second);
}

TEST(SlackTrial, MoreWhereLessIsNotBetter) {
  for (const double ratio : {1.6, 1.4995}) { // worse, or hardly better
    SlackTrial trial = begun();
    EXPECT_TRUE(follow(trial, 1.5));
    trial.add(made(-1));
    EXPECT_TRUE(follow(trial, ratio));
    EXPECT_EQ(trial.slack(), 1);
    EXPECT_EQ(trial.plan()->slack, 0);
    const PathPlanPtr third = made(1);
    trial.add(third);
    EXPECT_FALSE(follow(trial, 1.4)); // there is no more to leave
    EXPECT_TRUE(trial.isOver());
    EXPECT_EQ(trial.plan(), third);
  }
}

TEST(SlackTrial, StepsThatDifferAreMeasuredForLonger) {
  SlackTrial trial = begun();
  const std::size_t all = SlackTrial::kTakeOver + SlackTrial::kMostSteps;
  for (std::size_t i = 1; i < all; ++i) {
    EXPECT_FALSE(follow(trial, i % 3 == 0 ? 1.6 : 1.4, 1)) << i;
  }
  EXPECT_TRUE(follow(trial, 1.4, 1));
  const PathPlanPtr second = made(-1);
  trial.add(second);
  EXPECT_FALSE(follow(trial, 1.45, kAll - 1));
  EXPECT_TRUE(follow(trial, 1.45, 1)); // 1.467 was the other's mean
  EXPECT_EQ(trial.plan(), second);
}

TEST(SlackTrial, OnlyStepsInARowCount) {
  SlackTrial trial = begun();
  for (std::size_t i = 0; i < 10 * kAll; ++i) {
    EXPECT_FALSE(follow(trial, 1.5, SlackTrial::kTakeOver));
    EXPECT_FALSE(trial.stepEnded(nullptr, 1));
    EXPECT_FALSE(trial.stepEnded(made(0)->plan.get(), 1));
  }
  EXPECT_FALSE(trial.isOver());
}

TEST(SlackTrial, AStepThatDidSomethingElseDoesNotCount) {
  SlackTrial trial = begun();
  EXPECT_TRUE(follow(trial, 1.5));
  const PathPlanPtr second = made(-1);
  trial.add(second);
  EXPECT_FALSE(follow(trial, 1.4, kAll - 1));
  EXPECT_TRUE(follow(trial, 100, 1)); // saved a checkpoint
  EXPECT_EQ(trial.slack(), -2);
  EXPECT_EQ(trial.plan(), second);
}

TEST(SlackTrial, WhatCannotBePlannedEndsIt) {
  SlackTrial trial = begun();
  const PathPlanPtr first = trial.plan();
  EXPECT_TRUE(follow(trial, 1.5));
  trial.add(std::make_shared<PathPlan>());
  EXPECT_TRUE(trial.isOver());
  EXPECT_EQ(trial.plan(), first);
}

// A better plan of the same slack begins to count when it is there; one for
// another link, when all is over, is compared anew.
TEST(SlackTrial, OtherPlansBeginAnew) {
  SlackTrial trial = begun();
  EXPECT_FALSE(follow(trial, 1.5, kAll - 1));
  trial.add(made(0));
  EXPECT_FALSE(follow(trial, 1.004, kAll - 1));
  EXPECT_FALSE(trial.isOver());
  EXPECT_FALSE(follow(trial, 1.004, 1));
  EXPECT_TRUE(trial.isOver());
  trial.add(made(0));
  EXPECT_FALSE(trial.isOver());
  EXPECT_TRUE(follow(trial, 2));
  EXPECT_EQ(trial.slack(), -1);
}

} // namespace
} // namespace chameleon::memory
