#include "memory/space/host_pool.h"

#include <cstring>
#include <gtest/gtest.h>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/cpp/memory/fake_runtime.h"

namespace chameleon::memory {
namespace {

constexpr std::size_t kKiB = std::size_t{1} << 10;
constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::size_t kUnit = kMiB;
constexpr std::size_t kPage = 4 * kKiB;

Fence fence_of(Position position) {
  Fence fence;
  fence.add(position);
  return fence;
}

class HostPoolTest : public testing::Test {
 protected:
  void open(std::size_t budget_bytes) {
    pool = std::move(
        HostPool::create(runtime, lines, budget_bytes, kUnit).value());
  }
  void TearDown() override {
    if (pool != nullptr) pool->check();
  }
  Extent* take(std::size_t bytes) { return pool->allocate(bytes).extent; }
  void give(Extent* extent) { pool->free(extent, {}); }

  // Work on `stream` that lasts until the test runs it.
  Position work(StreamIndex stream) {
    static std::byte bytes[2];
    const runtime::Copy copy{bytes, bytes + 1, 1};
    EXPECT_FALSE(runtime.copy(lines.stream(stream), {&copy, 1}));
    return lines.advance(stream);
  }

  FakeRuntime runtime;
  StreamPositions lines{runtime};
  std::unique_ptr<HostPool> pool;
};

TEST_F(HostPoolTest, StartsEmpty) {
  open(10 * kUnit);
  EXPECT_EQ(pool->budgetBytes(), 10 * kUnit);
  EXPECT_EQ(pool->usedBytes(), 0u);
  EXPECT_EQ(pool->freeBytes(), 10 * kUnit);
  EXPECT_EQ(pool->reservedBytes(), 0u);
  EXPECT_EQ(runtime.host_bytes, 0u);
}

TEST_F(HostPoolTest, FewerAddressesWillDo) {
  runtime.reserve_limit = 3 * kUnit;
  open(8 * kUnit);
  EXPECT_EQ(pool->budgetBytes(), 8 * kUnit);
  EXPECT_LE(pool->freeBytes(), 3 * kUnit);
  const std::size_t range = pool->freeBytes();
  ASSERT_NE(take(range), nullptr);
  EXPECT_EQ(take(1), nullptr);
  EXPECT_TRUE(pool->setBudget(16 * kUnit));
  EXPECT_EQ(take(1), nullptr);
  EXPECT_TRUE(pool->setBudget(range));
  runtime.reserve_limit = kUnit - 1;
  const auto none = HostPool::create(runtime, lines, 8 * kUnit, kUnit);
  ASSERT_FALSE(none.ok());
  EXPECT_NE(none.error().message().find("address space"), std::string::npos);
}

TEST_F(HostPoolTest, ABudgetFollowsAMachineThatGrows) {
  open(2 * kUnit);
  pool->followMachine(0.5);
  runtime.machine_bytes += 10 * kUnit;
  EXPECT_EQ(pool->budgetBytes(), 2 * kUnit); // nobody needs more
  for (int i = 0; i < 2; ++i) ASSERT_NE(take(kUnit), nullptr);
  EXPECT_EQ(pool->budgetBytes(), 2 * kUnit);
  for (int i = 2; i < 7; ++i) {
    ASSERT_NE(take(kUnit), nullptr);
    EXPECT_EQ(pool->budgetBytes(), 7 * kUnit);
    pool->check();
  }
  EXPECT_EQ(take(kUnit), nullptr);
  runtime.machine_bytes -= kUnit; // takes nothing away
  EXPECT_EQ(take(kUnit), nullptr);
  EXPECT_EQ(pool->budgetBytes(), 7 * kUnit);
  pool->followMachine(0);
  runtime.machine_bytes += 10 * kUnit;
  EXPECT_EQ(take(kUnit), nullptr);
}

TEST_F(HostPoolTest, SizesAreExactAndLieAcrossUnits) {
  open(10 * kUnit);
  const auto a = pool->allocate(600 * kKiB);
  const auto b = pool->allocate(1);
  EXPECT_EQ(pool->reservedBytes(), kUnit);
  EXPECT_EQ(pool->usedBytes(), 600 * kKiB + 512);
  EXPECT_EQ(b.address, a.address + 600 * kKiB);
  EXPECT_EQ(pool->address(*a.extent), a.address);
  const auto c = pool->allocate(600 * kKiB); // into a second unit
  EXPECT_EQ(c.address, b.address + 512);
  EXPECT_EQ(pool->slabCount(), 2u);
  const auto d = pool->allocate(2 * kUnit + 1); // and two more
  EXPECT_EQ(pool->slabCount(), 4u);
  EXPECT_EQ(pool->reservedBytes(), runtime.host_bytes);
  std::memset(c.address, 2, 600 * kKiB);
  std::memset(d.address, 3, 2 * kUnit + 1);
  EXPECT_EQ(c.address[600 * kKiB - 1], std::byte{2});
  pool->check();
  EXPECT_EQ(pool->peakUsedBytes(), pool->usedBytes());
  for (Extent* extent : {c.extent, a.extent, d.extent, b.extent}) {
    give(extent);
    pool->check();
  }
  EXPECT_EQ(pool->usedBytes(), 0u);
  EXPECT_EQ(pool->reservedBytes(), 4 * kUnit); // kept for the next ones
  EXPECT_EQ(pool->peakUsedBytes(), 1200 * kKiB + 2 * kUnit + 1024);
  pool->resetPeak();
  EXPECT_EQ(pool->peakUsedBytes(), 0u);
  pool->trim();
  EXPECT_EQ(pool->reservedBytes(), 0u);
  EXPECT_EQ(runtime.host_bytes, 0u);
}

TEST_F(HostPoolTest, WhatIsThereIsTakenBeforeWhatIsNot) {
  open(10 * kUnit);
  Extent* const low = take(2 * kUnit);
  Extent* const high = take(2 * kUnit);
  give(low);
  pool->trim(); // the lower two units
  EXPECT_EQ(pool->reservedBytes(), 2 * kUnit);
  give(high);
  // One hole: its bottom is not there.
  Extent* const again = take(kUnit);
  EXPECT_EQ(again->offset, 2 * kUnit);
  EXPECT_EQ(pool->reservedBytes(), 2 * kUnit);
  // Nor is a hole that would fit better.
  EXPECT_EQ(take(kUnit)->offset, 3 * kUnit);
  EXPECT_EQ(take(3 * kUnit)->offset, 4 * kUnit);
  EXPECT_EQ(take(2 * kUnit)->offset, 0u);
}

TEST_F(HostPoolTest, TheLowestOfEqualHolesServesARequest) {
  open(10 * kUnit);
  std::vector<Extent*> all;
  for (int i = 0; i < 8; ++i) all.push_back(take(kUnit / 2));
  for (int i : {5, 1, 3}) give(all[i]);
  EXPECT_EQ(take(kUnit / 4)->offset, kUnit / 2);
  EXPECT_EQ(take(kUnit / 4)->offset, kUnit * 3 / 4); // it fits exactly
  EXPECT_EQ(take(kUnit / 4)->offset, kUnit * 3 / 2);
}

TEST_F(HostPoolTest, TheBudgetIsAHardCapAndCanBeUsedUp) {
  const std::size_t budget = 2 * kUnit + 3 * kPage;
  open(budget + kPage - 1); // whole pages of it
  Extent* const a = take(kUnit + kPage);
  Extent* const b = take(kUnit + 2 * kPage);
  ASSERT_NE(a, nullptr);
  ASSERT_NE(b, nullptr);
  EXPECT_EQ(pool->usedBytes(), budget);
  EXPECT_EQ(take(1), nullptr);
  EXPECT_TRUE(pool->lastError().ok());
  pool->check();
  give(b);
  EXPECT_EQ(take(kUnit + 2 * kPage + 1), nullptr);
  EXPECT_EQ(take(~std::size_t{0}), nullptr);
  EXPECT_NE(take(kUnit + 2 * kPage), nullptr);
  EXPECT_EQ(runtime.peak_host_bytes, budget);
  // The last unit gets the rest when there is more.
  EXPECT_TRUE(pool->setBudget(3 * kUnit));
  EXPECT_NE(take(kUnit - 3 * kPage), nullptr);
  EXPECT_EQ(pool->slabCount(), 4u);
}

TEST_F(HostPoolTest, OneRequestMayTakeTheWholeBudget) {
  open(5 * kUnit);
  std::vector<Extent*> all;
  for (int i = 0; i < 5; ++i) all.push_back(take(kUnit));
  const Position reading = work(kCopyIn);
  pool->free(all[0], fence_of(reading));
  for (int i = 1; i < 5; ++i) give(all[i]);
  Extent* const whole = take(5 * kUnit);
  ASSERT_NE(whole, nullptr);
  EXPECT_FALSE(lines.passed(reading)); // who writes there waits
  EXPECT_EQ(whole->fence.slots()[0], reading);
  EXPECT_EQ(runtime.peak_host_bytes, 5 * kUnit);
}

TEST_F(HostPoolTest, ReusedBytesCarryTheirFence) {
  open(kUnit);
  const Position reading = work(kCopyIn);
  pool->free(take(kUnit), fence_of(reading));
  Extent* const again = take(kKiB);
  EXPECT_EQ(again->fence.slots()[0], reading);
  EXPECT_FALSE(lines.wait(kCopyOut, again->fence));
  runtime.run(runtime.copyOutStream());
  EXPECT_TRUE(runtime.idle(runtime.copyInStream()));
}

TEST_F(HostPoolTest, NobodyWaitsForOtherBytesOfAHole) {
  open(4 * kUnit);
  Extent* const a = take(kUnit);
  Extent* const b = take(kUnit);
  const Position reading = work(kCopyIn);
  pool->free(b, fence_of(reading)); // one hole with all above
  give(a);
  Extent* const low = take(kUnit);
  EXPECT_TRUE(low->fence.empty());
  Extent* const high = take(kUnit);
  EXPECT_EQ(high->fence.slots()[0], reading);
  EXPECT_TRUE(take(kUnit)->fence.empty());
}

TEST_F(HostPoolTest, TrimWaitsForTheLastCopies) {
  open(4 * kUnit);
  Extent* const a = take(kUnit);
  Extent* const b = take(kUnit);
  const Position reading = work(kCopyIn);
  pool->free(b, fence_of(reading));
  pool->trim();
  EXPECT_TRUE(lines.passed(reading));
  EXPECT_EQ(pool->reservedBytes(), kUnit);
  give(a);
}

TEST_F(HostPoolTest, RefusedMemoryIsAReason) {
  open(8 * kUnit);
  // At each slab of several.
  for (int slab = 0; slab < 3; ++slab) {
    runtime.fail_after[FakeRuntime::kHost] = slab;
    runtime.host_limit = static_cast<std::size_t>(slab) * kUnit;
    EXPECT_EQ(take(3 * kUnit), nullptr);
    EXPECT_FALSE(pool->lastError().ok());
    EXPECT_EQ(pool->usedBytes(), 0u);
    pool->check();
    runtime.fail_after[FakeRuntime::kHost] = -1;
    pool->trim();
    EXPECT_EQ(pool->reservedBytes(), 0u);
  }
  runtime.host_limit = 3 * kUnit;
  runtime.fail_after[FakeRuntime::kHost] = 1; // once: there is nothing idle
  EXPECT_EQ(take(3 * kUnit), nullptr);
  EXPECT_NE(take(3 * kUnit), nullptr);
  EXPECT_TRUE(pool->lastError().ok());
}

TEST_F(HostPoolTest, IdleSlabsHelpWhenTheMachineIsSmall) {
  open(8 * kUnit);
  runtime.host_limit = 3 * kUnit;
  Extent* const a = take(kUnit);
  Extent* const b = take(kUnit);
  Extent* const c = take(kUnit);
  const Position reading = work(kCopyIn);
  pool->free(b, fence_of(reading));
  // Above them all; the idle one goes, after its last copy.
  Extent* const d = take(kUnit + kKiB);
  EXPECT_EQ(d, nullptr); // two are too many still
  EXPECT_FALSE(pool->lastError().ok());
  give(c);
  Extent* const e = take(2 * kUnit);
  ASSERT_NE(e, nullptr);
  EXPECT_TRUE(lines.passed(reading));
  pool->check();
  EXPECT_EQ(pool->reservedBytes(), 3 * kUnit);
  give(a);
  EXPECT_NE(take(kUnit), nullptr);
}

TEST_F(HostPoolTest, ALowerBudgetNeedsRoomAboveIt) {
  open(4 * kUnit);
  Extent* const a = take(kUnit);
  Extent* const b = take(kUnit);
  Extent* const c = take(kPage);
  EXPECT_FALSE(pool->setBudget(2 * kUnit));
  EXPECT_TRUE(pool->lastError().ok());
  EXPECT_EQ(pool->budgetBytes(), 4 * kUnit);
  EXPECT_EQ(pool->reservedBytes(), 3 * kUnit); // nothing changed
  pool->free(c, fence_of(work(kCopyOut)));
  runtime.fail_after[FakeRuntime::kSync] = 0;
  runtime.lost = true;
  EXPECT_FALSE(pool->setBudget(2 * kUnit));
  EXPECT_FALSE(pool->lastError().ok());
  runtime.lost = false;
  pool->check();
  EXPECT_EQ(pool->budgetBytes(), 4 * kUnit);
  EXPECT_TRUE(pool->setBudget(2 * kUnit));
  EXPECT_TRUE(runtime.idle(runtime.copyOutStream()));
  pool->check();
  EXPECT_EQ(pool->reservedBytes(), 2 * kUnit);
  EXPECT_EQ(take(kPage), nullptr);
  give(b);
  EXPECT_TRUE(pool->setBudget(8 * kUnit));
  EXPECT_NE(take(7 * kUnit), nullptr);
  give(a);
}

TEST_F(HostPoolTest, ABudgetCutsASlabInUse) {
  open(4 * kUnit);
  const auto a = pool->allocate(kKiB);
  std::memset(a.address, 5, kKiB);
  // Copies of what stays are waited for as well.
  const Position writing = work(kCopyOut);
  const Position reading = work(kCopyIn);
  EXPECT_TRUE(pool->setBudget(kPage));
  EXPECT_TRUE(lines.passed(writing) && lines.passed(reading));
  EXPECT_EQ(runtime.host_bytes, kPage);
  pool->check();
  EXPECT_TRUE(pool->setBudget(2 * kUnit));
  const auto b = pool->allocate(kUnit);
  std::memset(b.address, 6, kUnit);
  EXPECT_EQ(b.address, a.address + kKiB);
  EXPECT_EQ(a.address[kKiB - 1], std::byte{5});
  EXPECT_EQ(pool->slabCount(), 3u);
  for (int i = 0; i < 2; ++i) { // a wait that fails changes nothing
    work(i == 0 ? kCopyIn : kCopyOut);
    runtime.fail_after[FakeRuntime::kSync] = 0;
    runtime.lost = true;
    EXPECT_FALSE(pool->setBudget(kUnit + kPage));
    EXPECT_EQ(pool->reservedBytes(), 2 * kUnit);
    runtime.lost = false;
    pool->check();
    runtime.runAll();
  }
  EXPECT_TRUE(pool->setBudget(kUnit + kPage));
  EXPECT_EQ(runtime.host_bytes, kUnit + kPage);
}

TEST_F(HostPoolTest, FailedGiveBackKeepsTheSlab) {
  open(kUnit);
  pool->free(take(kUnit), fence_of(work(kCopyIn)));
  runtime.fail_after[FakeRuntime::kSync] = 0;
  runtime.lost = true;
  pool->trim();
  pool->check();
  EXPECT_EQ(pool->slabCount(), 1u);
  EXPECT_FALSE(pool->lastError().ok());
  runtime.lost = false;
  pool->trim();
  EXPECT_EQ(pool->slabCount(), 0u);
}

TEST_F(HostPoolTest, AnExtentSlidesDownWithItsBytes) {
  open(4 * kUnit);
  Extent* const low = take(kUnit / 2);
  const auto moved = pool->allocate(kUnit); // it overlaps where it goes
  for (std::size_t i = 0; i < kUnit; ++i) {
    moved.address[i] = static_cast<std::byte>(i * 7 >> 3);
  }
  const Position reading = work(kCopyIn);
  const Position filling = work(kCopyOut);
  pool->free(low, fence_of(reading));
  ASSERT_TRUE(pool->slideDown(moved.extent, fence_of(filling)));
  EXPECT_TRUE(lines.passed(reading) && lines.passed(filling));
  EXPECT_EQ(moved.extent->offset, 0u);
  EXPECT_EQ(moved.extent->next->bytes, 3 * kUnit);
  const std::byte* const bytes = pool->address(*moved.extent);
  for (std::size_t i = 0; i < kUnit; ++i) {
    ASSERT_EQ(bytes[i], static_cast<std::byte>(i * 7 >> 3));
  }
}

TEST_F(HostPoolTest, ASlideThatFailsMovesNothing) {
  open(8 * kUnit);
  Extent* const low = take(2 * kUnit);
  const auto high = pool->allocate(2 * kUnit);
  std::memset(high.address, 3, 2 * kUnit);
  give(low);
  pool->trim(); // where it would go nothing is there
  for (int slab = 0; slab < 2; ++slab) {
    runtime.host_limit = static_cast<std::size_t>(2 + slab) * kUnit;
    EXPECT_FALSE(pool->slideDown(high.extent, {}));
    EXPECT_FALSE(pool->lastError().ok());
    EXPECT_EQ(high.extent->offset, 2 * kUnit);
    pool->check();
  }
  runtime.host_limit = 4 * kUnit;
  runtime.fail_after[FakeRuntime::kSync] = 0;
  runtime.lost = true;
  EXPECT_FALSE(pool->slideDown(high.extent, fence_of(work(kCopyIn))));
  EXPECT_EQ(high.extent->offset, 2 * kUnit);
  runtime.lost = false;
  ASSERT_TRUE(pool->slideDown(high.extent, {}));
  EXPECT_EQ(pool->address(*high.extent)[2 * kUnit - 1], std::byte{3});
}

// Bytes written by a random stream, read out when freed; any wait that is
// missing shows as a wrong byte.
class HostPoolRandom : public testing::TestWithParam<std::uint64_t> {};

TEST_P(HostPoolRandom, HoldsValuesUnderItsCap) {
  const std::uint64_t seed = GetParam();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  const auto pick = [&](std::size_t n) {
    return static_cast<std::size_t>(random() % n);
  };
  const auto queues = make_queues();
  support::QueuedRuntime& runtime = *queues;
  StreamPositions lines(runtime);
  const std::size_t unit = 32 * kKiB;
  const std::size_t max_budget = 20 * unit;
  const auto pool =
      std::move(HostPool::create(runtime, lines, max_budget, unit).value());
  std::vector<std::byte> source(256 * kKiB);
  for (std::byte& byte : source) byte = static_cast<std::byte>(random());

  struct Value {
    Extent* extent;
    const std::byte* expected;
    std::size_t bytes;
    Position written;
    Position read;
  };
  struct Reading {
    std::vector<std::byte> bytes;
    const std::byte* expected;
  };
  std::vector<Value> live;
  std::vector<std::unique_ptr<Reading>> readings;
  const auto read = [&](Value& value) {
    ASSERT_FALSE(lines.wait(kCopyIn, value.written));
    readings.push_back(std::make_unique<Reading>(
        Reading{std::vector<std::byte>(value.bytes), value.expected}));
    const runtime::Copy copy{readings.back()->bytes.data(),
                             pool->address(*value.extent), value.bytes};
    ASSERT_FALSE(runtime.copy(runtime.copyInStream(), {&copy, 1}));
    value.read = lines.advance(kCopyIn);
  };
  std::size_t used = 0;
  std::size_t refused = 0;
  std::size_t moved = 0;
  std::size_t lowered = 0;
  constexpr int kSteps = 6000;
  RecordProperty("random_operations", kSteps);
  for (int step = 0; step < kSteps; ++step) {
    const std::size_t action = pick(100);
    if (action < 42) {
      const std::size_t bytes =
          pick(20) == 0 ? 1 + pick(3 * unit) : 1 + pick(8 * kKiB);
      const auto place = pool->allocate(bytes);
      if (place.extent == nullptr) {
        ++refused;
        continue;
      }
      used += ExtentMap::round(bytes);
      ASSERT_EQ(place.address, pool->address(*place.extent));
      ASSERT_FALSE(lines.wait(kCopyOut, place.extent->fence));
      place.extent->fence.clear();
      const std::byte* from = source.data() + pick(source.size() - bytes);
      const runtime::Copy copy{place.address, from, bytes};
      ASSERT_FALSE(runtime.copy(runtime.copyOutStream(), {&copy, 1}));
      live.push_back({place.extent, from, bytes, lines.advance(kCopyOut), {}});
    } else if (action < 80) {
      if (live.empty()) continue;
      std::swap(live[pick(live.size())], live.back());
      read(live.back());
      const Value value = live.back();
      live.pop_back();
      pool->free(value.extent, fence_of(value.read));
      used -= ExtentMap::round(value.bytes);
    } else if (action < 88) {
      if (live.empty()) continue;
      Value& value = live[pick(live.size())];
      if (pick(2) == 0) read(value);
      const Extent* const below = value.extent->previous;
      if (below == nullptr || below->use != ExtentUse::kFree) continue;
      Fence uses = fence_of(value.written);
      uses.add(value.read);
      ASSERT_TRUE(pool->slideDown(value.extent, uses));
      ++moved;
    } else if (action < 96) {
      runtime.run(lines.stream(static_cast<StreamIndex>(pick(2))), pick(12));
    } else if (action < 98) {
      lowered += pool->setBudget(max_budget - pick(max_budget / 2));
    } else {
      pool->trim();
    }
    pool->check();
    ASSERT_EQ(pool->usedBytes(), used);
    ASSERT_EQ(pool->reservedBytes(), runtime.hostBytes());
    ASSERT_LE(runtime.hostBytes(), pool->budgetBytes());
  }
  EXPECT_GT(refused, 0u);
  EXPECT_GT(moved, 100u);
  EXPECT_GT(lowered, 10u);
  runtime.runAll();
  for (std::size_t i = 0; i < readings.size(); ++i) {
    ASSERT_EQ(std::memcmp(readings[i]->bytes.data(), readings[i]->expected,
                          readings[i]->bytes.size()),
              0)
        << "reading " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, HostPoolRandom,
                         testing::Range<std::uint64_t>(1, 9));

} // namespace
} // namespace chameleon::memory
