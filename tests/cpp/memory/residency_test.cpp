// Where blocks are, one method at a time.
#include "memory/residency.h"

#include <cstring>

#include "tests/cpp/memory/parts_fixture.h"

namespace chameleon::memory {
namespace {

using ResidencyTest = PartsTest;

TEST_F(ResidencyTest, ADirtyBlockLeavesWithItsBytesAndComesBack) {
  const PagerLock locked(*core);
  Block& block = *resident(locked, 8 * kKiB, 7);
  Shortage shortage;
  EXPECT_EQ(residency->evict(locked, block, shortage),
            Residency::Evicted::kDone);
  EXPECT_EQ(block.device, nullptr);
  EXPECT_NE(block.host, nullptr);
  EXPECT_EQ(core->counters.bytes_out.load(), std::int64_t{8 * kKiB});

  ASSERT_TRUE(fetch(locked, block));
  finish();
  EXPECT_EQ(block.state(), BlockState::kResident);
  EXPECT_TRUE(block.hasHostCopy());
  EXPECT_EQ(block.device_address[8 * kKiB - 1], std::byte{7});
}

TEST_F(ResidencyTest, ACleanBlockLeavesWithoutACopy) {
  const PagerLock locked(*core);
  Block& block = *resident(locked, 8 * kKiB);
  residency->beginWriteBack(locked, block);
  Shortage shortage;
  EXPECT_TRUE(residency->copyOut(locked, shortage));
  EXPECT_EQ(block.state(), BlockState::kResident);
  EXPECT_EQ(residency->hostCopies(locked).bytes(), 8 * kKiB);

  EXPECT_EQ(residency->evict(locked, block, shortage),
            Residency::Evicted::kDone);
  EXPECT_EQ(core->counters.bytes_out.load(), std::int64_t{8 * kKiB});
  EXPECT_EQ(core->counters.clean_evictions.load(), 1);
  EXPECT_EQ(residency->hostCopies(locked).bytes(), 0U);
}

TEST_F(ResidencyTest, APinnedBlockIsNoVictimAndStays) {
  const PagerLock locked(*core);
  Block& block = *resident(locked, 8 * kKiB);
  block.word.fetch_add(1);
  Shortage shortage;
  EXPECT_FALSE(Residency::evictable(block));
  EXPECT_EQ(residency->evict(locked, block, shortage),
            Residency::Evicted::kBusy);
  EXPECT_NE(block.device, nullptr);
  block.word.fetch_sub(1);
}

TEST_F(ResidencyTest, OneBatchHasOnePosition) {
  const PagerLock locked(*core);
  Block& a = *resident(locked, 4 * kKiB);
  Block& b = *resident(locked, 4 * kKiB);
  Shortage shortage;
  for (Block* block : {&a, &b}) {
    EXPECT_EQ(
        residency->beginEvict(locked, *block, shortage, Decision::kVictim),
        Residency::Evicted::kDone);
  }
  EXPECT_EQ(residency->batch(locked).size(), 2U);
  EXPECT_TRUE(residency->copyOut(locked, shortage));
  EXPECT_TRUE(residency->batch(locked).empty());
  EXPECT_EQ(a.host_ready, b.host_ready);
}

TEST_F(ResidencyTest, CleanCopiesMakeWayOnTheHostTheOldestFirst) {
  open(8 * kKiB); // what two blocks take
  const PagerLock locked(*core);
  Block& old = *resident(locked, 4 * kKiB);
  Block& young = *resident(locked, 4 * kKiB);
  Shortage shortage;
  for (Block* block : {&old, &young}) {
    residency->beginWriteBack(locked, *block);
    EXPECT_TRUE(residency->copyOut(locked, shortage));
  }
  Block& third = *resident(locked, 4 * kKiB);
  EXPECT_EQ(residency->evict(locked, third, shortage),
            Residency::Evicted::kDone);
  EXPECT_FALSE(old.hasHostCopy());
  EXPECT_TRUE(young.hasHostCopy());
}

TEST_F(ResidencyTest, AMoveTakesTheBytesAlongAndIsWaitedFor) {
  const PagerLock locked(*core);
  Block& first = *resident(locked, 8 * kKiB, 1);
  Block& second = *resident(locked, 8 * kKiB, 2);
  const std::byte* const hole = first.device_address;
  table->destroy(locked, first);
  Shortage shortage;
  EXPECT_TRUE(residency->slide(locked, *second.device, 0, shortage));
  finish();
  EXPECT_EQ(second.device_address, hole);
  EXPECT_EQ(second.device_address[0], std::byte{2});
  EXPECT_EQ(Position{second.last_write.load()}.stream(), kMoves);
}

} // namespace
} // namespace chameleon::memory
