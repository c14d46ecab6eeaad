#include "memory/space/first_fit.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <random>
#include <string>
#include <vector>

namespace chameleon::memory {
namespace {

constexpr std::size_t kUnit = 512;

const std::byte* name(std::size_t number) {
  static std::byte names[4096];
  return names + number;
}

std::size_t allocate(FirstFit& layout, std::size_t bytes, std::size_t number) {
  const std::size_t offset = layout.find(bytes);
  layout.add(offset, bytes, name(number));
  return offset;
}

TEST(FirstFitTest, TakesTheLowestGapThatFits) {
  FirstFit layout;
  EXPECT_EQ(layout.span(), 0u);
  EXPECT_EQ(allocate(layout, 2 * kUnit, 0), 0u);
  EXPECT_EQ(allocate(layout, kUnit, 1), 2 * kUnit);
  EXPECT_EQ(allocate(layout, 3 * kUnit, 2), 3 * kUnit);
  EXPECT_EQ(allocate(layout, kUnit, 3), 6 * kUnit);
  EXPECT_EQ(layout.span(), 7 * kUnit);
  layout.remove(name(0));
  layout.remove(name(2));
  EXPECT_EQ(allocate(layout, 3 * kUnit, 4), 3 * kUnit); // the first is short
  EXPECT_EQ(allocate(layout, kUnit, 5), 0u);
  EXPECT_EQ(allocate(layout, kUnit, 6), kUnit);
  EXPECT_EQ(layout.span(), 7 * kUnit);
  EXPECT_EQ(layout.find(4 * kUnit), 7 * kUnit); // it may fail; it was needed
  EXPECT_EQ(layout.span(), 11 * kUnit);
  layout.remove(name(99)); // not one of these
  layout.clear();
  EXPECT_EQ(layout.span(), 0u);
  EXPECT_EQ(allocate(layout, kUnit, 0), 0u);
}

// Against a map of units; the same sequence lies the same way every time.
TEST(FirstFitTest, RandomSequences) {
  for (std::uint32_t seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::vector<std::size_t> offsets[2];
    std::size_t spans[2];
    for (int round = 0; round < 2; ++round) {
      std::mt19937 random(seed);
      FirstFit layout;
      std::vector<char> used(4096);
      struct Live {
        std::size_t number, first, units;
      };
      std::vector<Live> live;
      std::size_t live_units = 0;
      std::size_t peak_units = 0;
      for (std::size_t step = 0; step < 300; ++step) {
        if (!live.empty() && random() % 2 == 0) {
          std::swap(live[random() % live.size()], live.back());
          const Live gone = live.back();
          live.pop_back();
          live_units -= gone.units;
          std::fill_n(used.begin() + static_cast<long>(gone.first), gone.units,
                      0);
          layout.remove(name(gone.number));
          continue;
        }
        const std::size_t units = 1 + random() % 16;
        const auto at =
            std::search_n(used.begin(), used.end(), static_cast<int>(units), 0);
        const std::size_t offset = allocate(layout, units * kUnit, step);
        ASSERT_EQ(offset, static_cast<std::size_t>(at - used.begin()) * kUnit);
        std::fill_n(at, units, 1);
        live.push_back({step, offset / kUnit, units});
        live_units += units;
        peak_units = std::max(peak_units, live_units);
        offsets[round].push_back(offset);
        ASSERT_GE(layout.span(), offset + units * kUnit);
      }
      EXPECT_GE(layout.span(), peak_units * kUnit);
      spans[round] = layout.span();
    }
    EXPECT_EQ(offsets[0], offsets[1]);
    EXPECT_EQ(spans[0], spans[1]);
  }
}

} // namespace
} // namespace chameleon::memory
