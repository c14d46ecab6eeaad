// The model against pencil and paper, and the link and the containers under it
// against the simplest code that does the same.
#include "memory/policy/plan/plan_model.h"

#include <algorithm>
#include <cstdint>
#include <gtest/gtest.h>
#include <queue>
#include <random>
#include <vector>

#include "memory/policy/plan/link_model.h"
#include "memory/policy/plan/range_sum.h"
#include "memory/policy/swapping/dary_heap.h"
#include "memory/policy/swapping/range_max.h"

namespace chameleon::memory {
namespace {

using profiler::Cycle;
using profiler::Operand;

// 1 byte per ns each way, 1.5 together, 10 ns a copy.
constexpr LinkModel kLink{1, 1, 1.5, 10};

TEST(DuplexLink, OneCopyAlone) {
  DuplexLink link(kLink);
  link.start(Lane::kIn, 100);
  EXPECT_EQ(link.untilChange(), 10);
  link.advance(10);
  EXPECT_EQ(link.untilChange(), 100);
  link.advance(100);
  EXPECT_FALSE(link.busy(Lane::kIn));
  EXPECT_EQ(link.untilChange(), DuplexLink::kNever);
}

TEST(DuplexLink, TwoCopiesShareTheJointLimit) {
  DuplexLink link(kLink);
  link.start(Lane::kIn, 100);
  link.advance(10);
  link.advance(20); // 80 left
  link.start(Lane::kOut, 30);
  link.advance(10); // latency leaves the link to the other: 70 left
  EXPECT_EQ(link.untilChange(), 40); // 30 bytes at 0.75 per ns
  link.advance(40);
  EXPECT_FALSE(link.busy(Lane::kOut));
  EXPECT_EQ(link.untilChange(), 40); // 70 - 30 at 1 per ns
}

TEST(DuplexLink, WhatOneLaneCannotUseGoesToTheOther) {
  DuplexLink link({0.5, 2, 2, 0});
  link.start(Lane::kIn, 100);
  link.start(Lane::kOut, 150);
  EXPECT_EQ(link.untilChange(), 100); // 150 at 2 - 0.5
}

// Weights A and B, of 100 bytes each, and a budget of 150:
//   op 0 (50 ns) reads A, op 1 (50 ns) reads and writes B.
Cycle two_weights() {
  Cycle cycle;
  cycle.addValue(100);
  cycle.addValue(100);
  cycle.addOp(50);
  cycle.addOperand(0, Operand::kReads);
  cycle.addOp(50);
  cycle.addOperand(1, Operand::kReads | Operand::kWrites);
  return cycle;
}

// Before op 0: B out, A in. Before op 1: A away, B in.
Plan one_at_a_time() {
  using enum Action::Kind;
  Plan plan;
  plan.budget_bytes = 150;
  plan.actions = {
      {kWriteBack, 1}, {kEvict, 1}, {kFetch, 0}, {kEvict, 0}, {kFetch, 1}};
  plan.action_end = {3, 5};
  return plan;
}

TEST(PlanModel, PencilAndPaper) {
  const Cycle cycle = two_weights();
  const UseTable table(cycle, 0);
  const ModelledStep step = model_plan(table, one_at_a_time(), kLink);
  // One after the other: op 1 50, copy out 110, copy in 110, op 0 50, copy in
  // 110. Only the room of A's release was there before: nothing overlaps.
  EXPECT_DOUBLE_EQ(step.duration_ns, 430);
  EXPECT_EQ(step.compute_ns, 100);
  EXPECT_EQ(step.stall_ns(), 330);
  EXPECT_EQ(step.bytes_in, 200U);
  EXPECT_EQ(step.bytes_out, 100U);
  EXPECT_EQ(step.copies, 3U);
}

TEST(PlanModel, AMirrorTakesTheTimeThatIsLeftOnTheWayOut) {
  const Cycle cycle = two_weights();
  const UseTable table(cycle, 0);
  const Plan plan = one_at_a_time();
  LinkModel link = kLink;
  link.mirrored_bytes = 330; // beside the plan's 100, in 430 ns
  ModelledStep step = model_plan(table, plan, link);
  EXPECT_DOUBLE_EQ(step.duration_ns, 430);
  EXPECT_EQ(step.mirror_ns, 0);
  link.mirrored_bytes = 350;
  add_mirror(step, link);
  EXPECT_DOUBLE_EQ(step.duration_ns, 450);
  EXPECT_DOUBLE_EQ(step.mirror_ns, 20);
  EXPECT_DOUBLE_EQ(model_plan(table, plan, link).duration_ns, 450);
  link.mirrored_bytes = 0;
  add_mirror(step, link);
  EXPECT_DOUBLE_EQ(step.duration_ns, 430);
  EXPECT_EQ(step.mirror_ns, 0);
}

TEST(PlanModel, RoomThatWasFreeIsTakenFirst) {
  Cycle cycle = two_weights();
  const UseTable table(cycle, 0);
  Plan plan;
  plan.budget_bytes = 250; // 50 more than both
  using enum Action::Kind;
  plan.actions = {{kEvict, 0}, {kFetch, 0}};
  plan.action_end = {0, 2}; // A leaves after op 0 and comes back during op 1
  const ModelledStep step = model_plan(table, plan, kLink);
  // The copy in takes the free 50 and 50 of A's own: it begins when op 0 ends
  // and takes 110; op 1 runs beside it.
  EXPECT_DOUBLE_EQ(step.duration_ns, 160);
}

TEST(PlanModel, ABatchCostsOneLatencyAndIsReadyAsAWhole) {
  Cycle cycle;
  for (int i = 0; i < 3; ++i) cycle.addValue(100);
  cycle.addOp(50);
  cycle.addOperand(0, Operand::kReads);
  cycle.addOp(50);
  cycle.addOperand(1, Operand::kReads);
  cycle.addOp(500);
  cycle.addOperand(2, Operand::kReads);
  const UseTable table(cycle, 0);
  using enum Action::Kind;
  for (const bool joined : {false, true}) {
    Plan plan;
    plan.budget_bytes = 300;
    plan.actions = {{kFetch, 0}, {kFetch, 1, joined}, {kEvict, 0}, {kEvict, 1}};
    plan.action_end = {2, 2, 4};
    const ModelledStep step = model_plan(table, plan, kLink);
    // Op 2 begins a step's copies: their room is that of ops 0 and 1, long
    // free; copies run beside op 2 (500), so only ops count.
    EXPECT_DOUBLE_EQ(step.duration_ns, 600) << joined;
    EXPECT_EQ(step.copies, joined ? 1U : 2U);
  }
}

TEST(DaryHeap, LikeTheLibrarys) {
  struct Entry {
    std::uint64_t key;
  };
  std::mt19937_64 random(1);
  DaryHeap<Entry> heap;
  std::priority_queue<std::uint64_t> model;
  for (int i = 0; i < 10000; ++i) {
    if (random() % 5 < 3 || model.empty()) {
      const std::uint64_t key = random() % 500;
      heap.push({key});
      model.push(key);
    } else {
      ASSERT_EQ(heap.top().key, model.top());
      heap.pop();
      model.pop();
    }
    ASSERT_EQ(heap.empty(), model.empty());
  }
}

TEST(RangeMax, LikeAnArray) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    std::mt19937_64 random(seed);
    const auto size = static_cast<std::int32_t>(random() % 40 + 1);
    std::vector<std::int64_t> numbers(static_cast<std::size_t>(size));
    for (std::int64_t& number : numbers) {
      number = static_cast<std::int64_t>(random() % 100);
    }
    RangeMax tree(numbers, 2);
    numbers.insert(numbers.end(), numbers.begin(), numbers.end());
    for (int i = 0; i < 200; ++i) {
      auto from = static_cast<std::int32_t>(random() % numbers.size());
      auto to = static_cast<std::int32_t>(random() % (numbers.size() + 1));
      const auto amount = static_cast<std::int64_t>(random() % 41) - 20;
      tree.add(from, to, amount);
      for (std::int32_t at = from; at < to; ++at) {
        numbers[static_cast<std::size_t>(at)] += amount;
      }
      from = static_cast<std::int32_t>(random() % numbers.size());
      to = static_cast<std::int32_t>(random() % (numbers.size() + 1));
      const auto limit = static_cast<std::int64_t>(random() % 120);
      std::int32_t expected = RangeMax::kNone;
      for (std::int32_t at = from; at < to; ++at) {
        if (numbers[static_cast<std::size_t>(at)] > limit) expected = at;
      }
      ASSERT_EQ(tree.lastAbove(from, to, limit), expected) << "seed " << seed;
    }
  }
}

TEST(RangeSum, GoesRoundTheEnd) {
  RangeSum sum(4);
  sum.add(1, 3, 10);
  sum.add(3, 6, 5);
  std::vector<std::int64_t> numbers{1, 1, 1, 1};
  sum.addTo(numbers);
  EXPECT_EQ(numbers, (std::vector<std::int64_t>{6, 16, 11, 6}));
}

} // namespace
} // namespace chameleon::memory
