#include "memory/policy/mirror_rate.h"

#include <gtest/gtest.h>

namespace chameleon::memory {
namespace {

// A commit after so many steps; it is over before the next step's end.
void commit(MirrorRate& rate, int steps, std::int64_t sent_bytes) {
  for (int step = 0; step < steps; ++step) rate.stepEnded();
  rate.commitBegins();
  rate.commitEnded(sent_bytes);
}

TEST(MirrorRate, NothingUntilThereIsACommit) {
  MirrorRate rate;
  for (int step = 0; step < 5; ++step) rate.stepEnded();
  EXPECT_EQ(rate.bytesPerStep(), 0);
}

TEST(MirrorRate, ACommitCountsForTheStepsBeforeIt) {
  MirrorRate rate;
  commit(rate, 1, 600);
  EXPECT_EQ(rate.bytesPerStep(), 600);
  commit(rate, 1, 400);
  EXPECT_EQ(rate.bytesPerStep(), 400);
  commit(rate, 4, 800); // every fourth from here on
  EXPECT_EQ(rate.bytesPerStep(), 200);
  for (int step = 0; step < 4; ++step) {
    rate.stepEnded();
    EXPECT_EQ(rate.bytesPerStep(), 200);
  }
}

// Whenever in its steps it is over.
TEST(MirrorRate, IsThatOfWhatBeganRegularly) {
  MirrorRate rate;
  commit(rate, 1, 600);
  for (int i = 0; i < 6; ++i) {
    rate.stepEnded();
    rate.commitBegins();
    rate.stepEnded();
    rate.commitEnded(300);
    EXPECT_EQ(rate.bytesPerStep(), 300);
    rate.commitBegins();
    rate.commitEnded(300);
    EXPECT_EQ(rate.bytesPerStep(), 300);
  }
}

TEST(MirrorRate, WhereNoneComesTheLastOneCountsForMoreSteps) {
  MirrorRate rate;
  commit(rate, 1, 600);
  for (int step = 0; step < 6; ++step) rate.stepEnded();
  EXPECT_EQ(rate.bytesPerStep(), 100);
}

} // namespace
} // namespace chameleon::memory
