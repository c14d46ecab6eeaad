// Which plan stays, by what the steps of each of them took.
#include "memory/policy/slack_trial.h"

#include <gtest/gtest.h>
#include <memory>

namespace chameleon::memory {
namespace {

constexpr double kComputeNs = 1e6;
constexpr auto kAll = SlackTrial::kTakeOver + SlackTrial::kLeastSteps;

PathPlanPtr made(int slack, bool moves = true, bool drops = false) {
  auto plan = std::make_shared<Plan>();
  if (moves) plan->actions.emplace_back(Action::Kind::kWriteBack, 0);
  if (drops) plan->recorded.push_back(0);
  auto path_plan = std::make_shared<PathPlan>();
  path_plan->plan = std::move(plan);
  path_plan->slack = slack;
  path_plan->compute_ns = kComputeNs;
  return path_plan;
}

// Steps that take `ratio` times the ops alone, by turns `spread` less and more.
// Whether another plan is wanted.
bool follow(SlackTrial& trial, double ratio, std::size_t steps = kAll,
            double spread = 0) {
  bool wanted = false;
  const PathPlanPtr plan = trial.plan();
  for (std::size_t i = 0; i < steps; ++i) {
    const double step = i % 2 == 0 ? ratio - spread : ratio + spread;
    wanted = trial.stepEnded(plan->plan.get(),
                             static_cast<std::int64_t>(step * kComputeNs));
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

TEST(SlackTrial, WhatIsGoodEnoughStays) {
  SlackTrial trial = begun();
  EXPECT_FALSE(follow(trial, 1.001, kAll - 1));
  EXPECT_FALSE(trial.isOver());
  EXPECT_FALSE(follow(trial, 1.001, 1));
  EXPECT_TRUE(trial.isOver());
  EXPECT_EQ(trial.slack(), 0);
}

TEST(SlackTrial, WhatMovesNothingStays) {
  SlackTrial trial(made(SlackTrial::kOnce, /*moves=*/false));
  EXPECT_FALSE(follow(trial, 2, 1));
  EXPECT_TRUE(trial.isOver());
}

TEST(SlackTrial, AllAreTriedAndTheBestStays) {
  for (const int best : SlackTrial::kSlacks) {
    SlackTrial trial = begun();
    PathPlanPtr best_plan = trial.plan();
    const auto ratio = [&](int slack) { return slack == best ? 1.4 : 1.5; };
    for (const int slack : SlackTrial::kSlacks) {
      EXPECT_EQ(trial.slack(), slack);
      if (slack != 0) {
        const PathPlanPtr next = made(slack);
        trial.add(next);
        EXPECT_EQ(trial.plan(), next);
        if (slack == best) best_plan = next;
      }
      EXPECT_EQ(follow(trial, ratio(slack)),
                slack != SlackTrial::kSlacks.back());
    }
    EXPECT_TRUE(trial.isOver());
    EXPECT_EQ(trial.plan(), best_plan);
  }
}

TEST(SlackTrial, TheShortestStepsStay) {
  for (const double ratio : {1.4995, 1.5005}) {
    SlackTrial trial = begun();
    const PathPlanPtr first = trial.plan();
    EXPECT_TRUE(follow(trial, 1.5));
    EXPECT_EQ(trial.plan(), first); // until the other is there
    EXPECT_FALSE(follow(trial, 1.5));
    const PathPlanPtr other = made(-1);
    trial.add(other);
    EXPECT_TRUE(follow(trial, ratio));
    EXPECT_EQ(trial.plan(), ratio < 1.5 ? other : first);
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

TEST(SlackTrial, AFarSlowerPlanIsGivenUpSoon) {
  SlackTrial trial = begun();
  const PathPlanPtr first = trial.plan();
  EXPECT_TRUE(follow(trial, 1.5));
  trial.add(made(-1));
  EXPECT_FALSE(follow(trial, 3, SlackTrial::kTakeOver + 1));
  EXPECT_TRUE(follow(trial, 3, 1));
  EXPECT_EQ(trial.plan(), first);
  EXPECT_EQ(trial.slack(), 1);
  trial.add(made(1)); // slower, but not far
  EXPECT_FALSE(follow(trial, 1.7, kAll - 1));
  EXPECT_TRUE(follow(trial, 1.7, 1));
  EXPECT_EQ(trial.plan(), first);
}

TEST(SlackTrial, OneLongStepIsNoReasonToGiveUp) {
  SlackTrial trial = begun();
  EXPECT_TRUE(follow(trial, 1.5));
  const PathPlanPtr second = made(-1);
  trial.add(second);
  EXPECT_FALSE(follow(trial, 1.4, SlackTrial::kTakeOver));
  EXPECT_FALSE(follow(trial, 3, 1)); // saved a checkpoint
  EXPECT_FALSE(follow(trial, 1.4, 1));
  follow(trial, 1.4, SlackTrial::kMostSteps);
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
  EXPECT_EQ(trial.slack(), 1);
  EXPECT_EQ(trial.plan(), second);
}

// The first and the second are the best, and so much alike that it takes more
// steps to find out which is better.
TEST(SlackTrial, TheTwoBestRunOff) {
  constexpr auto all = SlackTrial::kTakeOver + SlackTrial::kMostSteps;
  constexpr auto more =
      SlackTrial::kTakeOver + SlackTrial::kRunOffSteps - SlackTrial::kMostSteps;
  for (const bool first_is_best : {true, false}) {
    SlackTrial trial = begun();
    const PathPlanPtr first = trial.plan();
    const PathPlanPtr second = made(-1);
    follow(trial, 1.5, all, 0.1);
    for (const int slack : SlackTrial::kSlacks) {
      if (slack == 0) continue;
      trial.add(slack == -1 ? second : made(slack));
      follow(trial, slack == -1 ? 1.51 : 1.9, all, 0.1);
    }
    EXPECT_FALSE(trial.isOver());
    EXPECT_EQ(trial.plan(), second);
    EXPECT_FALSE(follow(trial, first_is_best ? 1.51 : 1.4, more, 0.1));
    EXPECT_EQ(trial.plan(), first);
    EXPECT_FALSE(follow(trial, 1.5, more - 1, 0.1));
    EXPECT_FALSE(trial.isOver());
    follow(trial, 1.5, 1, 0.1);
    EXPECT_TRUE(trial.isOver());
    EXPECT_EQ(trial.plan(), first_is_best ? first : second);
  }
}

// For another link, say, what was measured of the others says nothing.
TEST(SlackTrial, AnotherPlanEndsARunOff) {
  SlackTrial trial = begun();
  for (const int slack : SlackTrial::kSlacks) {
    if (slack != 0) trial.add(made(slack));
    follow(trial, 1.5, SlackTrial::kTakeOver + SlackTrial::kMostSteps, 0.1);
  }
  EXPECT_FALSE(trial.isOver());
  const PathPlanPtr other = made(0);
  trial.add(other);
  EXPECT_EQ(trial.plan(), other);
  EXPECT_TRUE(follow(trial, 1.5));
  EXPECT_EQ(trial.slack(), -1);
}

// All slacks were tried; the plan of one of them dropped, and was not the best.
SlackTrial dropping() {
  SlackTrial trial = begun();
  for (const int slack : SlackTrial::kSlacks) {
    const bool drops = slack == 1;
    trial.add(made(slack, /*moves=*/true, drops));
    EXPECT_TRUE(follow(trial, drops ? 1.6 : 1.5));
  }
  EXPECT_EQ(trial.slack(), SlackTrial::kSwapsOnly);
  EXPECT_FALSE(trial.isOver());
  return trial;
}

TEST(SlackTrial, WhereAPlanDropsSwapsAloneAreTriedToo) {
  for (const double ratio : {1.4, 1.6}) {
    SlackTrial trial = dropping();
    const PathPlanPtr best = trial.plan();
    const PathPlanPtr swaps = made(SlackTrial::kSwapsOnly);
    trial.add(swaps);
    EXPECT_FALSE(follow(trial, ratio));
    EXPECT_TRUE(trial.isOver());
    EXPECT_EQ(trial.plan(), ratio < 1.5 ? swaps : best);
  }
}

TEST(SlackTrial, WhereSwapsAloneTakeFarLongerTheBestStays) {
  SlackTrial trial = dropping();
  const PathPlanPtr best = trial.plan();
  trial.add(std::make_shared<PathPlan>());
  EXPECT_TRUE(trial.isOver());
  EXPECT_EQ(trial.plan(), best);
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
  EXPECT_FALSE(follow(trial, 1.001, kAll - 1));
  EXPECT_FALSE(trial.isOver());
  EXPECT_FALSE(follow(trial, 1.001, 1));
  EXPECT_TRUE(trial.isOver());
  trial.add(made(0));
  EXPECT_FALSE(trial.isOver());
  EXPECT_TRUE(follow(trial, 2));
  EXPECT_EQ(trial.slack(), -1);
}

} // namespace
} // namespace chameleon::memory
