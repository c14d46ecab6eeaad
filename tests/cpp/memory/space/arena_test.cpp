#include "memory/space/arena.h"

#include <cstring>
#include <gtest/gtest.h>
#include <random>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>

#include "memory/block.h"
#include "tests/cpp/memory/fake_runtime.h"

namespace chameleon::memory {
namespace {

constexpr std::size_t kUnit = ExtentMap::kAlignment;
constexpr std::size_t kKiB = std::size_t{1} << 10;
constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::size_t kGranule = FakeRuntime::kGranularity;
constexpr auto kBlock = ExtentUse::kBlock;
constexpr auto kInCall = ExtentUse::kInCall;

bool has(const Fence& fence, Position position) {
  for (const Position& slot : fence.slots()) {
    if (slot == position) return true;
  }
  return false;
}

Fence fence_of(Position position) {
  Fence fence;
  fence.add(position);
  return fence;
}

class ArenaTest : public testing::Test {
 protected:
  // Builds an arena of its own for each case.
  Arena& make(std::size_t budget, std::size_t range = std::size_t{1} << 34) {
    auto result = Arena::create(runtime, lines, range, budget);
    if (!result.ok()) throw std::runtime_error(result.error().message());
    arena = std::move(*result);
    return *arena;
  }
  // Work on `stream` that lasts until the test runs it.
  Position work(StreamIndex stream) {
    static std::byte bytes[2];
    const runtime::Copy copy{bytes, bytes + 1, 1};
    EXPECT_FALSE(runtime.copy(lines.stream(stream), {&copy, 1}));
    return lines.advance(stream);
  }
  StreamIndex compute(std::size_t number) {
    return lines.indexOf(FakeRuntime::compute(number));
  }

  FakeRuntime runtime;
  StreamPositions lines{runtime};
  std::unique_ptr<Arena> arena;
};

TEST_F(ArenaTest, RoomIsTakenWhereTheLeastIsWaitedFor) {
  Arena& a = make(8 * kMiB);
  a.keepFreedApart();
  const auto block = [&] {
    return a.allocate(kMiB, End::kBottom, kBlock, kCopyIn);
  };
  std::vector<Extent*> extents;
  for (int i = 0; i < 8; ++i) extents.push_back(block());
  const StreamIndex stream = compute(0);
  const Position by_op = work(stream);
  const Position by_copy = work(kCopyOut);
  const Position later = work(kCopyOut);
  a.free(extents[2], fence_of(later));
  a.free(extents[3], fence_of(by_op)); // one hole, two fences
  a.free(extents[6], fence_of(by_copy));
  EXPECT_EQ(a.freeBytes(), 3 * kMiB);
  // The stream's own room costs no wait; a copy in takes the oldest.
  Extent* const for_op = a.allocate(kMiB, End::kTop, kInCall, stream);
  EXPECT_EQ(for_op->offset, 3 * kMiB);
  EXPECT_TRUE(has(for_op->fence, by_op));
  EXPECT_FALSE(has(for_op->fence, later));
  Extent* const for_copy = block();
  EXPECT_EQ(for_copy->offset, 2 * kMiB);
  EXPECT_FALSE(has(for_copy->fence, by_copy));
  a.check();
  EXPECT_EQ(block()->offset, 6 * kMiB);
  EXPECT_EQ(block(), nullptr);
}

TEST_F(ArenaTest, ASmallCopyInTakesTheOldestRoomToo) {
  Arena& a = make(64 * kMiB);
  a.keepFreedApart();
  Extent* const large = a.allocate(32 * kMiB, End::kBottom, kBlock, kCopyIn);
  Extent* const small = a.allocate(512, End::kBottom, kBlock, kCopyIn);
  ASSERT_NE(a.allocate(kMiB, End::kBottom, kBlock, kCopyIn), nullptr);
  const Position early = work(kCopyOut);
  const Position late = work(compute(0));
  a.free(large, fence_of(early));
  a.free(small, fence_of(late)); // one hole; the rest was never used
  EXPECT_EQ(a.allocate(512, End::kBottom, kBlock, kCopyIn)->offset,
            32 * kMiB + 512 + kMiB);
  ASSERT_NE(a.allocate(31 * kMiB - 1024, End::kTop, kBlock, kCopyIn), nullptr);
  Extent* const next = a.allocate(512, End::kBottom, kBlock, kCopyIn);
  EXPECT_TRUE(has(next->fence, early));
  EXPECT_FALSE(has(next->fence, late));
}

TEST_F(ArenaTest, ReservesAndCommitsNothing) {
  // Not more: ThreadSanitizer leaves about 1 TiB, at a random place.
  const std::size_t range = std::size_t{1} << 37;
  Arena& a = make(64 * kMiB, range);
  a.check();
  EXPECT_EQ(runtime.committed_bytes, 0u);
  EXPECT_EQ(a.range().mappedBytes(), 0u);
  EXPECT_EQ(a.budgetBytes(), 64 * kMiB);
  EXPECT_EQ(a.range().bytes(), range);
  EXPECT_EQ(a.usedBytes(), 0u);
  EXPECT_EQ(a.freeBytes(), 64 * kMiB);
  EXPECT_EQ(a.largestFree(), 64 * kMiB);
  Extent at{};
  const std::byte* base = a.address(at);
  EXPECT_TRUE(a.range().contains(base));
  EXPECT_TRUE(a.range().contains(base + range - 1));
  EXPECT_FALSE(a.range().contains(base - 1));
  EXPECT_FALSE(a.range().contains(base + range));
  EXPECT_FALSE(a.range().contains(nullptr));
}

TEST_F(ArenaTest, CreateFailsWithAReason) {
  auto result = Arena::create(runtime, lines, kMiB, 2 * kMiB);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code(), runtime::ErrorCode::kInvalidArgument);
  EXPECT_NE(result.error().message().find("hbm_budget"), std::string::npos);
  runtime.fail_after[FakeRuntime::kReserve] = 0;
  EXPECT_FALSE(Arena::create(runtime, lines, kMiB, kMiB).ok());
}

TEST_F(ArenaTest, CommitsLargeUnitsWithinTheBudget) {
  Arena& a = make(70 * kMiB + 100);
  Extent* low = a.allocate(1, End::kBottom, kBlock);
  EXPECT_EQ(a.range().mappedBytes(), 32 * kMiB);
  std::memset(a.address(*low), 1, low->bytes);
  Extent* wide = a.allocate(60 * kMiB, End::kBottom, kBlock);
  EXPECT_EQ(a.range().mappedBytes(), 64 * kMiB);
  std::memset(a.address(*wide), 1, wide->bytes);
  Extent* high = a.allocate(5 * kMiB, End::kTop, kInCall);
  EXPECT_EQ(high->offset + high->bytes, 70 * kMiB); // limit in whole 512
  EXPECT_EQ(a.range().mappedBytes(), 70 * kMiB + kGranule);
  EXPECT_EQ(runtime.commits, 3u);
  std::memset(a.address(*high), 1, high->bytes);
  a.check();
  EXPECT_EQ(a.usedBytes(), kUnit + 65 * kMiB);
  EXPECT_EQ(runtime.committed_bytes, a.range().mappedBytes());
}

TEST_F(ArenaTest, OpensNoMoreThanItNeeds) {
  Arena& a = make(100 * kMiB);
  EXPECT_EQ(a.openBytes(), 0u);
  Extent* block = a.allocate(20 * kMiB, End::kBottom, kBlock);
  Extent* in_call = a.allocate(8 * kMiB, End::kTop, kInCall);
  EXPECT_EQ(a.openBytes(), 32 * kMiB);
  EXPECT_EQ(in_call->offset, 24 * kMiB); // at the top of what is open
  // What is closed is free, too, and what is free below it a part of it.
  EXPECT_EQ(a.freeBytes(), 72 * kMiB);
  EXPECT_EQ(a.largestFree(), 68 * kMiB);
  a.free(in_call, {});
  EXPECT_EQ(a.largestFree(), 80 * kMiB);
  // A hole that is there is taken, and its bytes count where it is too small.
  in_call = a.allocate(12 * kMiB, End::kTop, kInCall);
  EXPECT_EQ(a.openBytes(), 32 * kMiB);
  a.free(in_call, {});
  in_call = a.allocate(44 * kMiB, End::kTop, kInCall);
  EXPECT_EQ(a.openBytes(), 64 * kMiB);
  EXPECT_EQ(a.allocate(37 * kMiB, End::kTop, kInCall), nullptr);
  EXPECT_EQ(a.openBytes(), 100 * kMiB); // nothing was kept from it
  EXPECT_EQ(a.largestFree(), 36 * kMiB);
  a.check();
  a.free(in_call, {});
  EXPECT_TRUE(a.setBudget(48 * kMiB)); // what is above it is closed again
  EXPECT_EQ(a.openBytes(), 48 * kMiB);
  EXPECT_TRUE(a.setBudget(100 * kMiB));
  EXPECT_EQ(a.openBytes(), 48 * kMiB);
  EXPECT_EQ(a.largestFree(), 80 * kMiB);
  a.free(block, {});
  EXPECT_EQ(a.largestFree(), 100 * kMiB);
  a.check();
}

TEST_F(ArenaTest, CountsByUseAndFindsInCallExtents) {
  Arena& a = make(kMiB);
  Extent* block = a.allocate(1000, End::kBottom, kBlock);
  Extent* call = a.allocate(2000, End::kTop, kInCall);
  Extent* other = a.allocate(3000, End::kTop, kInCall);
  a.check();
  EXPECT_EQ(a.blockBytes(), 1024u);
  EXPECT_EQ(a.inCallBytes(), 2048u + 3072u);
  EXPECT_EQ(a.find(a.address(*call)), call);
  EXPECT_EQ(a.find(a.address(*call) + 1), nullptr);
  EXPECT_EQ(a.find(a.address(*block)), nullptr);
  EXPECT_EQ(a.find(nullptr), nullptr);

  a.makeForeign(call);
  a.check();
  EXPECT_EQ(call->use, ExtentUse::kForeign);
  EXPECT_EQ(a.foreignBytes(), 2048u);
  EXPECT_EQ(a.find(a.address(*call)), call);

  Block owner;
  a.adopt(other, &owner);
  a.check();
  EXPECT_EQ(other->use, kBlock);
  EXPECT_EQ(other->block, &owner);
  EXPECT_EQ(a.blockBytes(), 1024u + 3072u);
  EXPECT_EQ(a.inCallBytes(), 0u);
  EXPECT_EQ(a.find(a.address(*other)), nullptr);

  const std::byte* address = a.address(*call);
  a.free(call, {});
  a.check();
  EXPECT_EQ(a.foreignBytes(), 0u);
  EXPECT_EQ(a.find(address), nullptr);
  a.free(other, {});
  a.free(block, {});
  a.check();
  EXPECT_EQ(a.usedBytes(), 0u);
}

TEST_F(ArenaTest, FullAndFailedCommitDiffer) {
  Arena& a = make(kMiB);
  runtime.fail_after[FakeRuntime::kCommit] = 0;
  EXPECT_EQ(a.allocate(kKiB, End::kBottom, kInCall), nullptr);
  EXPECT_FALSE(a.lastError().ok());
  a.check();
  EXPECT_EQ(a.usedBytes(), 0u);
  EXPECT_EQ(a.inCallBytes(), 0u);
  EXPECT_EQ(a.allocate(kMiB + 1, End::kBottom, kBlock), nullptr);
  EXPECT_TRUE(a.lastError().ok());
  EXPECT_EQ(a.allocate(~std::size_t{0}, End::kBottom, kBlock), nullptr);
  Extent* all = a.allocate(kMiB, End::kBottom, kBlock);
  ASSERT_NE(all, nullptr);
  EXPECT_EQ(a.allocate(1, End::kTop, kInCall), nullptr);
  EXPECT_TRUE(a.lastError().ok());
}

TEST_F(ArenaTest, FencesFollowTheBytes) {
  Arena& a = make(4 * kKiB);
  Extent* low = a.allocate(2 * kKiB, End::kBottom, kBlock);
  Extent* high = a.allocate(2 * kKiB, End::kBottom, kBlock);
  const Position first = work(compute(0));
  const Position second = work(kCopyOut);
  a.free(low, fence_of(first));
  a.free(high, fence_of(second));
  Extent* part = a.allocate(3 * kKiB, End::kBottom, kInCall);
  EXPECT_TRUE(has(part->fence, first));
  EXPECT_TRUE(has(part->fence, second));
  // Freed without having been waited for: both fences count.
  const Position third = work(kCopyIn);
  a.free(part, fence_of(third));
  part = a.allocate(4 * kKiB, End::kBottom, kBlock);
  EXPECT_TRUE(has(part->fence, first));
  EXPECT_TRUE(has(part->fence, second));
  EXPECT_TRUE(has(part->fence, third));
  a.check();
}

TEST_F(ArenaTest, ManyStreamsAreJoined) {
  Arena& a = make(8 * kKiB);
  std::vector<Extent*> all;
  for (int i = 0; i < 8; ++i) {
    all.push_back(a.allocate(kKiB, End::kBottom, kBlock));
  }
  for (StreamIndex i = 0; i < 8; ++i) {
    const StreamIndex stream = i < 2 ? i : compute(i - 2u);
    a.free(all[i], fence_of(work(stream)));
  }
  Extent* whole = a.allocate(8 * kKiB, End::kBottom, kBlock);
  // Whoever waits for it waits for all eight streams.
  EXPECT_FALSE(lines.wait(kCopyIn, whole->fence));
  runtime.run(runtime.copyInStream());
  for (std::size_t i = 0; i < 6; ++i) {
    EXPECT_TRUE(runtime.idle(FakeRuntime::compute(i))) << i;
  }
}

TEST_F(ArenaTest, BudgetGrowsAndShrinks) {
  Arena& a = make(kMiB, 128 * kMiB);
  Extent* all = a.allocate(kMiB, End::kBottom, kBlock);
  EXPECT_TRUE(a.setBudget(40 * kMiB));
  a.check();
  Extent* more = a.allocate(39 * kMiB, End::kBottom, kBlock);
  ASSERT_NE(more, nullptr);
  EXPECT_EQ(a.range().mappedBytes(), 40 * kMiB);
  std::memset(a.address(*more), 1, more->bytes);
  a.check();
  EXPECT_FALSE(a.setBudget(2 * kMiB)); // in use above
  EXPECT_TRUE(a.lastError().ok());
  EXPECT_EQ(a.budgetBytes(), 40 * kMiB);
  EXPECT_FALSE(a.setBudget(129 * kMiB)); // above the range
  const Position use = work(compute(0));
  a.free(more, fence_of(use));
  EXPECT_TRUE(a.setBudget(2 * kMiB + 1));
  a.check();
  EXPECT_TRUE(lines.passed(use)); // the host waited
  EXPECT_EQ(a.range().mappedBytes(), 2 * kMiB + kGranule);
  EXPECT_EQ(runtime.committed_bytes, a.range().mappedBytes());
  EXPECT_EQ(a.freeBytes(), kMiB);
  EXPECT_TRUE(a.setBudget(128 * kMiB)); // back, a part of a unit committed
  more = a.allocate(127 * kMiB, End::kBottom, kBlock);
  ASSERT_NE(more, nullptr);
  std::memset(a.address(*more), 1, more->bytes);
  a.check();
  a.free(more, {});
  a.free(all, {});
  EXPECT_TRUE(a.setBudget(0));
  a.check();
  EXPECT_EQ(runtime.committed_bytes, 0u);
  EXPECT_EQ(a.allocate(1, End::kBottom, kBlock), nullptr);
}

TEST_F(ArenaTest, ShrinkingThatFailsChangesNothing) {
  Arena& a = make(96 * kMiB);
  a.free(a.allocate(96 * kMiB, End::kBottom, kBlock),
         fence_of(work(compute(0))));
  for (const auto point : {FakeRuntime::kSync, FakeRuntime::kDecommit}) {
    runtime.fail_after[point] = 0;
    runtime.lost = true;
    EXPECT_FALSE(a.setBudget(kMiB));
    runtime.lost = false;
    EXPECT_FALSE(a.lastError().ok());
    EXPECT_EQ(a.budgetBytes(), 96 * kMiB);
    EXPECT_EQ(a.freeBytes(), 96 * kMiB);
    a.check();
  }
  runtime.fail_after[FakeRuntime::kDecommit] = 1; // the second unit
  EXPECT_FALSE(a.setBudget(kMiB));
  a.check();
  Extent* all = a.allocate(96 * kMiB, End::kBottom, kBlock);
  ASSERT_NE(all, nullptr);
  std::memset(a.address(*all), 1, all->bytes); // what was lost came back
  a.free(all, {});
  EXPECT_TRUE(a.setBudget(kMiB));
  EXPECT_EQ(runtime.committed_bytes, kMiB);
  a.check();
}

TEST_F(ArenaTest, SlideDownMovesBytesInStreamOrder) {
  for (const std::size_t gap : {kUnit, 3 * kKiB, 9 * kKiB}) {
    Arena& a = make(64 * kKiB);
    Extent* hole = a.allocate(gap, End::kBottom, kBlock);
    Extent* extent = a.allocate(4 * kKiB, End::kBottom, kBlock);
    std::vector<std::byte> value(4 * kKiB);
    for (std::size_t i = 0; i < value.size(); ++i) {
      value[i] = static_cast<std::byte>(i * 7 + 3);
    }
    // The value is on its way in, the hole's old bytes are on their way out.
    const runtime::Copy in{a.address(*extent), value.data(), value.size()};
    EXPECT_FALSE(runtime.copy(runtime.copyInStream(), {&in, 1}));
    const Position written = lines.advance(kCopyIn);
    const Position read = work(kCopyOut);
    a.free(hole, fence_of(read));

    auto moved = a.slideDown(extent, 0, fence_of(written));
    ASSERT_TRUE(moved.ok());
    a.check();
    EXPECT_EQ(extent->offset, 0u);
    EXPECT_EQ(moved->stream(), kMoves);
    EXPECT_EQ(extent->fence.slots()[0], *moved);
    EXPECT_EQ(extent->next->use, ExtentUse::kFree);
    EXPECT_TRUE(has(extent->next->fence, *moved));
    runtime.run(runtime.moveStream());
    EXPECT_TRUE(runtime.idle(runtime.copyInStream()));
    EXPECT_TRUE(runtime.idle(runtime.copyOutStream()));
    EXPECT_EQ(std::memcmp(a.address(*extent), value.data(), value.size()), 0);
  }
}

TEST_F(ArenaTest, SlideDownLeavesWhatIsFreeBelow) {
  for (const bool apart : {false, true}) {
    Arena& a = make(64 * kKiB);
    if (apart) a.keepFreedApart();
    Extent* hole = a.allocate(8 * kKiB, End::kBottom, kBlock);
    Extent* extent = a.allocate(4 * kKiB, End::kBottom, kBlock);
    std::memset(a.address(*extent), 9, extent->bytes);
    a.free(hole, fence_of(work(kCopyOut)));
    ASSERT_TRUE(a.slideDown(extent, 6 * kKiB, {}).ok());
    a.check();
    EXPECT_EQ(extent->offset, 6 * kKiB);
    ASSERT_NE(extent->previous, nullptr);
    EXPECT_EQ(extent->previous->use, ExtentUse::kFree);
    EXPECT_EQ(extent->previous->bytes, 6 * kKiB);
    EXPECT_EQ(extent->next->use, ExtentUse::kFree);
    EXPECT_EQ(a.freeBytes(), 60 * kKiB);
    // Who takes what is below still waits for the copy out.
    const Extent* below = a.allocateAt(extent->previous, 0, 6 * kKiB);
    EXPECT_EQ(below->fence.slots()[0].stream(), kCopyOut);
    runtime.runAll();
    EXPECT_EQ(*a.address(*extent), std::byte{9});
  }
}

TEST_F(ArenaTest, SlideDownCommitsAndFailsCleanly) {
  Arena& a = make(96 * kMiB);
  runtime.fail_after[FakeRuntime::kCommit] = 0;
  EXPECT_EQ(a.allocate(96 * kMiB, End::kTop, kBlock), nullptr); // all is open
  Extent* extent = a.allocate(kKiB, End::kTop, kBlock);
  const std::size_t offset = extent->offset;
  std::memset(a.address(*extent), 5, kKiB);
  for (const auto point : {FakeRuntime::kCommit, FakeRuntime::kCopy}) {
    runtime.fail_after[point] = 0;
    EXPECT_FALSE(a.slideDown(extent, extent->previous->offset, {}).ok());
    EXPECT_EQ(extent->offset, offset);
    a.check();
  }
  ASSERT_TRUE(a.slideDown(extent, extent->previous->offset, {}).ok());
  runtime.runAll();
  EXPECT_EQ(extent->offset, 0u);
  EXPECT_EQ(*a.address(*extent), std::byte{5});
  EXPECT_EQ(a.largestFree(), a.freeBytes());
}

TEST_F(ArenaTest, TellsACheckingRuntimeWhichBytesLive) {
  runtime.checks = true;
  Arena& a = make(64 * kKiB);
  Extent* hole = a.allocate(kKiB, End::kBottom, kBlock);
  Extent* extent = a.allocate(4 * kKiB, End::kBottom, kBlock);
  const std::byte* base = a.address(*hole);
  EXPECT_EQ(runtime.last_revived.begin, base + kKiB);
  EXPECT_EQ(runtime.last_revived.bytes, 4 * kKiB);
  EXPECT_EQ(runtime.discards, 0u);
  a.free(hole, {});
  EXPECT_EQ(runtime.last_discarded.begin, base);
  EXPECT_EQ(runtime.last_discarded.bytes, kKiB);
  ASSERT_TRUE(a.slideDown(extent, extent->previous->offset, {}).ok());
  EXPECT_EQ(runtime.last_revived.begin, base); // the new part only
  EXPECT_EQ(runtime.last_revived.bytes, kKiB);
  EXPECT_EQ(runtime.last_discarded.begin, base + 4 * kKiB);
  EXPECT_EQ(runtime.last_discarded.bytes, kKiB);
  Extent* far = a.allocate(kKiB, End::kTop, kBlock);
  ASSERT_TRUE(a.slideDown(far, far->previous->offset, {}).ok()); // no overlap
  EXPECT_EQ(runtime.last_revived.begin, base + 4 * kKiB);
  EXPECT_EQ(runtime.last_revived.bytes, kKiB);
  EXPECT_EQ(runtime.last_discarded.begin, base + 63 * kKiB);
  EXPECT_EQ(runtime.last_discarded.bytes, kKiB);
  EXPECT_EQ(runtime.revivals, 5u);
  EXPECT_EQ(runtime.discards, 3u);
}

TEST(ExtentIndex, AgreesWithAMap) {
  std::mt19937_64 random(3);
  ExtentIndex index;
  std::vector<Extent> extents(3000);
  for (std::size_t i = 0; i < extents.size(); ++i) {
    extents[i].offset = (i * 4 + random() % 4) * kUnit;
  }
  std::unordered_map<std::size_t, Extent*> model;
  for (int step = 0; step < 100000; ++step) {
    // Waves, so that the table grows and empties again.
    Extent& extent = extents[random() % extents.size()];
    const bool grow = random() % 100 < (step / 10000 % 2 == 0 ? 80u : 20u);
    if (model.count(extent.offset) == 0) {
      EXPECT_EQ(index.find(extent.offset), nullptr);
      if (!grow) continue;
      index.insert(&extent);
      model[extent.offset] = &extent;
    } else {
      EXPECT_EQ(index.find(extent.offset), &extent);
      if (grow) continue;
      index.erase(&extent);
      model.erase(extent.offset);
    }
    ASSERT_EQ(index.size(), model.size());
  }
  for (const auto& [offset, extent] : model) {
    EXPECT_EQ(index.find(offset), extent);
  }
}

// Values written, moved, read out and overwritten on streams that run in
// random order: with one wait missing, a reader sees another's bytes.
class ArenaHazards : public testing::TestWithParam<std::uint64_t> {};

TEST_P(ArenaHazards, EveryReaderSeesItsValue) {
  const std::uint64_t seed = GetParam();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  const auto pick = [&](std::size_t n) {
    return static_cast<std::size_t>(random() % n);
  };
  std::vector<std::byte> source(256 * kKiB);
  for (std::byte& byte : source) byte = static_cast<std::byte>(random());

  const auto queues = make_queues();
  support::QueuedRuntime& runtime = *queues;
  StreamPositions lines(runtime);
  std::vector<StreamIndex> streams{kCopyIn, kCopyOut, kMoves};
  for (std::size_t i = 0; i < 3; ++i) {
    streams.push_back(lines.indexOf(FakeRuntime::compute(i)));
  }
  auto created = Arena::create(runtime, lines, kMiB, 128 * kKiB);
  const std::unique_ptr<Arena> arena = std::move(*created);

  struct Value {
    Extent* extent;
    const std::byte* expected;
    std::size_t bytes;
    Position written;
  };
  struct Reading {
    std::vector<std::byte> bytes;
    const std::byte* expected;
  };
  std::vector<Value> live;
  std::vector<std::unique_ptr<Reading>> readings;
  const auto submit = [&](StreamIndex stream, std::byte* to,
                          const std::byte* from, std::size_t bytes) {
    const runtime::Copy copy{to, from, bytes};
    EXPECT_FALSE(runtime.copy(lines.stream(stream), {&copy, 1}));
    return lines.advance(stream);
  };
  const auto read = [&](const Value& value) {
    const StreamIndex stream = streams[pick(streams.size())];
    EXPECT_FALSE(lines.wait(stream, value.written));
    readings.push_back(std::make_unique<Reading>(
        Reading{std::vector<std::byte>(value.bytes), value.expected}));
    return submit(stream, readings.back()->bytes.data(),
                  arena->address(*value.extent), value.bytes);
  };
  std::size_t slides = 0;
  for (int step = 0; step < 6000; ++step) {
    const std::size_t action = pick(100);
    if (action < 40) {
      const std::size_t bytes = 1 + pick(6 * kKiB);
      const bool in_call = pick(2) == 0;
      Extent* extent =
          arena->allocate(bytes, in_call ? End::kTop : End::kBottom,
                          in_call ? kInCall : kBlock);
      if (extent == nullptr) continue;
      if (in_call) arena->adopt(extent, nullptr);
      const StreamIndex stream = streams[pick(streams.size())];
      EXPECT_FALSE(lines.wait(stream, extent->fence));
      const std::byte* from = source.data() + pick(source.size() - bytes);
      live.push_back({extent, from, bytes,
                      submit(stream, arena->address(*extent), from, bytes)});
      if (pick(2) == 0) extent->fence.clear();
    } else if (action < 75) {
      if (live.empty()) continue;
      std::swap(live[pick(live.size())], live.back());
      Fence uses = fence_of(live.back().written);
      uses.add(read(live.back()));
      arena->free(live.back().extent, uses);
      live.pop_back();
    } else if (action < 85) {
      if (live.empty()) continue;
      Value& value = live[pick(live.size())];
      const Extent* below = value.extent->previous;
      if (below == nullptr || below->use != ExtentUse::kFree) continue;
      const std::size_t units = below->bytes / kUnit;
      const std::size_t to = below->offset + pick(units) * kUnit;
      auto moved = arena->slideDown(value.extent, to, fence_of(value.written));
      ASSERT_TRUE(moved.ok());
      value.written = *moved;
      ++slides;
    } else if (action < 98) {
      runtime.run(lines.stream(streams[pick(streams.size())]), pick(12));
    } else {
      (void)arena->setBudget((64 + pick(128)) * kKiB);
    }
    arena->check();
    ASSERT_EQ(runtime.committedBytes(), arena->range().mappedBytes());
  }
  for (const Value& value : live) read(value);
  runtime.runAll();
  for (std::size_t i = 0; i < readings.size(); ++i) {
    const Reading& reading = *readings[i];
    ASSERT_EQ(std::memcmp(reading.bytes.data(), reading.expected,
                          reading.bytes.size()),
              0)
        << "reading " << i;
  }
  EXPECT_GT(slides, 100u);
  EXPECT_GT(readings.size(), 1000u);
}

INSTANTIATE_TEST_SUITE_P(Seeds, ArenaHazards,
                         testing::Range<std::uint64_t>(1, 9));

} // namespace
} // namespace chameleon::memory
