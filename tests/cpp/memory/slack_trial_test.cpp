// Which plan stays, by what the steps of each of them took.
#include "memory/policy/slack_trial.h"

#include <gtest/gtest.h>
#include <memory>

namespace chameleon::memory {
namespace {

constexpr double kModelledNs = 1e6;
constexpr auto kAll = SlackTrial::kTakeOver + SlackTrial::kSteps;

PathPlanPtr made(int slack, bool moves = true) {
  auto plan = std::make_shared<Plan>();
  plan->modelled.duration_ns = kModelledNs;
  if (moves) plan->actions.emplace_back(Action::Kind::kWriteBack, 0);
  auto path_plan = std::make_shared<PathPlan>();
  path_plan->plan = std::move(plan);
  path_plan->slack = slack;
  return path_plan;
}

// Steps that take `ratio` times what the model says. Whether another plan is
// wanted.
bool follow(SlackTrial& trial, double ratio, std::size_t steps = kAll) {
  bool wanted = false;
  const PathPlanPtr plan = trial.plan();
  for (std::size_t i = 0; i < steps; ++i) {
    wanted = trial.stepEnded(plan->plan.get(),
                             static_cast<std::int64_t>(ratio * kModelledNs));
  }
  return wanted;
}

// With the plan that is made when the path was followed for a step.
SlackTrial begun() {
  SlackTrial trial(made(SlackTrial::kOnce));
  EXPECT_EQ(trial.slack(), SlackTrial::kOnce);
  EXPECT_FALSE(trial.stepEnded(nullptr, 1));
  EXPECT_TRUE(follow(trial, 9, 1));
  EXPECT_EQ(trial.slack(), 0);
  EXPECT_FALSE(follow(trial, 9)); // until it is there
  const PathPlanPtr again = made(0);
  trial.add(again);
  EXPECT_EQ(trial.plan(), again);
  return trial;
}

TEST(SlackTrial, WhatTakesWhatTheModelSaysStays) {
  SlackTrial trial = begun();
  EXPECT_FALSE(follow(trial, 1.01, kAll - 1));
  EXPECT_FALSE(trial.isOver());
  EXPECT_FALSE(follow(trial, 1.01, 1));
  EXPECT_TRUE(trial.isOver());
  EXPECT_EQ(trial.slack(), 0);
}

TEST(SlackTrial, WhatMovesNothingStays) {
  SlackTrial trial(made(SlackTrial::kOnce, /*moves=*/false));
  EXPECT_FALSE(follow(trial, 2, 1));
  EXPECT_TRUE(trial.isOver());
}

TEST(SlackTrial, AllAreTriedAndTheBestStays) {
  for (int best = 0; best <= SlackTrial::kMostSlack; ++best) {
    SlackTrial trial = begun();
    PathPlanPtr best_plan = trial.plan();
    for (int slack = 0; slack <= SlackTrial::kMostSlack; ++slack) {
      EXPECT_EQ(trial.slack(), slack);
      if (slack != 0) {
        const PathPlanPtr next = made(slack);
        trial.add(next);
        EXPECT_EQ(trial.plan(), next);
        if (slack == best) best_plan = next;
      }
      EXPECT_EQ(follow(trial, slack == best ? 1.4 : 1.5),
                slack != SlackTrial::kMostSlack);
    }
    EXPECT_TRUE(trial.isOver());
    EXPECT_EQ(trial.plan(), best_plan);
  }
}

TEST(SlackTrial, AnotherPlanStaysIfItsStepsAreClearlyShorter) {
  for (const double ratio : {1.47, 1.499, 1.501}) {
    SlackTrial trial = begun();
    const PathPlanPtr first = trial.plan();
    EXPECT_TRUE(follow(trial, 1.5));
    EXPECT_EQ(trial.plan(), first); // until the other is there
    EXPECT_FALSE(follow(trial, 1.5));
    const PathPlanPtr other = made(1);
    trial.add(other);
    EXPECT_TRUE(follow(trial, ratio));
    EXPECT_EQ(trial.plan(), ratio < 1.48 ? other : first);
  }
}

TEST(SlackTrial, ItEndsWhereOneTakesWhatTheModelSays) {
  SlackTrial trial = begun();
  EXPECT_TRUE(follow(trial, 1.5));
  const PathPlanPtr second = made(1);
  trial.add(second);
  EXPECT_FALSE(follow(trial, 1.01));
  EXPECT_TRUE(trial.isOver());
  EXPECT_EQ(trial.plan(), second);
}

TEST(SlackTrial, AFarSlowerPlanIsGivenUpSoon) {
  SlackTrial trial = begun();
  const PathPlanPtr first = trial.plan();
  EXPECT_TRUE(follow(trial, 1.5));
  trial.add(made(1));
  EXPECT_FALSE(follow(trial, 3, SlackTrial::kTakeOver + 1));
  EXPECT_TRUE(follow(trial, 3, 1));
  EXPECT_EQ(trial.plan(), first);
  EXPECT_EQ(trial.slack(), 2);
}

TEST(SlackTrial, OneLongStepIsNoReasonToGiveUp) {
  SlackTrial trial = begun();
  EXPECT_TRUE(follow(trial, 1.5));
  const PathPlanPtr second = made(1);
  trial.add(second);
  EXPECT_FALSE(follow(trial, 1.4, SlackTrial::kTakeOver));
  EXPECT_FALSE(follow(trial, 3, 1)); // saved a checkpoint
  EXPECT_FALSE(follow(trial, 1.4, 1));
  EXPECT_TRUE(follow(trial, 1.4, 1));
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
  EXPECT_FALSE(follow(trial, 1.01, kAll - 1));
  EXPECT_FALSE(trial.isOver());
  EXPECT_FALSE(follow(trial, 1.01, 1));
  EXPECT_TRUE(trial.isOver());
  trial.add(made(0));
  EXPECT_FALSE(trial.isOver());
  EXPECT_TRUE(follow(trial, 2));
  EXPECT_EQ(trial.slack(), 1);
}

// From the first step that followed its path on.
TEST(SlackTrial, ItIsOverAfterFifteenSteps) {
  SlackTrial trial(made(SlackTrial::kOnce));
  EXPECT_TRUE(follow(trial, 9, 1));
  std::size_t steps = 1;
  while (!trial.isOver()) {
    trial.add(made(trial.slack()));
    follow(trial, 1.5);
    steps += kAll;
  }
  EXPECT_LE(steps, 15);
}

} // namespace
} // namespace chameleon::memory
