#include "memory/space/extent_map.h"

#include <cstdlib>
#include <gtest/gtest.h>
#include <new>
#include <random>

namespace {

std::size_t allocations = 0;
std::size_t allocated_bytes = 0;

} // namespace

// Counts what the map takes from the heap.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  ++allocations;
  allocated_bytes += bytes;
  if (void* address = std::malloc(bytes != 0 ? bytes : 1)) return address;
  std::abort();
}
[[gnu::noinline]] void operator delete(void* address) noexcept {
  std::free(address);
}
[[gnu::noinline]] void operator delete(void* address, std::size_t) noexcept {
  std::free(address);
}

namespace chameleon::memory {
namespace {

constexpr std::size_t kUnit = ExtentMap::kAlignment;
constexpr std::size_t kKiB = std::size_t{1} << 10;
constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr ExtentUse kUse = ExtentUse::kBlock;

Fence fence(StreamIndex stream, std::uint64_t count) {
  Fence result;
  result.add(Position::make(stream, count));
  return result;
}

bool covers(const Fence& fence, StreamIndex stream, std::uint64_t count) {
  for (const Position& position : fence.slots()) {
    if (!position.none() && position.stream() == stream) {
      return position.count() >= count;
    }
  }
  return false;
}

TEST(ExtentMap, StartsAsOneHole) {
  ExtentMap map(kMiB);
  map.check();
  EXPECT_EQ(map.capacity(), kMiB);
  EXPECT_EQ(map.limit(), kMiB);
  EXPECT_EQ(map.freeBytes(), kMiB);
  EXPECT_EQ(map.usedBytes(), 0u);
  EXPECT_EQ(map.largestFree(), kMiB);
  EXPECT_EQ(map.extentCount(), 1u);
  EXPECT_EQ(map.first()->use, ExtentUse::kFree);
  EXPECT_EQ(map.closed(), nullptr);
}

TEST(ExtentMap, EmptyCapacityHoldsNothing) {
  ExtentMap map(0);
  map.check();
  EXPECT_EQ(map.allocate(1, End::kBottom, kUse), nullptr);
  EXPECT_EQ(map.largestFree(), 0u);
}

TEST(ExtentMap, CutsAtTheAskedEndAndRounds) {
  ExtentMap map(kMiB, {}, 7);
  Extent* bottom = map.allocate(1, End::kBottom, ExtentUse::kBlock);
  Extent* top = map.allocate(kUnit + 1, End::kTop, ExtentUse::kInCall);
  map.check();
  EXPECT_EQ(bottom->offset, 0u);
  EXPECT_EQ(bottom->bytes, kUnit);
  EXPECT_EQ(bottom->use, ExtentUse::kBlock);
  EXPECT_EQ(bottom->owner, 7u);
  EXPECT_EQ(top->offset, kMiB - 2 * kUnit);
  EXPECT_EQ(top->bytes, 2 * kUnit);
  EXPECT_EQ(top->use, ExtentUse::kInCall);
  EXPECT_EQ(map.usedBytes(), 3 * kUnit);
  EXPECT_EQ(map.largestFree(), kMiB - 3 * kUnit);
}

TEST(ExtentMap, TooLargeIsNull) {
  ExtentMap map(kMiB);
  EXPECT_EQ(map.allocate(kMiB + 1, End::kBottom, kUse), nullptr);
  EXPECT_EQ(map.allocate(~std::size_t{0}, End::kTop, kUse), nullptr);
  Extent* all = map.allocate(kMiB, End::kTop, kUse);
  ASSERT_NE(all, nullptr);
  EXPECT_EQ(map.allocate(1, End::kBottom, kUse), nullptr);
  EXPECT_EQ(map.largestFree(), 0u);
  map.check();
  map.free(all);
  map.check();
  EXPECT_EQ(map.extentCount(), 1u);
}

// Holes of the given sizes, kept apart by extents in use.
std::vector<Extent*> make_holes(ExtentMap& map,
                                const std::vector<std::size_t>& sizes) {
  std::vector<Extent*> holes;
  for (const std::size_t bytes : sizes) {
    holes.push_back(map.allocate(bytes, End::kBottom, kUse));
    map.allocate(kUnit, End::kBottom, kUse);
  }
  for (Extent*& hole : holes) hole = map.free(hole);
  map.check();
  return holes;
}

TEST(ExtentMap, TakesTheSmallestHoleThatFits) {
  for (const End end : {End::kBottom, End::kTop}) {
    ExtentMap map(64 * kMiB);
    const auto holes =
        make_holes(map, {9 * kMiB, 3 * kUnit, 2 * kMiB, 200 * kKiB, 100 * kUnit,
                         201 * kKiB, 66 * kKiB});
    const auto taken_from = [&](std::size_t bytes, Extent* hole) {
      const std::size_t begin = hole->offset;
      const std::size_t hole_end = begin + hole->bytes;
      Extent* extent = map.allocate(bytes, end, kUse);
      map.check();
      const bool inside =
          extent->offset >= begin && extent->offset + extent->bytes <= hole_end;
      map.free(extent);
      map.check();
      return inside;
    };
    EXPECT_TRUE(taken_from(2 * kUnit, holes[1]));
    EXPECT_TRUE(taken_from(4 * kUnit, holes[4]));
    EXPECT_TRUE(taken_from(65 * kKiB, holes[6]));
    EXPECT_TRUE(taken_from(67 * kKiB, holes[3]));      // next class
    EXPECT_TRUE(taken_from(200 * kKiB + 1, holes[5])); // in one class
    EXPECT_TRUE(taken_from(202 * kKiB, holes[2]));     // class, but too small
    EXPECT_TRUE(taken_from(2 * kMiB, holes[2]));
    EXPECT_TRUE(taken_from(9 * kMiB, holes[0]));
  }
}

TEST(ExtentMap, AmongEqualsTheEndDecides) {
  for (const std::size_t bytes : {kUnit * 2, kMiB}) {
    ExtentMap map(64 * kMiB);
    const auto holes = make_holes(map, std::vector<std::size_t>(5, bytes));
    const std::size_t lowest = holes[0]->offset;
    const std::size_t highest = holes[4]->offset;
    EXPECT_EQ(map.allocate(bytes, End::kBottom, kUse)->offset, lowest);
    EXPECT_EQ(map.allocate(bytes, End::kTop, kUse)->offset, highest);
    map.check();
  }
}

TEST(ExtentMap, CoalescesWithEitherNeighbourAndBoth) {
  for (const std::size_t bytes : {kUnit, kMiB}) {
    ExtentMap map(5 * bytes);
    std::vector<Extent*> all;
    for (int i = 0; i < 5; ++i) {
      all.push_back(map.allocate(bytes, End::kBottom, kUse));
    }
    map.check();
    Extent* hole = map.free(all[1]);
    EXPECT_EQ(hole->bytes, bytes);
    hole = map.free(all[2]); // the lower neighbour is free
    EXPECT_EQ(hole->bytes, 2 * bytes);
    map.check();
    hole = map.free(all[0]); // the upper one
    EXPECT_EQ(hole->offset, 0u);
    EXPECT_EQ(hole->bytes, 3 * bytes);
    map.check();
    map.free(all[4]);
    map.check();
    hole = map.free(all[3]); // both
    EXPECT_EQ(hole->bytes, 5 * bytes);
    map.check();
    EXPECT_EQ(map.extentCount(), 1u);
  }
}

TEST(ExtentMap, FencesFollowTheBytes) {
  ExtentMap map(4 * kUnit);
  Extent* low = map.allocate(kUnit, End::kBottom, kUse);
  Extent* high = map.allocate(kUnit, End::kBottom, kUse);
  low->fence = fence(2, 5);
  map.free(low);
  high->fence = fence(3, 9);
  Extent* hole = map.free(high); // joins both and the untouched rest
  EXPECT_TRUE(covers(hole->fence, 2, 5));
  EXPECT_TRUE(covers(hole->fence, 3, 9));
  Extent* part = map.allocate(kUnit, End::kBottom, kUse);
  EXPECT_TRUE(covers(part->fence, 2, 5));
  EXPECT_TRUE(covers(part->fence, 3, 9));
  Extent* whole = map.allocate(3 * kUnit, End::kTop, kUse);
  EXPECT_TRUE(covers(whole->fence, 3, 9));
  map.check();
}

TEST(ExtentMap, RecycledExtentsLoseTheirFence) {
  ExtentMap map(8 * kUnit);
  Extent* low = map.allocate(kUnit, End::kBottom, kUse);
  Extent* high = map.allocate(7 * kUnit, End::kBottom, kUse);
  high->fence = fence(3, 5);
  map.free(low);
  map.free(high)->fence.clear(); // as if waited for; `high` is recycled
  EXPECT_TRUE(map.setLimit(4 * kUnit));
  EXPECT_TRUE(map.closed()->fence.empty());
  EXPECT_TRUE(map.allocate(kUnit, End::kTop, kUse)->fence.empty());
}

struct Joiner {
  int calls = 0;
  static void join(void* context, Fence& into, const Fence& from) {
    ++static_cast<Joiner*>(context)->calls;
    std::uint64_t sum = 0;
    for (const Position& position : into.slots()) sum += position.count();
    for (const Position& position : from.slots()) sum += position.count();
    into.clear();
    into.add(Position::make(kCopyOut, sum));
  }
};

TEST(ExtentMap, FullFencesAreJoined) {
  Joiner joiner;
  ExtentMap map(2 * kUnit, {&Joiner::join, &joiner});
  Extent* low = map.allocate(kUnit, End::kBottom, kUse);
  Extent* high = map.allocate(kUnit, End::kBottom, kUse);
  for (StreamIndex stream = 2; stream < 5; ++stream) {
    low->fence.add(Position::make(stream, 1));
    high->fence.add(Position::make(static_cast<StreamIndex>(stream + 2), 10));
  }
  map.free(low);
  EXPECT_EQ(joiner.calls, 0);
  Extent* hole = map.free(high); // streams 2 3 4 and 4 5 6: one too many
  EXPECT_EQ(joiner.calls, 1);
  EXPECT_TRUE(covers(hole->fence, kCopyOut, 33));
}

TEST(ExtentMapDeathTest, MisuseAborts) {
  ExtentMap map(8 * kUnit);
  Extent* low = map.allocate(kUnit, End::kBottom, kUse);
  Extent* high = map.allocate(kUnit, End::kBottom, kUse);
  EXPECT_DEATH(map.slideDown(high), "above a free one");
  EXPECT_DEATH(map.setLimit(kUnit + 1), "unaligned");
  EXPECT_DEATH(map.setLimit(9 * kUnit), "capacity");
  for (StreamIndex stream = 2; stream < 5; ++stream) {
    low->fence.add(Position::make(stream, 1));
    high->fence.add(Position::make(static_cast<StreamIndex>(stream + 2), 1));
  }
  map.free(low);
  EXPECT_DEATH(map.free(low), "not in use");
  EXPECT_DEATH(map.free(high), "a fence is full");
}

TEST(ExtentMap, SlideDownExchangesAndCoalesces) {
  for (const std::size_t unit : {kUnit, kMiB}) {
    ExtentMap map(16 * unit);
    Extent* a = map.allocate(3 * unit, End::kBottom, kUse);
    Extent* b = map.allocate(2 * unit, End::kBottom, kUse);
    Extent* c = map.allocate(4 * unit, End::kBottom, kUse);
    a->fence = fence(2, 1);
    map.free(a);
    Extent* hole = map.slideDown(b); // into a larger hole
    map.check();
    EXPECT_EQ(b->offset, 0u);
    EXPECT_EQ(b->bytes, 2 * unit);
    EXPECT_EQ(b->next, hole);
    EXPECT_EQ(hole->offset, 2 * unit);
    EXPECT_EQ(hole->bytes, 3 * unit);
    EXPECT_TRUE(covers(hole->fence, 2, 1));
    hole = map.slideDown(c); // into a smaller one, before a free one
    map.check();
    EXPECT_EQ(c->offset, 2 * unit);
    EXPECT_EQ(hole->offset, 6 * unit);
    EXPECT_EQ(hole->bytes, 10 * unit);
    EXPECT_TRUE(covers(hole->fence, 2, 1));
    EXPECT_EQ(map.extentCount(), 3u);
    EXPECT_EQ(map.freeBytes(), 10 * unit);
  }
}

TEST(ExtentMap, SlideDownOfTheLastExtent) {
  ExtentMap map(4 * kUnit);
  Extent* low = map.allocate(kUnit, End::kBottom, kUse);
  Extent* high = map.allocate(3 * kUnit, End::kBottom, kUse);
  map.free(low);
  Extent* hole = map.slideDown(high);
  map.check();
  EXPECT_EQ(hole->offset, 3 * kUnit);
  EXPECT_EQ(hole->next, nullptr);
}

TEST(ExtentMap, LimitClosesAndOpensSpace) {
  ExtentMap map(kMiB);
  EXPECT_TRUE(map.setLimit(0));
  map.check();
  EXPECT_EQ(map.allocate(1, End::kBottom, kUse), nullptr);
  EXPECT_EQ(map.extentCount(), 1u);
  ASSERT_NE(map.closed(), nullptr);
  EXPECT_TRUE(map.setLimit(16 * kUnit));
  map.check();
  EXPECT_EQ(map.freeBytes(), 16 * kUnit);
  Extent* extent = map.allocate(kUnit, End::kTop, kUse);
  EXPECT_EQ(extent->offset, 15 * kUnit);
  EXPECT_FALSE(map.setLimit(15 * kUnit));
  EXPECT_FALSE(map.setLimit(0));
  map.check();
  EXPECT_EQ(map.limit(), 16 * kUnit);
  EXPECT_TRUE(map.setLimit(20 * kUnit)); // beside an extent in use
  map.check();
  EXPECT_TRUE(map.setLimit(24 * kUnit)); // beside a free one
  map.check();
  EXPECT_EQ(map.largestFree(), 15 * kUnit);
  EXPECT_TRUE(map.setLimit(17 * kUnit)); // a part of the hole
  map.check();
  EXPECT_TRUE(map.setLimit(16 * kUnit)); // the rest of it
  map.check();
  EXPECT_TRUE(map.setLimit(kMiB)); // everything
  map.check();
  EXPECT_EQ(map.closed(), nullptr);
  EXPECT_EQ(map.freeBytes(), kMiB - kUnit);
}

TEST(ExtentMap, ClosedSpaceKeepsItsFence) {
  ExtentMap map(8 * kUnit);
  Extent* all = map.allocate(8 * kUnit, End::kBottom, kUse);
  all->fence = fence(2, 3);
  map.free(all);
  EXPECT_TRUE(map.setLimit(2 * kUnit));
  EXPECT_TRUE(covers(map.closed()->fence, 2, 3));
  Extent* low = map.allocate(2 * kUnit, End::kBottom, kUse);
  EXPECT_TRUE(map.setLimit(8 * kUnit));
  Extent* high = map.allocate(6 * kUnit, End::kBottom, kUse);
  EXPECT_TRUE(covers(low->fence, 2, 3));
  EXPECT_TRUE(covers(high->fence, 2, 3));

  // Opened beside a hole, it makes the hole wait.
  high->fence = fence(2, 4);
  map.free(high);
  EXPECT_TRUE(map.setLimit(4 * kUnit));
  map.check();
  low->next->fence.clear();
  EXPECT_TRUE(map.setLimit(8 * kUnit));
  EXPECT_TRUE(covers(low->next->fence, 2, 4));
}

TEST(ExtentMap, TakesNothingFromTheHeapInSteadyState) {
  ExtentMap map(64 * kMiB);
  std::mt19937_64 random(1);
  std::vector<Extent*> live;
  live.reserve(2000);
  const auto churn = [&](int steps) {
    for (int i = 0; i < steps; ++i) {
      if (live.size() < 1000 || (live.size() < 2000 && random() % 2 == 0)) {
        live.push_back(
            map.allocate(1 + random() % (32 * kKiB), End::kBottom, kUse));
        continue;
      }
      std::swap(live[random() % live.size()], live.back());
      map.free(live.back());
      live.pop_back();
    }
  };
  churn(20000);
  const std::size_t before = allocations;
  churn(20000);
  EXPECT_EQ(allocations, before);
}

TEST(ExtentMap, MetadataPerExtentIsSmall) {
  constexpr std::size_t kExtents = 20000;
  ExtentMap map(kExtents * kUnit);
  const std::size_t before = allocated_bytes;
  for (std::size_t i = 0; i < kExtents; ++i) {
    map.allocate(kUnit, End::kBottom, kUse);
  }
  EXPECT_LE(allocated_bytes - before, kExtents * 100);
}

} // namespace
} // namespace chameleon::memory
