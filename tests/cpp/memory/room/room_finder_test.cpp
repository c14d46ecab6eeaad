// The ladder, one rung at a time.
#include "memory/room/room_finder.h"

#include "tests/cpp/memory/parts_fixture.h"

namespace chameleon::memory {
namespace {

class RoomFinderTest : public PartsTest {
 protected:
  Extent* place(const Locked& locked, std::size_t bytes,
                std::uint64_t needed_at = 0) {
    return room->place(
        locked,
        {bytes, End::kBottom, ExtentUse::kInCall, kFirstCompute, needed_at},
        shortage);
  }
  void giveBack(Extent* extent) { core->arena->free(extent, {}); }

  Shortage shortage;
};

TEST_F(RoomFinderTest, AHoleIsTakenAsItIs) {
  const PagerLock locked(*core);
  Extent* const extent = place(locked, kBudget);
  ASSERT_NE(extent, nullptr);
  EXPECT_EQ(core->counters.evictions.load(), 0);
  EXPECT_EQ(resort.noted, 1);
  giveBack(extent);
}

TEST_F(RoomFinderTest, MoreThanTheBudgetIsRefusedAtOnce) {
  const PagerLock locked(*core);
  (void)resident(locked, 8 * kKiB);
  EXPECT_EQ(place(locked, kBudget + ExtentMap::kAlignment), nullptr);
  EXPECT_EQ(core->counters.evictions.load(), 0);
}

TEST_F(RoomFinderTest, SpareBlocksGoBeforeAnythingIsEvicted) {
  const PagerLock locked(*core);
  Block& alive = *resident(locked, kBudget - 2 * kKiB);
  Block& dead = *resident(locked, 2 * kKiB);
  table->release(dead);
  EXPECT_EQ(table->spareBytes(), 2 * kKiB);
  Extent* const extent = place(locked, 2 * kKiB);
  ASSERT_NE(extent, nullptr);
  EXPECT_EQ(table->spareBytes(), 0U);
  EXPECT_EQ(alive.state(), BlockState::kResident);
  giveBack(extent);
}

TEST_F(RoomFinderTest, PiecesBecomeOneByAMove) {
  const PagerLock locked(*core);
  Block* blocks[4];
  for (Block*& block : blocks) block = resident(locked, kBudget / 4);
  table->destroy(locked, *blocks[0]);
  table->destroy(locked, *blocks[2]);
  Extent* const extent = place(locked, kBudget / 2);
  ASSERT_NE(extent, nullptr);
  EXPECT_EQ(core->counters.evictions.load(), 0);
  EXPECT_EQ(core->counters.compactions.load(), 1);
  giveBack(extent);
}

TEST_F(RoomFinderTest, VictimsLeaveUntilEnoughIsFree) {
  const PagerLock locked(*core);
  Block* blocks[4];
  for (Block*& block : blocks) block = resident(locked, kBudget / 4);
  Extent* const extent = place(locked, kBudget / 2);
  ASSERT_NE(extent, nullptr);
  EXPECT_EQ(core->counters.evictions.load(), 2);
  giveBack(extent);
}

TEST_F(RoomFinderTest, WhereTheHostIsFullTheLastResortIsAsked) {
  open(4 * kKiB);
  const PagerLock locked(*core);
  Block* blocks[4];
  for (Block*& block : blocks) block = resident(locked, kBudget / 4);
  EXPECT_EQ(place(locked, kBudget / 2), nullptr);
  EXPECT_TRUE(shortage.host_full);
  ASSERT_EQ(resort.asked.size(), 1U);
  EXPECT_EQ(resort.asked[0], kBudget / 2);
  for (Block* block : blocks) EXPECT_EQ(block->state(), BlockState::kResident);
}

TEST_F(RoomFinderTest, WhatIsPinnedEndsARunUnlessItMayMove) {
  const PagerLock locked(*core);
  Block* blocks[4];
  for (Block*& block : blocks) block = resident(locked, kBudget / 4);
  blocks[1]->word.fetch_add(1);
  EXPECT_EQ(room->largestRun(locked, /*moving=*/false, SIZE_MAX), kBudget / 2);
  EXPECT_EQ(room->pinnedBytes(locked), kBudget / 4);
  blocks[1]->claims = 1; // by the call that begins
  EXPECT_EQ(room->largestRun(locked, /*moving=*/true, SIZE_MAX),
            kBudget / 4 * 3);
  blocks[1]->claims = 0;
  blocks[1]->word.fetch_sub(1);
}

} // namespace
} // namespace chameleon::memory
