#include "memory/space/logical_space.h"

#include <gtest/gtest.h>
#include <iterator>
#include <map>
#include <random>
#include <set>
#include <stdexcept>
#include <string>

#include "tests/cpp/memory/fake_runtime.h"

namespace chameleon::memory {
namespace {

constexpr std::size_t kUnit = LogicalSpace::kAlignment;
constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::size_t kTiB = std::size_t{1} << 40;

class LogicalSpaceTest : public testing::Test {
 protected:
  LogicalSpace& make(std::size_t bytes) {
    auto result = LogicalSpace::create(runtime, bytes, bytes);
    if (!result.ok()) throw std::runtime_error(result.error().message());
    space = std::move(*result);
    return *space;
  }

  FakeRuntime runtime;
  std::unique_ptr<LogicalSpace> space;
};

TEST_F(LogicalSpaceTest, ReservesSixteenTiBOrWhatThereIs) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer leaves about 1 TiB of address space";
#endif
  for (const std::size_t limit : {64 * kTiB, 5 * kTiB, kTiB}) {
    runtime.reserve_limit = limit;
    auto result = LogicalSpace::create(runtime);
    ASSERT_TRUE(result.ok()) << result.error().message();
    const std::size_t range = (*result)->rangeBytes();
    EXPECT_EQ(range, limit >= 16 * kTiB  ? 16 * kTiB
                     : limit >= 4 * kTiB ? 4 * kTiB
                                         : kTiB);
    (*result)->check();
  }
  runtime.reserve_limit = LogicalSpace::kMinRangeBytes - 1;
  auto result = LogicalSpace::create(runtime);
  ASSERT_FALSE(result.ok());
  EXPECT_NE(result.error().message().find("ulimit -v"), std::string::npos);
}

TEST_F(LogicalSpaceTest, ClassesAreTightAndAligned) {
  std::set<std::size_t> classes;
  for (std::size_t bytes = 1; bytes < 64 * kMiB; bytes += 1 + bytes / 1000) {
    const std::size_t taken = LogicalSpace::classBytes(bytes);
    ASSERT_EQ(taken % kUnit, 0u);
    ASSERT_GE(taken, bytes);
    ASSERT_LE(taken, std::max(bytes + kUnit - 1, bytes + bytes / 4 + 1));
    ASSERT_EQ(LogicalSpace::classBytes(taken), taken);
    ASSERT_GE(LogicalSpace::classBytes(taken + 1), taken + 1);
    classes.insert(taken);
  }
  for (std::size_t base = 4 * kUnit; base < 16 * kMiB; base *= 2) {
    EXPECT_EQ(
        std::distance(classes.upper_bound(base), classes.upper_bound(2 * base)),
        4)
        << base;
  }
}

TEST_F(LogicalSpaceTest, AddressesAreUniqueAlignedAndOutOfReach) {
  LogicalSpace& s = make(16 * kMiB);
  std::byte* a = s.allocate(1);
  std::byte* b = s.allocate(513);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(a) % kUnit, 0u);
  EXPECT_EQ(b, a + kUnit);
  EXPECT_EQ(s.allocate(1), b + 2 * kUnit);
  EXPECT_EQ(s.liveCount(), 3u);
  EXPECT_TRUE(s.contains(a));
  EXPECT_TRUE(s.contains(a + 16 * kMiB - 1));
  EXPECT_FALSE(s.contains(a + 16 * kMiB));
  EXPECT_FALSE(s.contains(a - 1));
  EXPECT_FALSE(s.contains(nullptr));
  s.check();
}

TEST_F(LogicalSpaceTest, TheLastFreedIsTheNextOfItsClass) {
  LogicalSpace& s = make(16 * kMiB);
  std::byte* a = s.allocate(5000);
  std::byte* b = s.allocate(5000);
  std::byte* c = s.allocate(100);
  s.free(a, 5000);
  s.free(c, 100);
  s.free(b, 5000);
  s.check();
  EXPECT_EQ(s.liveCount(), 0u);
  EXPECT_EQ(s.allocate(5120), b); // the same class
  EXPECT_EQ(s.allocate(4700), a);
  EXPECT_NE(s.allocate(4700), c);
  EXPECT_EQ(s.allocate(512), c);
  s.check();
}

TEST_F(LogicalSpaceTest, UsedUpIsNull) {
  LogicalSpace& s = make(8 * kUnit);
  EXPECT_EQ(s.allocate(8 * kUnit + 1), nullptr);
  EXPECT_EQ(s.allocate(~std::size_t{0}), nullptr);
  std::byte* a = s.allocate(5 * kUnit);
  EXPECT_EQ(s.allocate(4 * kUnit), nullptr);
  std::byte* b = s.allocate(3 * kUnit);
  ASSERT_NE(b, nullptr);
  EXPECT_EQ(s.allocate(1), nullptr);
  s.check();
  EXPECT_EQ(s.liveCount(), 2u);
  s.free(a, 5 * kUnit);
  // A larger freed range is cut up when nothing else is left.
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(s.allocate(1), a + static_cast<std::size_t>(i) * kUnit);
    s.check();
  }
  EXPECT_EQ(s.allocate(1), nullptr);
}

TEST_F(LogicalSpaceTest, CuttingUpLosesNothing) {
  LogicalSpace& s = make(1024 * kUnit);
  std::byte* large = s.allocate(890 * kUnit); // leaves 128 units
  EXPECT_EQ(LogicalSpace::classBytes(890 * kUnit), 1024 * kUnit - 128 * kUnit);
  s.check();
  s.free(large, 890 * kUnit);
  std::byte* middle = s.allocate(200 * kUnit); // the rest goes to a stack
  EXPECT_EQ(middle, large);
  s.check();
  EXPECT_NE(s.allocate(128 * kUnit), nullptr); // and comes from it
  s.check();
  std::size_t count = 0;
  while (s.allocate(kUnit) != nullptr) ++count;
  EXPECT_EQ(count, 1024u - 224u - 128u);
  s.check();
}

TEST_F(LogicalSpaceTest, FreeingTwiceIsFound) {
  LogicalSpace& s = make(kMiB);
  std::byte* a = s.allocate(kUnit);
  s.allocate(kUnit);
  s.free(a, kUnit);
  s.free(a, kUnit);
  EXPECT_DEATH(s.check(), "freed twice");
  EXPECT_DEATH(s.free(a, kUnit), "not live");
}

class LogicalSpaceRandom : public testing::TestWithParam<std::uint64_t> {};

TEST_P(LogicalSpaceRandom, LiveRangesNeverOverlap) {
  const std::uint64_t seed = GetParam();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  FakeRuntime runtime;
  // Odd seeds run out of space now and then.
  auto created =
      LogicalSpace::create(runtime, seed % 2 == 1 ? 2 * kMiB : 16 * kTiB, kMiB);
  const std::unique_ptr<LogicalSpace> space = std::move(*created);
  std::map<std::byte*, std::size_t> model;
  std::vector<std::byte*> live;
  std::size_t refused = 0;
  for (int step = 0; step < 100000; ++step) {
    // Waves, so that sizes meet what others left.
    const bool grow = random() % 100 < (step / 5000 % 2 == 0 ? 55u : 45u);
    if (grow || live.empty()) {
      const std::size_t bytes =
          1 + random() % (std::size_t{1} << (9 + random() % 8));
      std::byte* address = space->allocate(bytes);
      if (address == nullptr) {
        ++refused;
      } else {
        ASSERT_EQ(reinterpret_cast<std::uintptr_t>(address) % kUnit, 0u);
        ASSERT_TRUE(space->contains(address) &&
                    space->contains(address + bytes - 1));
        const auto [at, inserted] = model.emplace(address, bytes);
        ASSERT_TRUE(inserted);
        ASSERT_TRUE(std::next(at) == model.end() ||
                    address + bytes <= std::next(at)->first);
        ASSERT_TRUE(at == model.begin() ||
                    std::prev(at)->first + std::prev(at)->second <= address);
        live.push_back(address);
      }
    } else {
      std::swap(live[random() % live.size()], live.back());
      const auto found = model.find(live.back());
      space->free(found->first, found->second);
      model.erase(found);
      live.pop_back();
    }
    ASSERT_EQ(space->liveCount(), model.size());
    if (step % 100 == 0) space->check();
  }
  EXPECT_EQ(refused > 0, seed % 2 == 1);
}

INSTANTIATE_TEST_SUITE_P(Seeds, LogicalSpaceRandom,
                         testing::Range<std::uint64_t>(1, 5));

} // namespace
} // namespace chameleon::memory
