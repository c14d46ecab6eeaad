// The walker finds what it is there to find.
#include "memory/invariants.h"

#include "tests/cpp/memory/pager_fixture.h"

namespace chameleon::memory {
namespace {

class InvariantsTest : public PagerTest {
 protected:
  void SetUp() override {
    GTEST_FLAG_SET(death_test_style, "threadsafe"); // copy engines run
    open(kMiB);
    block = filled(64 * kKiB, 1);
    clean = filled(64 * kKiB, 2);
    EXPECT_FALSE(failed(pager->evict(*clean)));
    EXPECT_FALSE(failed(expect(clean, 2)));
    check();
  }
  Block* block = nullptr;
  Block* clean = nullptr;
};

TEST_F(InvariantsTest, DeviceExtentInTheWrongState) {
  EXPECT_DEATH(
      {
        block->word = Block::stateBits(BlockState::kUnbacked);
        check(2);
      },
      "B1");
}

TEST_F(InvariantsTest, HostCopyThatIsNotThere) {
  EXPECT_DEATH(
      {
        block->word |= Block::kHostCopyBit;
        check(2);
      },
      "B2");
}

TEST_F(InvariantsTest, PinThatWasNotCommitted) {
  EXPECT_DEATH(
      {
        block->word += 1;
        check(2);
      },
      "committed bytes");
}

TEST_F(InvariantsTest, WrongAddress) {
  EXPECT_DEATH(
      {
        block->device_address += 512;
        check(2);
      },
      "B4");
}

TEST_F(InvariantsTest, HalfDoneBegin) {
  EXPECT_DEATH(
      {
        block->claims = 1;
        check(2);
      },
      "half done");
}

TEST_F(InvariantsTest, CopyThatIsNotClean) {
  EXPECT_DEATH(
      {
        clean->device_address[100] ^= std::byte{1};
        check(3);
      },
      "clean host copy differs");
  check(3);
}

TEST_F(InvariantsTest, WalkedAfterEveryThirdCall) {
  Block* const other = filled(64 * kKiB, 3);
  pager->invariants().checkEvery(3);
  EXPECT_FALSE(failed(expect(block, 1))); // walks
  other->claims = 1;
  EXPECT_FALSE(failed(expect(block, 1)));
  EXPECT_FALSE(failed(expect(block, 1)));
  EXPECT_DEATH((void)failed(expect(block, 1)), "half done");
  other->claims = 0;
}

TEST_F(InvariantsTest, OperandsAreLookedAtBeforeTheyAreUsed) {
  pager->invariants().checkEvery(1000);
  EXPECT_DEATH(
      {
        block->device_address += 512;
        (void)failed(expect(block, 1));
      },
      "an operand is not where its extent is");
}

TEST_F(InvariantsTest, LevelOneIsCheapAndSeesCountersOnly) {
  block->claims = 1;
  check(1);
  block->claims = 0;
}

} // namespace
} // namespace chameleon::memory
