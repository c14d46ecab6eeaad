#include "backend/runtime/cpu/range_set.h"

#include <bitset>
#include <gtest/gtest.h>
#include <random>

namespace chameleon::runtime {
namespace {

TEST(RangeSet, CoalescesAndSplits) {
  RangeSet set;
  set.add({10, 20});
  set.add({30, 40});
  EXPECT_EQ(set.rangeCount(), 2u);
  set.add({20, 30});
  EXPECT_EQ(set.rangeCount(), 1u);
  EXPECT_EQ(set.rangeAround({15, 35}).begin, 10u);
  EXPECT_EQ(set.rangeAround({15, 35}).end, 40u);
  set.remove({12, 38});
  EXPECT_EQ(set.rangeCount(), 2u);
  EXPECT_TRUE(set.overlaps({0, 11}));
  EXPECT_FALSE(set.overlaps({12, 38}));
  EXPECT_TRUE(set.overlaps({38, 39}));
  set.add({5, 5}); // empty
  set.remove({0, 100});
  EXPECT_TRUE(set.empty());
}

TEST(RangeSet, AgreesWithABitmap) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  constexpr std::size_t kBytes = 128;
  RangeSet set;
  std::bitset<kBytes + 1> model;
  for (int step = 0; step < 5000; ++step) {
    Interval interval{random() % kBytes, random() % kBytes};
    if (interval.end < interval.begin) std::swap(interval.begin, interval.end);
    if (random() % 2 == 0 || interval.end - interval.begin > 20) {
      set.remove(interval);
      for (auto b = interval.begin; b < interval.end; ++b) model.reset(b);
    } else {
      set.add(interval);
      for (auto b = interval.begin; b < interval.end; ++b) model.set(b);
    }
    std::size_t ranges = 0;
    for (std::size_t b = 0; b < kBytes; ++b) {
      ASSERT_EQ(set.overlaps({b, b + 1}), model[b]) << step;
      if (model[b] && !model[b + 1]) ++ranges;
    }
    ASSERT_EQ(set.rangeCount(), ranges);
  }
}

} // namespace
} // namespace chameleon::runtime
