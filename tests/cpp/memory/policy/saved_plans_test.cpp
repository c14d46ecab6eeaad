// Plans that one run saves and the next one loads: they are followed where they
// fit, and nowhere else.
#include "memory/policy/saved_plans.h"

#include <gtest/gtest.h>
#include <string>
#include <utility>

#include "memory/policy/planning_thread.h"
#include "profiler/forecast.h"
#include "tests/cpp/memory/policy/miniature_training.h"

namespace chameleon::memory {
namespace {

constexpr std::size_t kLayers = 40;
constexpr std::size_t kBudget = 32 * kBytes;

// Four steps of a training, and plans for them at once.
class Program {
 public:
  explicit Program(std::size_t layers = kLayers)
      : training_(*device_.pager, layers) {
    for (int step = 0; step < 4; ++step) training_.step();
    path_ = profiler::Forecast(profiler_).position().path;
  }

  PathPlanPtr plan(std::size_t budget_bytes = kBudget) {
    return planning.plan({path_, budget_bytes}).value();
  }
  // Steps follow what plan() says until nothing else is tried.
  void settle() {
    for (int step = 0; step < 100; ++step) {
      planning.stepEnded(plan()->plan.get(), 1'000'000'000);
    }
  }

 private:
  Device device_{"lru", kBudget};
  Training training_;
  profiler::Profiler& profiler_ = device_.pager->profiler();
  profiler::Durations durations_;
  profiler::PathId path_ = 0;

 public:
  SavedPlans saved;
  PlanningThread planning{
      profiler_,           durations_, LinkEstimate(durations_, {}), [] {},
      /*at_once=*/true,
      /*recompute=*/false, &saved};
};

// What a run that has settled saves.
std::string settled_text() {
  Program run;
  run.settle();
  SavedPlans plans;
  run.planning.save(plans);
  EXPECT_EQ(plans.size(), 1U);
  return plans.text();
}

SavedPlan a_plan() {
  SavedPlan saved;
  saved.signature = 7;
  saved.budget_bytes = 1000;
  saved.is_settled = true;
  saved.plan.action_end = {1, 2};
  saved.plan.actions = {Action(Action::Kind::kEvict, 0),
                        Action(Action::Kind::kFetch, 0, true)};
  saved.plan.modelled.duration_ns = 50;
  return saved;
}

profiler::Cycle two_ops() {
  profiler::Cycle cycle;
  const ValueIndex value = cycle.addValue(512);
  for (int op = 0; op < 2; ++op) {
    cycle.addOp(10);
    cycle.addOperand(value, profiler::Operand::kReads);
  }
  return cycle;
}

TEST(SavedPlans, TheNextRunBeginsWhereTheLastOneSettled) {
  Program first;
  const PathPlanPtr once = first.plan();
  first.settle();
  const PathPlanPtr settled = first.plan();
  SavedPlans plans;
  first.planning.save(plans);

  Program second;
  ASSERT_EQ(second.saved.addText(plans.text()).value(), 1U);
  const PathPlanPtr taken = second.plan();
  EXPECT_EQ(taken->plan->actions, settled->plan->actions);
  EXPECT_EQ(taken->headroom_level, settled->headroom_level);
  EXPECT_NE(taken->headroom_level, once->headroom_level);
  EXPECT_FALSE(second.planning.isTrying(taken->key));
  second.settle();
  EXPECT_EQ(second.plan(), taken);
  EXPECT_EQ(second.planning.plansMade(), 1U);
}

TEST(SavedPlans, AnotherStepOrBudgetIsPlannedAsEver) {
  const std::string text = settled_text();
  Program wider(kLayers + 1);
  Program richer;
  for (Program* run : {&wider, &richer}) {
    ASSERT_TRUE(run->saved.addText(text).ok());
  }
  EXPECT_EQ(wider.plan()->headroom_level, HeadroomTrial::kOnce);
  EXPECT_EQ(richer.plan(kBudget + kBytes)->headroom_level,
            HeadroomTrial::kOnce);
  EXPECT_EQ(wider.saved.size(), 1U);
  EXPECT_EQ(richer.saved.size(), 1U);
}

TEST(SavedPlans, WhatWasWalkedOnceIsNotSaved) {
  Program run;
  (void)run.plan();
  SavedPlans plans;
  run.planning.save(plans);
  EXPECT_EQ(plans.size(), 0U);
}

TEST(SavedPlans, FitsByLinkAndByWhatMayRunAgain) {
  const profiler::Cycle cycle = two_ops();
  const LinkModel link;
  SavedPlans plans;
  SavedPlan dropping = a_plan();
  dropping.plan.recorded = {1};
  dropping.plan.modelled.duration_ns = 40;
  plans.add(a_plan());
  plans.add(dropping);
  EXPECT_FALSE(plans.take(8, cycle, 1000, link, true));
  EXPECT_FALSE(plans.take(7, cycle, 999, link, true));
  EXPECT_FALSE(plans.take(7, cycle, 1000, link.times(0.5), true));
  EXPECT_EQ(plans.size(), 2U);
  EXPECT_TRUE(plans.take(7, cycle, 1000, link, false)->plan.recorded.empty());
  EXPECT_FALSE(plans.take(7, cycle, 1000, link, false));
  EXPECT_EQ(plans.take(7, cycle, 1000, link, true)->plan.recorded.size(), 1U);
  EXPECT_EQ(plans.size(), 0U);
}

TEST(SavedPlans, NumbersOfOtherOpsOrValuesDoNotFit) {
  const auto taken = [](auto&& change) {
    SavedPlan saved = a_plan();
    change(saved.plan);
    SavedPlans plans;
    plans.add(std::move(saved));
    return plans.take(7, two_ops(), 1000, LinkModel(), true).has_value();
  };
  EXPECT_TRUE(taken([](Plan&) {}));
  EXPECT_FALSE(taken([](Plan& plan) { plan.action_end = {1, 2, 2}; }));
  EXPECT_FALSE(taken([](Plan& plan) { plan.action_end = {2, 1}; }));
  EXPECT_FALSE(taken([](Plan& plan) { plan.action_end = {1, 3}; }));
  EXPECT_FALSE(taken([](Plan& plan) { plan.recorded = {2}; }));
  EXPECT_FALSE(taken(
      [](Plan& plan) { plan.actions[1] = Action(Action::Kind::kFetch, 1); }));
}

TEST(SavedPlans, ATextIsReadAsItWasWritten) {
  SavedPlans plans;
  plans.add(a_plan());
  SavedPlan joint = a_plan();
  joint.budget_bytes = 2000;
  joint.plan.recorded = {0, 1};
  joint.assignment = {{1.5, 0}, {0, 1}};
  plans.add(joint);
  SavedPlans read;
  EXPECT_EQ(read.addText(plans.text()).value(), 2U);
  EXPECT_EQ(read.text(), plans.text());
  const auto taken = read.take(7, two_ops(), 2000, LinkModel(), true);
  EXPECT_EQ(taken->assignment, joint.assignment);
  EXPECT_EQ(taken->plan.actions, joint.plan.actions);
}

// Each byte damaged, each length cut: refused, and nothing is added.
TEST(SavedPlans, ADamagedTextIsRefused) {
  SavedPlans plans;
  plans.add(a_plan());
  const std::string text = plans.text();
  SavedPlans read;
  for (std::size_t i = 0; i < text.size(); ++i) {
    std::string damaged = text;
    damaged[i] = static_cast<char>(damaged[i] ^ 1);
    EXPECT_FALSE(read.addText(damaged).ok()) << i;
    EXPECT_FALSE(read.addText(text.substr(0, i)).ok()) << i;
  }
  EXPECT_FALSE(read.addText(text + "x").ok());
  EXPECT_FALSE(read.addText("").ok());
  EXPECT_EQ(read.size(), 0U);
}

} // namespace
} // namespace chameleon::memory
