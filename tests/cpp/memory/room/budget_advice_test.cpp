// The budget that an error names, by hand.
#include "memory/room/budget_advice.h"

#include <gtest/gtest.h>

namespace chameleon::memory {
namespace {

TEST(BudgetAdviceTest, IsTheSumWhereNothingIsPinned) {
  EXPECT_EQ(budget_for({3, 7, 5}, {}), 15u);
}

TEST(BudgetAdviceTest, CountsWhatIsPinnedAtTheBottom) {
  const PinnedRange pinned[] = {{0, 4}};
  EXPECT_EQ(budget_for({3, 7}, pinned), 14u);
}

TEST(BudgetAdviceTest, FillsTheGapsFirst) {
  const PinnedRange pinned[] = {{10, 2}, {20, 1}};
  EXPECT_EQ(budget_for({2, 7, 8}, pinned), 21u); // 8 and 2, then 7
}

TEST(BudgetAdviceTest, GoesBeyondWhatSplitsTheBudget) {
  // As many bytes are free below, but in two pieces.
  const PinnedRange pinned[] = {{9, 2}};
  EXPECT_EQ(budget_for({10, 10}, pinned), 31u);
  EXPECT_EQ(budget_for({10, 9}, pinned), 21u);
}

} // namespace
} // namespace chameleon::memory
