#include "memory/space/reserved_hole.h"

#include <gtest/gtest.h>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "memory/block.h"
#include "memory/space/first_fit.h"
#include "tests/cpp/memory/fake_runtime.h"

namespace chameleon::memory {
namespace {

constexpr std::size_t kUnit = ExtentMap::kAlignment;
constexpr std::size_t kMiB = std::size_t{1} << 20;

class ReservedHoleTest : public testing::Test {
 protected:
  Arena& make(std::size_t budget) {
    auto result = Arena::create(runtime, lines, std::size_t{1} << 30, budget);
    EXPECT_TRUE(result.ok());
    arena = std::move(*result);
    return *arena;
  }
  Extent* inCall(std::size_t bytes) {
    return arena->allocate(bytes, End::kTop, ExtentUse::kInCall);
  }

  FakeRuntime runtime;
  StreamPositions lines{runtime};
  std::unique_ptr<Arena> arena;
};

TEST_F(ReservedHoleTest, PartsAreCutAndComeBack) {
  Arena& a = make(kMiB);
  ReservedHole hole;
  EXPECT_TRUE(hole.empty());
  EXPECT_EQ(hole.cut(a, 0, kUnit), nullptr);
  hole.reserve(inCall(8 * kUnit));
  EXPECT_FALSE(hole.empty());
  const std::size_t begin = kMiB - 8 * kUnit;

  Extent* const middle = hole.cut(a, 2 * kUnit, 3 * kUnit);
  ASSERT_NE(middle, nullptr);
  EXPECT_EQ(middle->offset, begin + 2 * kUnit);
  EXPECT_EQ(middle->bytes, 3 * kUnit);
  EXPECT_EQ(a.find(a.address(*middle)), middle);
  a.check();
  EXPECT_EQ(hole.cut(a, 4 * kUnit, 2 * kUnit), nullptr); // half of it is gone
  EXPECT_EQ(hole.cut(a, 7 * kUnit, 2 * kUnit), nullptr); // beyond the end
  Extent* const low = hole.cut(a, 0, 2 * kUnit);
  Extent* const high = hole.cut(a, 5 * kUnit, 3 * kUnit);
  ASSERT_TRUE(low != nullptr && high != nullptr);
  EXPECT_EQ(hole.cut(a, 0, kUnit), nullptr);
  a.check();
  // What comes back makes one piece with what is there.
  EXPECT_TRUE(hole.takeBack(a, low, {}));
  EXPECT_TRUE(hole.takeBack(a, high, {}));
  EXPECT_TRUE(hole.takeBack(a, middle, {}));
  a.check();
  Extent* const all = hole.cut(a, 0, 8 * kUnit);
  ASSERT_NE(all, nullptr);
  Extent* const other = inCall(kUnit);
  EXPECT_FALSE(hole.takeBack(a, other, {}));
  EXPECT_TRUE(hole.takeBack(a, all, {}));
  EXPECT_EQ(hole.release(a), 8 * kUnit);
  EXPECT_TRUE(hole.empty());
  a.free(other, {});
  EXPECT_EQ(a.usedBytes(), 0u);
  a.check();
}

// Work on what came back is waited for by whoever gets it next.
TEST_F(ReservedHoleTest, FencesAreKept) {
  Arena& a = make(kMiB);
  ReservedHole hole;
  hole.reserve(inCall(4 * kUnit));
  Extent* const part = hole.cut(a, 0, 2 * kUnit);
  static std::byte bytes[2];
  const runtime::Copy copy{bytes, bytes + 1, 1};
  const StreamIndex stream = lines.indexOf(FakeRuntime::compute(0));
  EXPECT_FALSE(runtime.copy(lines.stream(stream), {&copy, 1}));
  Fence work;
  work.add(lines.advance(stream));
  EXPECT_TRUE(hole.takeBack(a, part, work));
  EXPECT_EQ(hole.release(a), 4 * kUnit);
  const Extent* const next = inCall(kMiB);
  EXPECT_EQ(next->fence.slots()[0], work.slots()[0]);
}

// A hole of the span that a sequence needed holds every repetition of it, in
// whatever surroundings, and no other sequence harms anything.
TEST_F(ReservedHoleTest, RepeatedSequencesFit) {
  struct Step {
    std::size_t bytes; // 0: a free
    std::size_t which;
    bool kept; // becomes a block
  };
  for (std::uint32_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    std::vector<Step> steps;
    FirstFit learned;
    std::map<std::size_t, const std::byte*> live;
    static std::byte names[256];
    for (std::size_t i = 0; i < 60; ++i) {
      if (!live.empty() && random() % 2 == 0) {
        const auto at =
            std::next(live.begin(), static_cast<long>(random() % live.size()));
        steps.push_back({0, at->first, false});
        learned.remove(at->second);
        live.erase(at);
        continue;
      }
      const std::size_t bytes = (1 + random() % 24) * kUnit;
      const bool kept = random() % 8 == 0;
      steps.push_back({bytes, i, kept});
      learned.add(learned.find(bytes), bytes, names + i);
      if (!kept) live.emplace(i, names + i);
    }

    Arena& a = make(kMiB);
    std::vector<Block> blocks(64);
    std::vector<Extent*> around;
    for (std::size_t i = 0; i < 24; ++i) {
      around.push_back(a.allocate((1 + random() % 16) * kUnit,
                                  random() % 2 == 0 ? End::kTop : End::kBottom,
                                  ExtentUse::kBlock));
      around.back()->block = &blocks[i];
    }
    for (std::size_t i = 0; i < around.size(); i += 3) {
      a.free(around[i], {});
    }
    for (int round = 0; round < 4; ++round) {
      const bool same = round < 3;
      ReservedHole hole;
      hole.reserve(inCall(learned.span()));
      FirstFit layout;
      std::map<std::size_t, Extent*> mine;
      std::vector<Extent*> adopted;
      for (Step step : steps) {
        if (step.bytes == 0) {
          Extent* const extent = mine.at(step.which);
          mine.erase(step.which);
          if (extent == nullptr) continue;
          layout.remove(a.address(*extent));
          EXPECT_TRUE(hole.takeBack(a, extent, {}));
        } else {
          if (!same) step.bytes = (1 + random() % 24) * kUnit;
          const std::size_t offset = layout.find(step.bytes);
          Extent* const extent = hole.cut(a, offset, step.bytes);
          ASSERT_EQ(extent != nullptr, offset + step.bytes <= learned.span());
          mine[step.which] = extent;
          if (extent == nullptr) continue;
          layout.add(offset, step.bytes, a.address(*extent));
          if (step.kept) {
            a.adopt(extent, &blocks.back());
            adopted.push_back(extent);
          }
        }
        a.check();
      }
      EXPECT_TRUE(!same || layout.span() == learned.span());
      hole.release(a);
      for (const Step& step : steps) {
        if (step.bytes == 0 || step.kept) continue;
        const auto at = mine.find(step.which);
        if (at != mine.end() && at->second != nullptr) a.free(at->second, {});
      }
      for (Extent* extent : adopted) a.free(extent, {});
      EXPECT_EQ(a.inCallBytes(), 0u);
      a.check();
    }
  }
}

} // namespace
} // namespace chameleon::memory
