// In which order blocks are given up where no plan says which.
#include "memory/policy/victim_order.h"

#include <gtest/gtest.h>
#include <vector>

#include "tests/cpp/memory/read_loop.h"

namespace chameleon::memory {
namespace {

constexpr std::size_t kOps = 128;

bool any(const Block&) { return true; }

class VictimOrderTest : public ::testing::Test {
 protected:
  VictimOrderTest() {
    for (Block& block : run.blocks) order.add(block);
  }
  // Which block it is: the op that reads it.
  static std::size_t number(const Block& block) { return block.identity - 1; }
  // The first so many, and they are gone.
  std::vector<std::size_t> take(std::size_t count, bool reruns = false) {
    std::vector<std::size_t> taken;
    for (; count > 0; --count) {
      const VictimOrder::Victim* const found =
          order.find(any, {}, small_bytes, reruns);
      if (found == nullptr) break;
      taken.push_back(number(order.take(*found)));
    }
    return taken;
  }
  using Numbers = std::vector<std::size_t>;

  ReadLoop run{kOps};
  VictimOrder order{run.profiler};
  std::uint64_t small_bytes = 0;
};

TEST_F(VictimOrderTest, OffAllPathsTheLongestUnusedGoesFirst) {
  for (std::size_t i = 0; i < kOps; ++i) run.blocks[i].last_use_tick = 2 * i;
  run.blocks[1].last_use_tick = 5; // behind 2
  EXPECT_EQ(take(4), (Numbers{0, 2, 1, 3}));
  EXPECT_EQ(order.size(), kOps - 4);
}

// At op 10 of 128, with what comes in the next 64 ops near.
TEST_F(VictimOrderTest, OnAPathWhatIsFarAwayGoesBeforeWhatIsNear) {
  run.runTo(10);
  Numbers expected;
  for (std::size_t i = 10 + kOps / 2 + 1; i < kOps; ++i) expected.push_back(i);
  for (std::size_t i = 0; i < 10; ++i) expected.push_back(i); // far, used last
  for (std::size_t i = 10 + kOps / 2; i >= 10; --i) expected.push_back(i);
  EXPECT_EQ(take(kOps), expected);
  EXPECT_EQ(take(1), Numbers{});
}

TEST_F(VictimOrderTest, ACleanOneCountsAsFartherAway) {
  run.runTo(10);
  for (std::size_t i = 11 + kOps / 2; i < kOps; ++i)
    order.remove(run.blocks[i]);
  for (std::size_t i = 0; i < 10; ++i) order.remove(run.blocks[i]);
  run.blocks[10 + 40].word |= Block::kHostCopyBit; // 40 ops away
  run.blocks[10 + 8].word |= Block::kHostCopyBit;
  EXPECT_EQ(take(3), (Numbers{10 + 40, 10 + kOps / 2, 10 + kOps / 2 - 1}));
}

TEST_F(VictimOrderTest, SmallOnesGoLast) {
  small_bytes = ReadLoop::kBytes / 2;
  for (std::size_t i = 0; i < kOps; ++i) run.blocks[i].last_use_tick = i;
  run.blocks[0].rounded_bytes = small_bytes;
  EXPECT_EQ(take(1), Numbers{1});
  const Numbers others = take(kOps);
  EXPECT_EQ(others.back(), 0U);
}

TEST_F(VictimOrderTest, WhatWasUsedSinceIsNoVictimUntilTheNextOrder) {
  for (std::size_t i = 0; i < kOps; ++i) run.blocks[i].last_use_tick = i;
  EXPECT_EQ(take(1), Numbers{0});
  run.blocks[1].last_use_tick = 2 * kOps;
  EXPECT_EQ(take(1), Numbers{2});
  const Numbers others = take(kOps); // put in order anew where none is left
  EXPECT_EQ(others.size(), kOps - 2);
  EXPECT_EQ(others.back(), 1U);
}

TEST_F(VictimOrderTest, ABlockThatWasBornAgainIsAnother) {
  for (std::size_t i = 0; i < kOps; ++i) run.blocks[i].last_use_tick = i;
  EXPECT_EQ(take(1), Numbers{0});
  run.blocks[1].identity = 1000;
  EXPECT_EQ(take(1), Numbers{2});
}

TEST_F(VictimOrderTest, NoneThatIsNeededSooner) {
  run.runTo(10);
  for (std::size_t i = 0; i < kOps; ++i) {
    if (i < 10 || i > 10 + 5) order.remove(run.blocks[i]);
  }
  const std::uint64_t now = run.profiler.opCount();
  const auto find = [&](std::uint64_t needed_at) {
    return order.find(any, {.needed_at = needed_at}, small_bytes, false);
  };
  EXPECT_EQ(find(now + 5), nullptr);
  const VictimOrder::Victim* const found = find(now + 4);
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(number(*found->block), 10U + 5);
  EXPECT_EQ(found->next_use, now + 5);
}

// Its tensor is dead; an op that runs again reads it before the cycle ends.
TEST_F(VictimOrderTest, WhatRerunsReadCountsAsUsedInWhatIsLeftOfTheCycle) {
  run.runTo(kOps / 2);
  Block& held = run.blocks[0];
  run.profiler.freed(held.profiler_slot, run.profiler.opCount());
  held.profiler_slot = profiler::kNoSlot;
  for (std::size_t i = 1; i < kOps / 2; ++i) order.remove(run.blocks[i]);
  // In 64 / 2 ops, as 96, which was used longer ago.
  Numbers expected;
  for (std::size_t i = kOps - 1; i >= 96; --i) expected.push_back(i);
  expected.push_back(0);
  EXPECT_EQ(take(expected.size(), /*reruns=*/true), expected);
}

TEST_F(VictimOrderTest, WhoIsNotKnownIsIgnored) {
  order.remove(run.blocks[0]);
  order.remove(run.blocks[0]);
  EXPECT_EQ(order.size(), kOps - 1);
  order.add(run.blocks[0]);
  EXPECT_EQ(order.size(), kOps);
}

} // namespace
} // namespace chameleon::memory
