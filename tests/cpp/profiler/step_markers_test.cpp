#include "profiler/step_markers.h"

#include <gtest/gtest.h>

namespace chameleon::profiler {
namespace {

TEST(StepMarkers, DecideOnceThereAreAny) {
  StepMarkers markers;
  EXPECT_FALSE(markers.used());
  EXPECT_FALSE(markers.decide(0));
  EXPECT_FALSE(markers.decide(1000));
  markers.mark(1000);
  EXPECT_TRUE(markers.used());
  EXPECT_TRUE(markers.decide(1000));
  EXPECT_TRUE(markers.decide(2000));
}

// A program that trained with step() goes on without it.
TEST(StepMarkers, DecideNoMoreWhereNoneComesForLong) {
  StepMarkers markers;
  constexpr std::uint64_t kStep = 1 << 20;
  markers.mark(kStep);
  markers.mark(2 * kStep);
  EXPECT_TRUE(markers.decide(6 * kStep));
  EXPECT_FALSE(markers.decide(7 * kStep));
  markers.mark(7 * kStep); // it was one long step after all
  EXPECT_TRUE(markers.decide(8 * kStep));
}

} // namespace
} // namespace chameleon::profiler
