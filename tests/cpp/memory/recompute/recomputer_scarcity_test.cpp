// Blocks that are dropped and made again where memory is short: what goes
// first, what dead blocks hold, and budgets that an op would not fit into any
// more.
#include "tests/cpp/memory/recompute/rerun_fixture.h"

namespace chameleon::memory {
namespace {

using runtime::Error;
using runtime::ErrorCode;

constexpr std::size_t kBytes = 4 * kKiB;
constexpr Access R = Access::kRead;

// Blocks that the profiler knows to be dead, or not at all.
TEST_F(PagerRerunTest, HeldBlocksAreVictimsOfAnyPolicy) {
  for (const char* policy : {"lru", "forecast"}) {
    open(16 * kKiB, 64 * kKiB);
    ASSERT_FALSE(failed(pager->policy().set(policy)));
    recordAll();
    Handle x = leaf(kBytes, 1); // cannot be made again
    const Handle y = unary({x}, kBytes);
    Block* const held = x->block;
    x.reset();
    EXPECT_EQ(stats().held_bytes, 4096);
    std::vector<Handle> others;
    for (std::uint64_t i = 0; i < 4; ++i) others.push_back(leaf(kBytes, i));
    EXPECT_NE(held->state(), BlockState::kResident);
    ASSERT_TRUE(pager->recomputer().drop(*y->block));
    expectBytes(y);
    EXPECT_EQ(stats().held_bytes, 0);
  }
}

// Forward with all results kept, then backward: neither HBM nor the host has
// room for them.
TEST_F(PagerRerunTest, TheLastResortIsToDrop) {
  for (const bool recompute : {false, true}) {
    open(64 * kKiB, 16 * kKiB);
    ASSERT_FALSE(failed(pager->policy().setRecompute(recompute)));
    std::vector<Handle> chain{leaf(kBytes, 1)};
    Error error;
    for (std::uint64_t i = 0; i < 60 && !error; ++i) {
      const MixOp op{i, {R}, {kBytes}, {}};
      std::vector<Block*> results;
      error = call(op, {&chain.back()->block, 1}, results, /*rerun=*/false);
      if (error) break;
      chain.push_back(tensor(results[0], model(op, {&chain.back()->bytes})[0]));
      check(2);
    }
    if (!recompute) {
      EXPECT_EQ(error.code(), ErrorCode::kOutOfHostMemory);
      continue;
    }
    ASSERT_FALSE(failed(error));
    EXPECT_GT(stats().dropped_bytes, 30 * 4096);
    EXPECT_LE(stats().host_bytes, 16 * 1024);
    while (!chain.empty()) {
      expectBytes(chain.back());
      chain.pop_back();
      check(2);
    }
    EXPECT_EQ(alive, 0);
  }
}

// What the program freed and only records hold goes first.
TEST_F(PagerRerunTest, WhatIsHeldInVainGoesFirst) {
  open(32 * kKiB, 8 * kKiB);
  ASSERT_FALSE(failed(pager->policy().setRecompute(true)));
  recordAll();
  std::vector<Handle> made;
  for (std::uint64_t i = 0; i < 7; ++i) {
    made.push_back(unary({leaf(kBytes, i)}, 512));
  }
  EXPECT_EQ(stats().held_bytes, 7 * 4096);
  const Handle large = leaf(24 * kKiB, 50);
  EXPECT_LT(stats().held_bytes, 7 * 4096);
  EXPECT_EQ(stats().rerun_ops, 0);
  for (const Handle& each : made) expectBytes(each);
}

// A dead block that was dropped needs nothing for itself.
TEST_F(PagerRerunTest, WhatOnlyDeadBlocksNeedIsHeldInVain) {
  open(32 * kKiB, 8 * kKiB);
  ASSERT_FALSE(failed(pager->policy().setRecompute(true)));
  recordAll();
  std::vector<Handle> made;
  for (std::uint64_t i = 0; i < 7; ++i) {
    const Handle dropped = unary({leaf(kBytes, i)}, kBytes);
    made.push_back(unary({dropped}, 512));
  }
  EXPECT_EQ(stats().held_bytes, 7 * 2 * 4096);
  EXPECT_EQ(stats().dropped_bytes, 7 * 4096);
  const Handle large = leaf(24 * kKiB, 50);
  EXPECT_LE(stats().held_bytes, 3 * 2 * 4096);
  check();
  for (const Handle& each : made) expectBytes(each);
  EXPECT_EQ(stats().rerun_ops, 0);
}

TEST_F(PagerRerunTest, WritingAnOperandMakesNothingForTheDead) {
  const Handle x = leaf(kBytes, 1);
  Handle dropped = unary({x}, kBytes);
  const Handle y = unary({dropped}, kBytes);
  dropped.reset();
  EXPECT_EQ(stats().held_bytes, 4096);
  EXPECT_EQ(stats().dropped_bytes, 4096);
  inPlace({x});
  EXPECT_EQ(stats().rerun_ops, 0);
  EXPECT_EQ(stats().held_bytes, 0);
  EXPECT_FALSE(pager->recomputer().drop(*y->block)); // not any more
  check();
  expectBytes(x);
  expectBytes(y);
}

// It is made if something that lives comes of it, however far on.
TEST_F(PagerRerunTest, WritingAnOperandMakesWhatTheLivingNeed) {
  const Handle x = leaf(kBytes, 1);
  Handle first = unary({x}, kBytes);
  Handle second = unary({first}, kBytes);
  const Handle y = unary({second}, kBytes);
  first.reset();
  second.reset();
  ASSERT_TRUE(pager->recomputer().drop(*y->block));
  inPlace({x});
  EXPECT_EQ(stats().rerun_ops, 1); // the rest can be made from that one
  check();
  expectBytes(x);
  expectBytes(y);
  EXPECT_EQ(stats().rerun_ops, 3);
}

// ---- a budget that an op would not fit into any more ------------------------

class PagerRerunBudgetTest : public PagerRerunTest {
 protected:
  void TearDown() override {
    large.reset();
    small.reset();
    PagerRerunTest::TearDown();
  }
  // 84 KiB in all, for a result of 4.
  void make() {
    std::vector<Handle> operands;
    for (int i = 0; i < 5; ++i) operands.push_back(leaf(16 * kKiB, i));
    large = unary(operands, kBytes);
    small = unary({operands[0]}, kBytes); // 20 KiB
  }
  Handle large;
  Handle small;
};

TEST_F(PagerRerunBudgetTest, WhatWouldNotFitIsMadeFirst) {
  make();
  ASSERT_TRUE(pager->recomputer().drop(*large->block));
  ASSERT_TRUE(pager->recomputer().drop(*small->block));
  ASSERT_FALSE(failed(pager->budgets().setHbmBudget(84 * kKiB)));
  EXPECT_TRUE(isDropped(large));
  ASSERT_FALSE(failed(pager->budgets().setHbmBudget(32 * kKiB)));
  EXPECT_FALSE(isDropped(large));
  EXPECT_TRUE(isDropped(small));
  expectBytes(large);
  expectBytes(small);
}

TEST_F(PagerRerunBudgetTest, WhatDoesNotFitIsNotDropped) {
  make();
  ASSERT_FALSE(failed(pager->budgets().setHbmBudget(32 * kKiB)));
  EXPECT_FALSE(pager->recomputer().drop(*large->block));
  EXPECT_TRUE(pager->recomputer().drop(*small->block));
  expectBytes(large);
  expectBytes(small);
}

TEST_F(PagerRerunBudgetTest, IsRefusedWhereItCannotBeMade) {
  make();
  ASSERT_TRUE(pager->recomputer().drop(*large->block));
  before_rerun = [] { return Error(ErrorCode::kOutOfDeviceMemory, "no"); };
  const Error error = pager->budgets().setHbmBudget(32 * kKiB);
  ASSERT_TRUE(failed(error));
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(pager->budgets().limits().hbm_budget_bytes, kMiB);
  EXPECT_TRUE(isDropped(large));
  before_rerun = nullptr;
  expectBytes(large);
  expectBytes(small);
}

} // namespace
} // namespace chameleon::memory
