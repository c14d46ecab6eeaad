#include "memory/host_pool.h"

#include <cstring>
#include <gtest/gtest.h>
#include <random>
#include <string>

#include "tests/cpp/memory/fake_runtime.h"

namespace chameleon::memory {
namespace {

constexpr std::size_t kKiB = std::size_t{1} << 10;
constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::size_t kSlab = kMiB;

Fence fence_of(Position position) {
  Fence fence;
  fence.add(position);
  return fence;
}

class HostPoolTest : public testing::Test {
 protected:
  // Work on `stream` that lasts until the test runs it.
  Position work(StreamIndex stream) {
    static std::byte bytes[2];
    const runtime::Copy copy{bytes, bytes + 1, 1};
    EXPECT_FALSE(runtime.copy(lines.stream(stream), {&copy, 1}));
    return lines.advance(stream);
  }

  FakeRuntime runtime;
  StreamPositions lines{runtime};
};

TEST_F(HostPoolTest, StartsEmpty) {
  HostPool pool(runtime, lines, 10 * kSlab, kSlab);
  pool.check();
  EXPECT_EQ(pool.budgetBytes(), 10 * kSlab);
  EXPECT_EQ(pool.usedBytes(), 0u);
  EXPECT_EQ(pool.reservedBytes(), 0u);
  EXPECT_EQ(runtime.host_bytes, 0u);
}

TEST_F(HostPoolTest, ABudgetFollowsAMachineThatGrows) {
  HostPool pool(runtime, lines, 2 * kSlab, kSlab);
  pool.followMachine(0.5);
  runtime.machine_bytes += 10 * kSlab;
  EXPECT_EQ(pool.budgetBytes(), 2 * kSlab); // nobody needs more
  for (int slab = 0; slab < 2; ++slab) {
    ASSERT_NE(pool.allocate(kSlab).extent, nullptr);
  }
  EXPECT_EQ(pool.budgetBytes(), 2 * kSlab);
  for (int slab = 2; slab < 7; ++slab) {
    ASSERT_NE(pool.allocate(kSlab).extent, nullptr);
    EXPECT_EQ(pool.budgetBytes(), 7 * kSlab);
    pool.check();
  }
  EXPECT_EQ(pool.allocate(kSlab).extent, nullptr);
  runtime.machine_bytes -= kSlab; // takes nothing away
  EXPECT_EQ(pool.allocate(kSlab).extent, nullptr);
  EXPECT_EQ(pool.budgetBytes(), 7 * kSlab);
  pool.followMachine(0);
  runtime.machine_bytes += 10 * kSlab;
  EXPECT_EQ(pool.allocate(kSlab).extent, nullptr);
}

TEST_F(HostPoolTest, SizesAreExactInsideSlabs) {
  HostPool pool(runtime, lines, 10 * kSlab, kSlab);
  const auto a = pool.allocate(600 * kKiB);
  const auto b = pool.allocate(1);
  ASSERT_NE(a.extent, nullptr);
  ASSERT_NE(b.extent, nullptr);
  EXPECT_EQ(pool.reservedBytes(), kSlab);
  EXPECT_EQ(pool.usedBytes(), 600 * kKiB + 512);
  EXPECT_EQ(b.address, a.address + 600 * kKiB);
  EXPECT_EQ(pool.address(*a.extent), a.address);
  EXPECT_EQ(pool.address(*b.extent), b.address);
  std::memset(a.address, 1, 600 * kKiB);
  std::memset(b.address, 2, 512);
  const auto c = pool.allocate(600 * kKiB); // needs a second slab
  EXPECT_EQ(pool.slabCount(), 2u);
  const auto d = pool.allocate(2 * kSlab + 1); // and one of its own size
  EXPECT_EQ(pool.slabCount(), 3u);
  EXPECT_EQ(pool.reservedBytes(), 4 * kSlab + 512);
  EXPECT_EQ(pool.reservedBytes(), runtime.host_bytes);
  std::memset(d.address, 3, 2 * kSlab + 1);
  pool.check();
  EXPECT_EQ(pool.peakUsedBytes(), pool.usedBytes());
  for (Extent* extent : {c.extent, a.extent, d.extent, b.extent}) {
    pool.free(extent, {});
    pool.check();
  }
  EXPECT_EQ(pool.usedBytes(), 0u);
  EXPECT_EQ(pool.reservedBytes(), 4 * kSlab + 512); // kept for the next ones
  EXPECT_EQ(pool.peakUsedBytes(), 1200 * kKiB + 2 * kSlab + 1024);
  pool.resetPeak();
  EXPECT_EQ(pool.peakUsedBytes(), 0u);
  pool.trim();
  pool.check();
  EXPECT_EQ(pool.reservedBytes(), 0u);
  EXPECT_EQ(runtime.host_bytes, 0u);
  EXPECT_EQ(pool.slabCount(), 0u);
}

TEST_F(HostPoolTest, TheFullestSlabThatCanServesARequest) {
  HostPool pool(runtime, lines, 10 * kSlab, kSlab);
  const auto a = pool.allocate(kSlab);
  const auto b = pool.allocate(kSlab);
  const auto c = pool.allocate(kSlab - 100 * kKiB);
  pool.free(a.extent, {});
  pool.free(b.extent, {});
  const auto d = pool.allocate(60 * kKiB); // not from an empty slab
  EXPECT_EQ(d.address, c.address + kSlab - 100 * kKiB);
  const auto e = pool.allocate(60 * kKiB);
  EXPECT_TRUE(e.address == a.address || e.address == b.address);
  pool.check();
  EXPECT_EQ(pool.slabCount(), 3u);
}

TEST_F(HostPoolTest, TheBudgetIsAHardCapAndCanBeUsedUp) {
  const std::size_t budget = 2 * kSlab + 3 * kKiB;
  HostPool pool(runtime, lines, budget, kSlab);
  const auto a = pool.allocate(kSlab);
  const auto b = pool.allocate(kSlab);
  const auto c = pool.allocate(3 * kKiB); // a last, small slab
  ASSERT_NE(a.extent, nullptr);
  ASSERT_NE(b.extent, nullptr);
  ASSERT_NE(c.extent, nullptr);
  EXPECT_EQ(pool.usedBytes(), budget);
  EXPECT_EQ(pool.allocate(1).extent, nullptr);
  EXPECT_TRUE(pool.lastError().ok());
  pool.check();
  pool.free(c.extent, {});
  EXPECT_EQ(pool.allocate(3 * kKiB + 1).extent, nullptr);
  EXPECT_EQ(pool.allocate(~std::size_t{0}).extent, nullptr);
  EXPECT_NE(pool.allocate(3 * kKiB).extent, nullptr);
  EXPECT_EQ(runtime.peak_host_bytes, budget);
}

TEST_F(HostPoolTest, OneRequestMayTakeTheWholeBudget) {
  HostPool pool(runtime, lines, 5 * kSlab, kSlab);
  std::vector<Extent*> all;
  for (int i = 0; i < 5; ++i) all.push_back(pool.allocate(kSlab).extent);
  // The copies that still read the slabs are waited for, and only then.
  const Position reading = work(kCopyIn);
  pool.free(all[0], fence_of(reading));
  EXPECT_EQ(pool.allocate(2 * kSlab).extent, nullptr); // nothing is given back
  EXPECT_EQ(pool.reservedBytes(), 5 * kSlab);
  EXPECT_FALSE(lines.passed(reading));
  for (int i = 1; i < 5; ++i) pool.free(all[i], {});
  EXPECT_NE(pool.allocate(5 * kSlab).extent, nullptr);
  EXPECT_TRUE(lines.passed(reading));
  pool.check();
  EXPECT_EQ(pool.slabCount(), 1u);
  EXPECT_EQ(runtime.peak_host_bytes, 5 * kSlab);
}

TEST_F(HostPoolTest, GivesBackNoMoreThanNeeded) {
  HostPool pool(runtime, lines, 4 * kSlab, kSlab);
  std::vector<Extent*> all;
  for (int i = 0; i < 4; ++i) all.push_back(pool.allocate(kSlab).extent);
  for (Extent* extent : all) pool.free(extent, {});
  EXPECT_NE(pool.allocate(2 * kSlab).extent, nullptr);
  EXPECT_EQ(pool.slabCount(), 3u);
  EXPECT_EQ(pool.reservedBytes(), 4 * kSlab);
  pool.check();
}

TEST_F(HostPoolTest, ReusedBytesCarryTheirFence) {
  HostPool pool(runtime, lines, kSlab, kSlab);
  const auto a = pool.allocate(kSlab);
  const Position reading = work(kCopyIn);
  pool.free(a.extent, fence_of(reading));
  const auto b = pool.allocate(kKiB);
  EXPECT_EQ(b.extent->fence.slots()[0], reading);
  EXPECT_FALSE(lines.wait(kCopyOut, b.extent->fence));
  runtime.run(runtime.copyOutStream());
  EXPECT_TRUE(runtime.idle(runtime.copyInStream()));
}

TEST_F(HostPoolTest, RefusedMemoryIsAReason) {
  HostPool pool(runtime, lines, 8 * kSlab, kSlab);
  runtime.fail_after[FakeRuntime::kHost] = 0;
  EXPECT_EQ(pool.allocate(kKiB).extent, nullptr);
  EXPECT_FALSE(pool.lastError().ok());
  pool.check();
  EXPECT_EQ(pool.reservedBytes(), 0u);
  EXPECT_NE(pool.allocate(kKiB).extent, nullptr);
  EXPECT_TRUE(pool.lastError().ok());
}

TEST_F(HostPoolTest, IdleSlabsHelpWhenTheMachineIsSmall) {
  HostPool pool(runtime, lines, 8 * kSlab, kSlab);
  runtime.host_limit = 3 * kSlab;
  const auto a = pool.allocate(kSlab);
  pool.free(pool.allocate(2 * kSlab).extent, {});
  const auto b = pool.allocate(kSlab + kKiB);
  EXPECT_NE(b.extent, nullptr); // inside the idle one
  pool.free(b.extent, {});
  runtime.host_limit = 4 * kSlab;
  EXPECT_NE(pool.allocate(3 * kSlab).extent, nullptr); // in place of it
  pool.check();
  EXPECT_EQ(pool.reservedBytes(), 4 * kSlab);
  EXPECT_EQ(pool.allocate(kSlab).extent, nullptr);
  EXPECT_FALSE(pool.lastError().ok());
  pool.free(a.extent, {});
  EXPECT_NE(pool.allocate(kSlab).extent, nullptr);
}

TEST_F(HostPoolTest, BudgetShrinksByIdleSlabsOnly) {
  HostPool pool(runtime, lines, 4 * kSlab, kSlab);
  const auto a = pool.allocate(kSlab);
  const auto b = pool.allocate(kSlab);
  const auto c = pool.allocate(kKiB);
  EXPECT_FALSE(pool.setBudget(2 * kSlab));
  EXPECT_EQ(pool.budgetBytes(), 4 * kSlab);
  pool.free(b.extent, fence_of(work(kCopyOut)));
  EXPECT_FALSE(pool.setBudget(kSlab));
  EXPECT_EQ(pool.reservedBytes(), 3 * kSlab); // nothing changed
  runtime.fail_after[FakeRuntime::kSync] = 0;
  runtime.lost = true;
  EXPECT_FALSE(pool.setBudget(2 * kSlab));
  EXPECT_FALSE(pool.lastError().ok());
  runtime.lost = false;
  EXPECT_EQ(pool.budgetBytes(), 4 * kSlab);
  EXPECT_TRUE(pool.setBudget(2 * kSlab));
  EXPECT_TRUE(pool.lastError().ok());
  pool.check();
  EXPECT_EQ(pool.slabCount(), 2u);
  EXPECT_EQ(pool.allocate(kSlab).extent, nullptr);
  pool.free(c.extent, {});
  EXPECT_NE(pool.allocate(kSlab).extent, nullptr);
  pool.free(a.extent, {});
  EXPECT_TRUE(pool.setBudget(8 * kSlab));
  pool.check();
}

TEST_F(HostPoolTest, FailedGiveBackKeepsTheSlab) {
  HostPool pool(runtime, lines, kSlab, kSlab);
  pool.free(pool.allocate(kSlab).extent, fence_of(work(kCopyIn)));
  runtime.fail_after[FakeRuntime::kSync] = 0;
  runtime.lost = true;
  pool.trim();
  pool.check();
  EXPECT_EQ(pool.slabCount(), 1u);
  EXPECT_FALSE(pool.lastError().ok());
  runtime.lost = false;
  pool.trim();
  EXPECT_EQ(pool.slabCount(), 0u);
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
  const std::size_t slab = 32 * kKiB;
  const std::size_t max_budget = 20 * slab;
  HostPool pool(runtime, lines, max_budget, slab);
  std::vector<std::byte> source(256 * kKiB);
  for (std::byte& byte : source) byte = static_cast<std::byte>(random());

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
  std::size_t used = 0;
  std::size_t refused = 0;
  constexpr int kSteps = 6000;
  RecordProperty("random_operations", kSteps);
  for (int step = 0; step < kSteps; ++step) {
    const std::size_t action = pick(100);
    if (action < 45) {
      const std::size_t bytes =
          pick(20) == 0 ? 1 + pick(3 * slab) : 1 + pick(8 * kKiB);
      const auto place = pool.allocate(bytes);
      if (place.extent == nullptr) {
        ++refused;
        continue;
      }
      used += ExtentMap::round(bytes);
      ASSERT_EQ(place.address, pool.address(*place.extent));
      ASSERT_FALSE(lines.wait(kCopyOut, place.extent->fence));
      const std::byte* from = source.data() + pick(source.size() - bytes);
      const runtime::Copy copy{place.address, from, bytes};
      ASSERT_FALSE(runtime.copy(runtime.copyOutStream(), {&copy, 1}));
      live.push_back({place.extent, from, bytes, lines.advance(kCopyOut)});
    } else if (action < 85) {
      if (live.empty()) continue;
      std::swap(live[pick(live.size())], live.back());
      const Value value = live.back();
      live.pop_back();
      ASSERT_FALSE(lines.wait(kCopyIn, value.written));
      readings.push_back(std::make_unique<Reading>(
          Reading{std::vector<std::byte>(value.bytes), value.expected}));
      const runtime::Copy copy{readings.back()->bytes.data(),
                               pool.address(*value.extent), value.bytes};
      ASSERT_FALSE(runtime.copy(runtime.copyInStream(), {&copy, 1}));
      pool.free(value.extent, fence_of(lines.advance(kCopyIn)));
      used -= ExtentMap::round(value.bytes);
    } else if (action < 96) {
      runtime.run(lines.stream(static_cast<StreamIndex>(pick(2))), pick(12));
    } else if (action < 98) {
      (void)pool.setBudget(max_budget - pick(max_budget / 2));
    } else {
      pool.trim();
    }
    pool.check();
    ASSERT_EQ(pool.usedBytes(), used);
    ASSERT_EQ(pool.reservedBytes(), runtime.hostBytes());
    ASSERT_LE(runtime.hostBytes(), max_budget);
  }
  EXPECT_GT(refused, 0u);
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
