// Which steps are called slow, of what, how often, and in which words.
#include "memory/figures/slowdown_watch.h"

#include <gtest/gtest.h>
#include <memory>
#include <utility>

namespace chameleon::memory {
namespace {

constexpr std::int64_t kMs = 1'000'000;

// A step of 100 ms that a test changes.
struct Case {
  StepFigures figures;
  SlowdownWatch::Step step{figures, 0, 3 << 20, 1 << 20, true, false, true};

  Case() {
    figures.duration_ns = 100 * kMs;
    figures.compute_ns = 40 * kMs;
    figures.stall_ns = 60 * kMs;
    figures.bytes_in = 2'000'000'000;
    figures.bytes_out = 1'000'000'000;
    figures.bound_ns = 80 * kMs;
    figures.ops = 100;
    figures.plan = std::make_shared<Plan>();
    step.transfer_ns = 80.0 * kMs;
  }
};

// So that the next kInARow-th slow step is told of.
void warm_up(SlowdownWatch& watch, const Case& slow,
             int steps = SlowdownWatch::kWarmUp) {
  for (int i = 0; i < steps; ++i) {
    EXPECT_FALSE(watch.look(slow.step));
  }
}

std::optional<SlowdownReport> third(SlowdownWatch& watch, const Case& slow) {
  for (int i = 1; i < SlowdownWatch::kInARow; ++i) {
    EXPECT_FALSE(watch.look(slow.step));
  }
  return watch.look(slow.step);
}

TEST(SlowdownWatch, OneWarningInWordsAfterTheWarmUp) {
  SlowdownWatch watch(1);
  const Case slow;
  warm_up(watch, slow);
  const auto report = third(watch, slow);
  ASSERT_TRUE(report);
  EXPECT_EQ(report->cause, SlowdownCause::kLink);
  EXPECT_FALSE(report->too_slow);
  EXPECT_EQ(
      report->message,
      "chameleon:1: a step takes 100 ms, 2.5 times what it would without "
      "waiting for bytes. At 3 times the budget (peak 3.00 MiB, hbm_budget "
      "1.00 MiB) it moves 1.86 GiB in and 953.67 MiB out, which with its "
      "compute takes 80 ms at least. These bytes keep the link busy; what "
      "helps is to move "
      "fewer: a larger torch_chameleon.config.hbm_budget, a smaller batch, or "
      "torch_chameleon.config.recompute = \"auto\".");
  for (int i = 0; i < 20; ++i) EXPECT_FALSE(watch.look(slow.step));
}

TEST(SlowdownWatch, EachCauseOnce) {
  SlowdownWatch watch(0);
  Case slow;
  warm_up(watch, slow);
  EXPECT_EQ(third(watch, slow)->cause, SlowdownCause::kLink);
  slow.step.transfer_ns = 70.0 * kMs - 1; // below kLinkShare
  slow.figures.forecast_misses = 10;
  EXPECT_EQ(watch.look(slow.step)->cause, SlowdownCause::kUnforeseen);
  slow.figures.forecast_misses = 9;
  EXPECT_EQ(watch.look(slow.step)->cause, SlowdownCause::kLate);
  for (int i = 0; i < 20; ++i) EXPECT_FALSE(watch.look(slow.step));
}

TEST(SlowdownWatch, WhatHelpsDependsOnWhatIsOn) {
  const auto words = [](double transfer_ns, bool plans_ahead, bool recompute) {
    SlowdownWatch watch(0);
    Case slow;
    slow.step.transfer_ns = transfer_ns;
    slow.step.plans_ahead = plans_ahead;
    slow.step.recompute = recompute;
    warm_up(watch, slow);
    return third(watch, slow)->message;
  };
  EXPECT_NE(words(80.0 * kMs, true, false).find("recompute"),
            std::string::npos);
  EXPECT_EQ(words(80.0 * kMs, true, true).find("recompute"), std::string::npos);
  EXPECT_NE(words(80.0 * kMs, false, true).find("policy = \"forecast\"."),
            std::string::npos);
  EXPECT_NE(words(80.0 * kMs, false, false)
                .find("policy = \"forecast\" and "
                      "torch_chameleon.config.recompute = \"auto\"."),
            std::string::npos);
  EXPECT_NE(words(1, false, false).find("policy = \"forecast\""),
            std::string::npos);
  EXPECT_EQ(words(1, true, false).find("policy"), std::string::npos);
  EXPECT_NE(words(1, true, false).find("recompute"), std::string::npos);
  EXPECT_EQ(words(1, true, true).find("recompute"), std::string::npos);
}

// 60 ms of copies beside 40 ms of compute are not "in time", however timed.
TEST(SlowdownWatch, WordsDoNotContradictTheFigures) {
  SlowdownWatch watch(0);
  Case slow;
  slow.step.transfer_ns = 60.0 * kMs;
  slow.figures.bound_ns = 60 * kMs;
  warm_up(watch, slow);
  const auto late = third(watch, slow);
  EXPECT_EQ(late->cause, SlowdownCause::kLate);
  EXPECT_NE(late->message.find("takes 60 ms at least. The link was idle for "
                               "much of it, and copies came late; what helps"),
            std::string::npos)
      << late->message;
  slow.figures.forecast_misses = 10;
  const auto unforeseen = watch.look(slow.step);
  ASSERT_TRUE(unforeseen);
  EXPECT_NE(unforeseen->message.find("10 of its 100 ops were not those of "
                                     "earlier steps"),
            std::string::npos)
      << unforeseen->message;
}

// The plan is made in the background, and steps may be short.
TEST(SlowdownWatch, NothingIsSaidBeforeThePlanIsReady) {
  SlowdownWatch watch(0);
  watch.setLimit(1.5);
  Case slow;
  const PlanPtr plan = std::exchange(slow.figures.plan, nullptr);
  warm_up(watch, slow, SlowdownWatch::kWarmUpUnmarked - 1);
  slow.figures.plan = plan;
  EXPECT_TRUE(third(watch, slow));
}

TEST(SlowdownWatch, AStepThatCannotBePlannedIsToldOfInTheEnd) {
  SlowdownWatch watch(0);
  Case slow;
  slow.figures.plan = nullptr;
  warm_up(watch, slow, SlowdownWatch::kWarmUpUnmarked);
  EXPECT_TRUE(third(watch, slow));
}

TEST(SlowdownWatch, NoPlanIsAwaitedWhereNoneCanCome) {
  for (const bool plans_ahead : {true, false}) {
    SlowdownWatch watch(0);
    Case slow;
    slow.figures.plan = nullptr;
    slow.step.plans_ahead = plans_ahead;
    slow.figures.forecast_misses = plans_ahead ? 50 : 0;
    warm_up(watch, slow);
    EXPECT_TRUE(third(watch, slow));
  }
}

TEST(SlowdownWatch, HalfOfAStepIsNotSlow) {
  SlowdownWatch watch(0);
  Case half;
  half.figures.stall_ns = 50 * kMs;
  for (int i = 0; i < 20; ++i) EXPECT_FALSE(watch.look(half.step));
  Case more;
  more.figures.stall_ns = 50 * kMs + 1;
  EXPECT_TRUE(third(watch, more));
}

TEST(SlowdownWatch, AStepInBetweenCountsAnew) {
  SlowdownWatch watch(0);
  const Case slow;
  Case fast;
  fast.figures.stall_ns = 0;
  warm_up(watch, slow);
  for (int i = 0; i < 10; ++i) {
    EXPECT_FALSE(watch.look(slow.step));
    EXPECT_FALSE(watch.look(slow.step));
    EXPECT_FALSE(watch.look(fast.step));
  }
  EXPECT_TRUE(third(watch, slow));
}

TEST(SlowdownWatch, BeyondTheLimitEachTime) {
  SlowdownWatch watch(0);
  Case slow;
  watch.setLimit(2.5);
  warm_up(watch, slow);
  EXPECT_FALSE(third(watch, slow)->too_slow); // exactly the limit: a warning
  slow.figures.stall_ns += 1;
  for (int i = 0; i < 3; ++i) {
    const auto report = third(watch, slow);
    ASSERT_TRUE(report);
    EXPECT_TRUE(report->too_slow);
    EXPECT_NE(report->message.find("max_slowdown is 2.5"), std::string::npos);
  }
  watch.setLimit(std::nullopt);
  for (int i = 0; i < 20; ++i) EXPECT_FALSE(watch.look(slow.step));
}

TEST(SlowdownWatch, ALimitBelowTheThreshold) {
  SlowdownWatch watch(0);
  Case little;
  little.figures.stall_ns = 20 * kMs; // 1.25 times
  watch.setLimit(1.2);
  warm_up(watch, little);
  EXPECT_TRUE(third(watch, little)->too_slow);
}

TEST(SlowdownWatch, RestartWarmsUpAgain) {
  SlowdownWatch watch(0);
  const Case slow;
  warm_up(watch, slow);
  EXPECT_FALSE(watch.look(slow.step));
  EXPECT_FALSE(watch.look(slow.step));
  watch.restart();
  warm_up(watch, slow);
  EXPECT_TRUE(third(watch, slow));
}

// A hundred layers may pass for steps before the first step has ended.
TEST(SlowdownWatch, StepsWithoutMarksWarmUpForLonger) {
  SlowdownWatch watch(0);
  Case slow;
  slow.step.marked = false;
  warm_up(watch, slow, SlowdownWatch::kWarmUpUnmarked);
  EXPECT_TRUE(third(watch, slow));
}

TEST(SlowdownWatch, WhereStepsAreMarkedOthersAreNone) {
  SlowdownWatch watch(0);
  Case slow;
  Case part;
  part.step.marked = false;
  part.figures.stall_ns = 0;
  for (int i = 0; i < 99; ++i) EXPECT_FALSE(watch.look(part.step));
  warm_up(watch, slow); // none has been seen
  EXPECT_FALSE(watch.look(slow.step));
  EXPECT_FALSE(watch.look(part.step));
  EXPECT_FALSE(watch.look(slow.step));
  EXPECT_FALSE(watch.look(part.step));
  EXPECT_TRUE(watch.look(slow.step));
}

TEST(SlowdownWatch, NothingButWaiting) {
  SlowdownWatch watch(0);
  Case all;
  all.figures.stall_ns = all.figures.duration_ns;
  watch.setLimit(1e6);
  warm_up(watch, all);
  EXPECT_TRUE(third(watch, all)->too_slow);
  all.figures.duration_ns = 0; // no time at all: not a step
  for (int i = 0; i < 5; ++i) EXPECT_FALSE(watch.look(all.step));
}

} // namespace
} // namespace chameleon::memory
