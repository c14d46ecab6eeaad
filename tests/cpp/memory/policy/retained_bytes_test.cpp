// What a plan keeps, moves and runs again, counted on hand-made plans.
#include "memory/policy/retained_bytes.h"

#include <cstdint>
#include <gtest/gtest.h>
#include <utility>
#include <vector>

#include "tests/cpp/memory/policy/residual_network.h"

namespace chameleon::memory {
namespace {

using profiler::Cycle;
using profiler::Operand;
using Kind = Action::Kind;
constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

// Two layers: the data 0; weight 1, values 2 to 4 and the stream 5 of the
// first, 6, 7 to 9 and 10 of the second. Backward needs all of them.
const Cycle kNetwork = residual_network(2);
constexpr std::uint64_t kCarried = (2 + 3 * 8 + 6 * 16) * kMiB;

Plan plan_of(std::vector<Action> actions, std::vector<std::uint32_t> recorded) {
  Plan plan;
  plan.actions = std::move(actions);
  plan.recorded = std::move(recorded);
  return plan;
}

TEST(PlanShares, AllIsKeptWithoutActions) {
  const RetainedBytes retained(kNetwork);
  const PlanShares shares = retained.under(plan_of({}, {}));
  EXPECT_EQ(shares.all, (ByteShares{kCarried, 0, 0, 0}));
  EXPECT_FALSE(shares.layers.empty());
}

TEST(PlanShares, EachByteCountsOnce) {
  const RetainedBytes retained(kNetwork);
  const PlanShares shares = retained.under(plan_of({{Kind::kWriteBack, 1},
                                                    {Kind::kEvict, 1},
                                                    {Kind::kWriteBack, 2},
                                                    {Kind::kEvict, 2},
                                                    {Kind::kDrop, 8},
                                                    {Kind::kDrop, 9},
                                                    {Kind::kFetch, 2},
                                                    {Kind::kFetch, 1}},
                                                   {6, 7}));
  EXPECT_EQ(shares.all,
            (ByteShares{kCarried - 49 * kMiB, 17 * kMiB, 32 * kMiB, 2}));
  // Layers have all but the weights; their ops follow each other.
  ByteShares sum;
  std::uint32_t op = shares.layers.front().first_op;
  for (const PlanShares::Layer& layer : shares.layers) {
    EXPECT_EQ(layer.first_op, op);
    op = layer.end_op;
    sum.kept_bytes += layer.shares.kept_bytes;
    sum.moved_bytes += layer.shares.moved_bytes;
    sum.rerun_bytes += layer.shares.rerun_bytes;
    sum.rerun_ops += layer.shares.rerun_ops;
    const bool made_2 = layer.first_op <= 1 && layer.end_op > 1;
    EXPECT_EQ(layer.shares.moved_bytes, made_2 ? 16 * kMiB : 0);
  }
  EXPECT_EQ(sum, (ByteShares{kCarried - 50 * kMiB, 16 * kMiB, 32 * kMiB, 2}));
}

// What forward makes and lets go is not retained; where it moves, it counts.
TEST(PlanShares, WhatIsNotNeededAgainCountsWhereItMoves) {
  Cycle cycle = kNetwork;
  const profiler::ValueIndex gone = cycle.addValue(kMiB);
  for (const bool creates : {true, false}) {
    cycle.addOp(1000);
    cycle.may_rerun.push_back(1);
    cycle.addOperand(gone, creates ? Operand::kCreates : Operand::kReads);
  }
  cycle.addFree(gone);
  ASSERT_EQ(cycle.problem(), "");
  const RetainedBytes retained(cycle);
  EXPECT_EQ(retained.under(plan_of({{Kind::kDrop, gone}}, {8})).all,
            (ByteShares{kCarried, 0, 0, 1}));
  EXPECT_EQ(retained.under(plan_of({{Kind::kFetch, gone}}, {})).all,
            (ByteShares{kCarried, kMiB, 0, 0}));
}

} // namespace
} // namespace chameleon::memory
