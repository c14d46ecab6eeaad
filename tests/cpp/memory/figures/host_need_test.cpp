#include "memory/figures/host_need.h"

#include <gtest/gtest.h>

namespace chameleon::memory {
namespace {

void steps(HostNeed& need, int count, std::size_t peak_bytes) {
  for (int i = 0; i < count; ++i) need.stepEnded(peak_bytes);
}

TEST(HostNeed, IsNotKnownBeforeAFewStepsEnded) {
  HostNeed need;
  steps(need, 3, 16);
  EXPECT_EQ(need.bytes(), SIZE_MAX);
  need.stepEnded(16);
  EXPECT_EQ(need.bytes(), 17u);
}

TEST(HostNeed, ForgetsWhatTheFirstStepsTook) {
  HostNeed need;
  steps(need, 1, 1600);
  steps(need, 3, 160);
  EXPECT_EQ(need.bytes(), 1700u);
  steps(need, 4, 160);
  EXPECT_EQ(need.bytes(), 170u);
  steps(need, 8, 0); // nothing moves any more
  EXPECT_EQ(need.bytes(), 0u);
}

// Like a validation pass every tenth step.
TEST(HostNeed, WhatComesBackAgainAndAgainIsKept) {
  HostNeed need;
  int too_little = 0;
  for (int i = 0; i < 400; ++i) {
    const std::size_t peak_bytes = i % 10 == 9 ? 800 : 80;
    if (i > 0 && peak_bytes > need.bytes()) ++too_little;
    need.stepEnded(peak_bytes);
  }
  EXPECT_LE(too_little, 3);
  EXPECT_EQ(need.bytes(), 850u);
}

} // namespace
} // namespace chameleon::memory
