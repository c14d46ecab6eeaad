#include "profiler/shape_variant.h"

#include <gtest/gtest.h>

namespace chameleon::profiler {
namespace {

TEST(ShapeVariant, SizesAreNearWithinAQuarter) {
  ShapeVariant variant;
  EXPECT_TRUE(variant.sizesAreNear()); // nothing was weighed
  variant.beginWeighing(300);
  EXPECT_TRUE(variant.sizesAreNear());
  variant.weigh(200, 100); // 500 for 400
  EXPECT_TRUE(variant.sizesAreNear());
  variant.weigh(1, 0);
  EXPECT_FALSE(variant.sizesAreNear());
  variant.weigh(0, 201); // 501 for 601
  EXPECT_TRUE(variant.sizesAreNear());
  variant.weigh(0, 100); // 501 for 701
  EXPECT_FALSE(variant.sizesAreNear());
}

TEST(ShapeVariant, AWholeRoundIsOneFromItsBeginningOn) {
  ShapeVariant variant;
  variant.follow(true);
  EXPECT_TRUE(variant.isFollowed());
  EXPECT_FALSE(variant.isWholeRound());
  variant.beginRound(100);
  EXPECT_TRUE(variant.isWholeRound());
  EXPECT_TRUE(variant.sizesAreNear());
  variant.leave();
  EXPECT_FALSE(variant.isFollowed());
  EXPECT_FALSE(variant.isWholeRound());
}

TEST(ShapeVariant, RemembersTheLatestRounds) {
  ShapeVariant variant;
  constexpr Token kRounds = 300; // of which it remembers 256
  for (Token tokens = 1; tokens <= kRounds; ++tokens) {
    EXPECT_FALSE(variant.cameBefore(tokens));
    EXPECT_TRUE(variant.cameBefore(tokens));
  }
  EXPECT_TRUE(variant.cameBefore(kRounds - 255));
  EXPECT_FALSE(variant.cameBefore(1));
}

} // namespace
} // namespace chameleon::profiler
