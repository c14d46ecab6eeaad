#include "memory/space/freed_room.h"

#include <gtest/gtest.h>
#include <utility>
#include <vector>

#include "memory/streams/stream_positions.h"
#include "tests/cpp/memory/fake_runtime.h"

namespace chameleon::memory {
namespace {

class FreedRoomTest : public ::testing::Test {
 protected:
  static Fence after(Position position) {
    Fence fence;
    fence.add(position);
    return fence;
  }

  FakeRuntime runtime_;
  StreamPositions streams_{runtime_};
  StreamIndex compute_ = streams_.indexOf(FakeRuntime::compute(0));
  FreedRoom room_{streams_};
};

TEST_F(FreedRoomTest, PartsKeepTheirOwnFences) {
  const Position early = streams_.advance(kCopyOut);
  const Position late = streams_.advance(compute_);
  room_.add(0, 1024, after(early));
  room_.add(1024, 512, after(late));
  Fence fence;
  room_.take(512, 512, fence);
  EXPECT_EQ(fence.slots()[0], early);
  EXPECT_TRUE(fence.slots()[1].none());
  EXPECT_EQ(room_.size(), 2U); // [0, 512) and [1024, 1536)
  Fence both;
  room_.take(0, 2048, both);
  EXPECT_EQ(both.slots()[0], early);
  EXPECT_EQ(both.slots()[1], late);
  EXPECT_EQ(room_.size(), 0U);
}

TEST_F(FreedRoomTest, TakingTheMiddleLeavesBothSides) {
  const Position position = streams_.advance(kCopyOut);
  room_.add(0, 2048, after(position));
  Fence fence;
  room_.take(512, 512, fence);
  std::vector<std::pair<std::size_t, std::size_t>> left;
  room_.visit(0, 4096, [&](std::size_t offset, std::size_t bytes) {
    left.emplace_back(offset, bytes);
    return true;
  });
  EXPECT_EQ(left, (std::vector<std::pair<std::size_t, std::size_t>>{
                      {0, 512}, {1024, 1024}}));
}

TEST_F(FreedRoomTest, AgeIsTheOrderOfTheFreesAndOnlyForOtherStreams) {
  room_.add(0, 512, after(streams_.advance(kCopyOut)));
  room_.add(512, 512, after(streams_.advance(compute_)));
  EXPECT_EQ(room_.youngest(0, 1024, compute_), 1U);
  EXPECT_EQ(room_.youngest(0, 1024, kCopyIn), 2U);
  EXPECT_EQ(room_.youngest(512, 512, compute_), 0U); // in its own order
  EXPECT_EQ(room_.youngest(1024, 512, kCopyIn), 0U); // nobody uses it
}

TEST_F(FreedRoomTest, WithoutEarlierWorkThereIsNothingToKeep) {
  room_.add(0, 512, {});
  EXPECT_EQ(room_.size(), 0U);
}

TEST_F(FreedRoomTest, OfVeryManyThoseThatTouchBecomeOne) {
  std::vector<Position> positions;
  for (std::size_t i = 0; i <= FreedRoom::kManyPieces; ++i) {
    positions.push_back(streams_.advance(compute_));
    room_.add((i % 2 == 0 ? i : 2 * i + 10'000) * 512, 512,
              after(positions.back()));
  }
  EXPECT_GT(room_.size(), FreedRoom::kManyPieces / 2); // none of these touch
  for (std::size_t i = 1; i < 200; i += 2) {
    positions.push_back(streams_.advance(compute_));
    room_.add(i * 512, 512, after(positions.back()));
  }
  for (std::size_t i = 0; i < FreedRoom::kManyPieces; ++i) {
    room_.add((100'000 + i) * 512, 512, after(positions[i]));
  }
  EXPECT_LE(room_.size(), 2 * FreedRoom::kManyPieces);
  Fence fence;
  room_.take(0, 512, fence);
  // Later than the piece's own, or just that.
  EXPECT_GE(fence.slots()[0].word, positions[0].word);
  EXPECT_LE(fence.slots()[0].word, positions.back().word);
}

} // namespace
} // namespace chameleon::memory
