// Which plan stays, by what the steps of each of them took.
#include "memory/policy/headroom_trial.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <memory>

namespace chameleon::memory {
namespace {

constexpr double kModelledNs = 1e6;
constexpr auto kAll = HeadroomTrial::kTakeOver + HeadroomTrial::kSteps;

PathPlanPtr made(int headroom, bool moves = true, double modelled = 1) {
  auto plan = std::make_shared<Plan>();
  plan->modelled.duration_ns = modelled * kModelledNs;
  if (moves) plan->actions.emplace_back(Action::Kind::kWriteBack, 0);
  auto path_plan = std::make_shared<PathPlan>();
  path_plan->plan = std::move(plan);
  path_plan->headroom_level = headroom;
  return path_plan;
}

// Steps that take `ratio` times what the model says. Whether another plan is
// wanted.
bool follow(HeadroomTrial& trial, double ratio, std::size_t steps = kAll) {
  bool wanted = false;
  const PathPlanPtr plan = trial.plan();
  for (std::size_t i = 0; i < steps; ++i) {
    wanted = trial.stepEnded(plan->plan.get(),
                             static_cast<std::int64_t>(ratio * kModelledNs));
  }
  return wanted;
}

// With the plan that is made when the path was followed for a step.
HeadroomTrial begun() {
  HeadroomTrial trial(made(HeadroomTrial::kOnce));
  EXPECT_EQ(trial.headroomLevel(), HeadroomTrial::kOnce);
  EXPECT_FALSE(trial.stepEnded(nullptr, 1));
  EXPECT_TRUE(follow(trial, 9, 1));
  EXPECT_EQ(trial.headroomLevel(), HeadroomTrial::kNoHeadroom);
  EXPECT_FALSE(follow(trial, 9)); // until it is there
  const PathPlanPtr again = made(0);
  trial.add(again);
  EXPECT_EQ(trial.plan(), again);
  return trial;
}

TEST(HeadroomTrial, WhatTakesWhatTheModelSaysStays) {
  HeadroomTrial trial = begun();
  EXPECT_FALSE(follow(trial, 1.01, kAll - 1));
  EXPECT_FALSE(trial.isOver());
  EXPECT_FALSE(follow(trial, 1.01, 1));
  EXPECT_TRUE(trial.isOver());
  EXPECT_EQ(trial.headroomLevel(), 0);
}

TEST(HeadroomTrial, WhatMovesNothingStays) {
  HeadroomTrial trial(made(HeadroomTrial::kOnce, /*moves=*/false));
  EXPECT_FALSE(follow(trial, 2, 1));
  EXPECT_TRUE(trial.isOver());
}

TEST(HeadroomTrial, WhatLeavesNothingIsHeldToItsWord) {
  constexpr int kNone = HeadroomTrial::kNoHeadroom;
  HeadroomTrial kept(made(kNone, /*moves=*/false));
  EXPECT_FALSE(follow(kept, 1.01));
  EXPECT_TRUE(kept.isOver());
  EXPECT_EQ(kept.headroomLevel(), kNone);

  HeadroomTrial trial(made(kNone, /*moves=*/false));
  EXPECT_TRUE(follow(trial, 1.5));
  EXPECT_EQ(trial.headroomLevel(), 0);
  trial.add(made(0));
  EXPECT_FALSE(follow(trial, 1.01));
  EXPECT_TRUE(trial.isOver());
  EXPECT_EQ(trial.headroomLevel(), 0);
}

TEST(HeadroomTrial, AllAreTriedAndTheBestStays) {
  for (int best = 0; best <= HeadroomTrial::kMostHeadroom; ++best) {
    HeadroomTrial trial = begun();
    PathPlanPtr best_plan = trial.plan();
    for (int headroom = 0; headroom <= HeadroomTrial::kMostHeadroom;
         ++headroom) {
      EXPECT_EQ(trial.headroomLevel(), headroom);
      if (headroom != 0) {
        const PathPlanPtr next = made(headroom);
        trial.add(next);
        EXPECT_EQ(trial.plan(), next);
        if (headroom == best) best_plan = next;
      }
      EXPECT_EQ(follow(trial, headroom == best ? 1.4 : 1.5),
                headroom != HeadroomTrial::kMostHeadroom);
    }
    EXPECT_TRUE(trial.isOver());
    EXPECT_EQ(trial.plan(), best_plan);
  }
}

TEST(HeadroomTrial, AnotherPlanStaysIfItsStepsAreClearlyShorter) {
  for (const double ratio : {1.47, 1.499, 1.501}) {
    HeadroomTrial trial = begun();
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

TEST(HeadroomTrial, ItEndsWhereOneTakesWhatTheModelSays) {
  HeadroomTrial trial = begun();
  EXPECT_TRUE(follow(trial, 1.5));
  const PathPlanPtr second = made(1);
  trial.add(second);
  EXPECT_FALSE(follow(trial, 1.01));
  EXPECT_TRUE(trial.isOver());
  EXPECT_EQ(trial.plan(), second);
}

TEST(HeadroomTrial, AFarSlowerPlanIsGivenUpSoon) {
  HeadroomTrial trial = begun();
  const PathPlanPtr first = trial.plan();
  EXPECT_TRUE(follow(trial, 1.5));
  trial.add(made(1));
  EXPECT_FALSE(follow(trial, 3, 1));
  EXPECT_TRUE(follow(trial, 3, 1));
  EXPECT_EQ(trial.plan(), first);
  EXPECT_EQ(trial.headroomLevel(), 2);
}

TEST(HeadroomTrial, APlanThatIsModelledSlowerIsNotTried) {
  HeadroomTrial trial = begun();
  const PathPlanPtr first = trial.plan();
  EXPECT_TRUE(follow(trial, 1.1));
  trial.add(made(1, /*moves=*/true, /*modelled=*/1.11));
  EXPECT_TRUE(trial.isOver());
  EXPECT_EQ(trial.plan(), first);
  // Its search goes on, and finds what it finds.
  trial.add(made(1));
  EXPECT_TRUE(trial.isOver());
  EXPECT_EQ(trial.plan(), first);
}

TEST(HeadroomTrial, OneLongStepIsNoReasonToGiveUp) {
  HeadroomTrial trial = begun();
  EXPECT_TRUE(follow(trial, 1.5));
  const PathPlanPtr second = made(1);
  trial.add(second);
  EXPECT_FALSE(follow(trial, 1.4, HeadroomTrial::kTakeOver));
  EXPECT_FALSE(follow(trial, 3, 1)); // saved a checkpoint
  EXPECT_FALSE(follow(trial, 1.4, 1));
  EXPECT_TRUE(follow(trial, 1.4, 1));
  EXPECT_EQ(trial.plan(), second);
}

TEST(HeadroomTrial, OnlyStepsInARowCount) {
  HeadroomTrial trial = begun();
  for (std::size_t i = 0; i < 10 * kAll; ++i) {
    EXPECT_FALSE(follow(trial, 1.5, HeadroomTrial::kTakeOver));
    EXPECT_FALSE(trial.stepEnded(nullptr, 1));
    EXPECT_FALSE(trial.stepEnded(made(0)->plan.get(), 1));
  }
  EXPECT_FALSE(trial.isOver());
}

TEST(HeadroomTrial, WhatCannotBePlannedEndsIt) {
  HeadroomTrial trial = begun();
  const PathPlanPtr first = trial.plan();
  EXPECT_TRUE(follow(trial, 1.5));
  trial.add(std::make_shared<PathPlan>());
  EXPECT_TRUE(trial.isOver());
  EXPECT_EQ(trial.plan(), first);
}

// A better plan of the same headroom begins to count when it is there; one for
// another link, when all is over, is compared anew.
TEST(HeadroomTrial, OtherPlansBeginAnew) {
  HeadroomTrial trial = begun();
  EXPECT_FALSE(follow(trial, 1.5, kAll - 1));
  trial.add(made(0));
  EXPECT_FALSE(follow(trial, 1.01, kAll - 1));
  EXPECT_FALSE(trial.isOver());
  EXPECT_FALSE(follow(trial, 1.01, 1));
  EXPECT_TRUE(trial.isOver());
  trial.add(made(0));
  EXPECT_FALSE(trial.isOver());
  EXPECT_TRUE(follow(trial, 2));
  EXPECT_EQ(trial.headroomLevel(), 1);
}

// From the first step that followed its path on.
TEST(HeadroomTrial, ItIsOverAfterFifteenSteps) {
  for (const bool fits : {false, true}) { // then after some more
    HeadroomTrial trial(made(HeadroomTrial::kOnce));
    EXPECT_TRUE(follow(trial, 9, 1));
    std::size_t steps = 1;
    while (!trial.isOver()) {
      const int wanted = trial.headroomLevel();
      const int level = fits ? wanted : std::max(wanted, 0);
      trial.add(made(level, level != HeadroomTrial::kNoHeadroom));
      follow(trial, 1.5);
      steps += kAll;
    }
    EXPECT_LE(steps, fits ? 15 + kAll : 15);
  }
}

} // namespace
} // namespace chameleon::memory
