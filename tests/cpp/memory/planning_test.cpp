// The planning thread beside a run: the ops neither wait for it nor it for
// them, and what both keep is small.
#include <gtest/gtest.h>

#include "miniature_training.h"

namespace chameleon::memory {
namespace {

constexpr std::size_t kLayers = 40;
constexpr std::size_t kBudget = 32 * kBytes;

TEST(Planning, OpsNeverWaitForIt) {
  Device device("forecast", kBudget);
  Training training(*device.pager, kLayers);
  // Each budget is planned for anew, while steps go on.
  for (std::size_t i = 0; i < 60; ++i) {
    ASSERT_FALSE(device.pager->setHbmBudget(kBudget + i * kBytes / 4));
    for (int step = 0; step < 3; ++step) training.step();
  }
  EXPECT_GT(device.pager->policyCosts().plans_made, 10U);
  EXPECT_EQ(device.pager->profiler().state().lock_waits, 0U);
  EXPECT_EQ(device.pager->durations().lockWaits(), 0U);
}

} // namespace
} // namespace chameleon::memory
