#include "memory/policy/mirror_rate.h"

#include <gtest/gtest.h>

namespace chameleon::memory {
namespace {

TEST(MirrorRate, NothingUntilThereIsACommit) {
  MirrorRate rate;
  for (int step = 0; step < 5; ++step) rate.stepEnded(0);
  EXPECT_EQ(rate.bytesPerStep(), 0);
}

TEST(MirrorRate, ACommitCountsForTheStepsBeforeIt) {
  MirrorRate rate;
  rate.stepEnded(600);
  EXPECT_EQ(rate.bytesPerStep(), 600);
  rate.stepEnded(1000);
  EXPECT_EQ(rate.bytesPerStep(), 400);
  for (int step = 0; step < 3; ++step) rate.stepEnded(1000);
  rate.stepEnded(1800); // every fourth from here on
  EXPECT_EQ(rate.bytesPerStep(), 200);
  for (int step = 0; step < 3; ++step) {
    rate.stepEnded(1800);
    EXPECT_EQ(rate.bytesPerStep(), 200);
  }
}

TEST(MirrorRate, WhereNoneComesTheLastOneCountsForMoreSteps) {
  MirrorRate rate;
  rate.stepEnded(600);
  for (int step = 0; step < 6; ++step) rate.stepEnded(600);
  EXPECT_EQ(rate.bytesPerStep(), 100);
}

TEST(MirrorRate, CountsMayGoToZero) {
  MirrorRate rate;
  for (int step = 0; step < 4; ++step) {
    rate.stepEnded(600);
    EXPECT_EQ(rate.bytesPerStep(), 600);
    rate.rebase(600);
  }
}

} // namespace
} // namespace chameleon::memory
