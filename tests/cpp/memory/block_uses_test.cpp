#include "memory/block_uses.h"

#include <gtest/gtest.h>

#include "tests/cpp/memory/fake_runtime.h"

namespace chameleon::memory {
namespace {

class BlockUsesTest : public testing::Test {
 protected:
  // Work on the stream that lasts until the test runs it.
  Position work(std::size_t stream) {
    static std::byte bytes[2];
    const StreamIndex index = lines.indexOf(FakeRuntime::compute(stream));
    const runtime::Copy copy{bytes, bytes + 1, 1};
    EXPECT_FALSE(runtime.copy(lines.stream(index), {&copy, 1}));
    return lines.advance(index);
  }
  static std::size_t count(const Fence& fence) {
    std::size_t positions = 0;
    for (const Position position : fence.slots()) positions += !position.none();
    return positions;
  }

  FakeRuntime runtime;
  StreamPositions lines{runtime};
  BlockUses uses{lines};
  Block block;
};

TEST_F(BlockUsesTest, OneStreamIsOnePosition) {
  uses.stamp(block, work(0));
  const Position last = work(0);
  uses.stamp(block, last);
  EXPECT_EQ(count(uses.usesOf(block)), 1U);
  EXPECT_EQ(uses.usesOf(block).slots()[0], last);
}

TEST_F(BlockUsesTest, AnEarlierPositionOfAStreamChangesNothing) {
  const Position early = work(0);
  const Position late = work(0);
  uses.stamp(block, late);
  uses.stamp(block, early);
  EXPECT_EQ(uses.usesOf(block).slots()[0], late);
}

TEST_F(BlockUsesTest, AFourthStreamIsJoinedWithAnother) {
  for (std::size_t stream = 0; stream < 4; ++stream) {
    uses.stamp(block, work(stream));
  }
  bool joined = false;
  for (const auto& use : block.last_use) {
    joined = joined || Position{use.load()}.stream() == kCopyOut;
  }
  EXPECT_TRUE(joined);
}

TEST_F(BlockUsesTest, InOrderIsWhatTheStreamRunsBehindAnyway) {
  const Position position = work(0);
  uses.stamp(block, position);
  EXPECT_TRUE(uses.usesInOrder(block, position.stream()));
  const StreamIndex other = lines.indexOf(FakeRuntime::compute(1));
  EXPECT_FALSE(uses.usesInOrder(block, other));
  EXPECT_FALSE(lines.wait(other, position));
  EXPECT_TRUE(uses.usesInOrder(block, other));
}

TEST_F(BlockUsesTest, JoinIsOnePositionBehindAll) {
  Fence fence;
  uses.addTo(fence, work(0));
  EXPECT_EQ(uses.join(fence), fence.slots()[0]);
  uses.addTo(fence, work(1));
  EXPECT_EQ(uses.join(fence).stream(), kCopyOut);
}

} // namespace
} // namespace chameleon::memory
