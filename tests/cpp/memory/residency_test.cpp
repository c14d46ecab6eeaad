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
  EXPECT_NE(block.host.extent, nullptr);
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
  EXPECT_EQ(residency->host().copies(locked).bytes(), 8 * kKiB);

  EXPECT_EQ(residency->evict(locked, block, shortage),
            Residency::Evicted::kDone);
  EXPECT_EQ(core->counters.bytes_out.load(), std::int64_t{8 * kKiB});
  EXPECT_EQ(core->counters.clean_evictions.load(), 1);
  EXPECT_EQ(residency->host().copies(locked).bytes(), 0U);
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
  EXPECT_EQ(a.host.ready, b.host.ready);
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

// Blocks of 4 KiB on the host, every second one of which has gone.
class HostMovesTest : public PartsTest {
 protected:
  void holes(const Locked& locked, std::size_t kept_count) {
    std::vector<Block*> others;
    Shortage shortage;
    for (std::size_t i = 0; i < kept_count; ++i) {
      for (std::vector<Block*>* to : {&others, &kept}) {
        to->push_back(
            resident(locked, 4 * kKiB, static_cast<unsigned char>(i + 1)));
        ASSERT_EQ(residency->evict(locked, *to->back(), shortage),
                  Residency::Evicted::kDone);
      }
    }
    for (Block* block : others) table->destroy(locked, *block);
  }
  void onAwait() {
    early = std::move(runtime);
    runtime = support::make_test_runtime(
        runtime::parse_cpu_adversary("copies=on_await").value());
  }
  void expectKept(const Locked& locked) {
    for (std::size_t i = 0; i < kept.size(); ++i) {
      ASSERT_TRUE(kept[i]->device != nullptr || fetch(locked, *kept[i]));
    }
    finish();
    for (std::size_t i = 0; i < kept.size(); ++i) {
      EXPECT_EQ(kept[i]->device_address[0], static_cast<std::byte>(i + 1));
      EXPECT_EQ(kept[i]->device_address[4 * kKiB - 1],
                static_cast<std::byte>(i + 1));
    }
    core->host_pool->check();
  }

  std::unique_ptr<runtime::DeviceRuntime> early; // what SetUp() opened
  std::vector<Block*> kept;
};

TEST_F(HostMovesTest, HolesBecomeOneWithTheFewestBytesMoved) {
  open(24 * kKiB);
  const PagerLock locked(*core);
  holes(locked, 3);
  const std::byte* const first = kept[0]->host.address;
  const std::byte* const last = kept[2]->host.address;
  Block& large = *resident(locked, 8 * kKiB, 9);
  Shortage shortage;
  EXPECT_EQ(residency->evict(locked, large, shortage),
            Residency::Evicted::kDone);
  EXPECT_NE(kept[0]->host.address, first); // one of them does
  EXPECT_EQ(kept[1]->host.address, first + 8 * kKiB);
  EXPECT_EQ(kept[2]->host.address, last);
  expectKept(locked);
  ASSERT_TRUE(fetch(locked, large));
  finish();
  EXPECT_EQ(large.device_address[8 * kKiB - 1], std::byte{9});
}

TEST_F(HostMovesTest, WhereAHostThreadIsAtTheBytesNothingMoves) {
  open(16 * kKiB);
  const PagerLock locked(*core);
  holes(locked, 2); // the lowest and the third of four are holes
  Block& large = *resident(locked, 8 * kKiB, 9);
  const std::byte* const place = kept[0]->host.address;
  Shortage shortage;
  for (const bool writes : {false, true}) {
    kept[0]->host_writing = writes;
    kept[0]->host_pins = writes ? 0 : 1;
    EXPECT_EQ(residency->evict(locked, large, shortage),
              Residency::Evicted::kHostFull);
    EXPECT_FALSE(shortage.failure);
    EXPECT_TRUE(residency->host().packDown(locked));
    EXPECT_EQ(kept[0]->host.address, place);
    kept[0]->host_pins = 0;
    kept[0]->host_writing = false;
  }
  EXPECT_EQ(residency->evict(locked, large, shortage),
            Residency::Evicted::kDone);
  EXPECT_NE(kept[0]->host.address, place);
  expectKept(locked);
}

TEST_F(HostMovesTest, WhatMovesIsFilledFirst) {
  onAwait();
  open(16 * kKiB);
  const PagerLock locked(*core);
  holes(locked, 2); // no copy has begun
  EXPECT_TRUE(residency->host().packDown(locked));
  expectKept(locked);
}

TEST_F(HostMovesTest, WhatIsFetchedFromAPlaceIsThereBeforeItIsReused) {
  onAwait();
  open(24 * kKiB);
  const PagerLock locked(*core);
  Shortage shortage;
  Block& low = *resident(locked, 4 * kKiB);
  Block& high = *resident(locked, 8 * kKiB);
  std::memset(high.device_address + 4 * kKiB, 2, 4 * kKiB);
  for (Block* block : {&low, &high}) {
    EXPECT_EQ(residency->evict(locked, *block, shortage),
              Residency::Evicted::kDone);
  }
  finish();
  table->destroy(locked, low);
  ASSERT_TRUE(fetch(locked, high)); // it has not begun
  EXPECT_TRUE(residency->host().packDown(locked));
  finish();
  EXPECT_EQ(high.device_address[0], std::byte{0});
  EXPECT_EQ(high.device_address[8 * kKiB - 1], std::byte{2});
  EXPECT_EQ(high.host.address[0], std::byte{0});
  EXPECT_EQ(high.host.address[8 * kKiB - 1], std::byte{2});
}

TEST_F(HostMovesTest, MovesAcrossUnits) {
  open(4 * kBudget);
  const PagerLock locked(*core);
  Shortage shortage;
  std::vector<Block*> others;
  for (unsigned char i = 1; i <= 5; ++i) {
    for (std::vector<Block*>* to : {&others, &kept}) {
      to->push_back(resident(locked, 24 * kKiB, i));
      ASSERT_EQ(residency->evict(locked, *to->back(), shortage),
                Residency::Evicted::kDone);
      finish(); // the next block takes its place
    }
  }
  for (Block* block : others) table->destroy(locked, *block);
  EXPECT_TRUE(residency->host().packDown(locked));
  EXPECT_EQ(kept[4]->host.extent->offset, 4 * 24 * kKiB);
  for (Block* block : kept) {
    ASSERT_TRUE(fetch(locked, *block));
    finish();
    EXPECT_EQ(block->device_address[0], block->device_address[24 * kKiB - 1]);
    EXPECT_EQ(residency->evict(locked, *block, shortage),
              Residency::Evicted::kDone);
  }
  core->host_pool->check();
}

} // namespace
} // namespace chameleon::memory
