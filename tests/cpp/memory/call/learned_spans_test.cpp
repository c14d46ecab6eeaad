#include "memory/call/learned_spans.h"

#include <gtest/gtest.h>

namespace chameleon::memory {
namespace {

TEST(LearnedSpansTest, KeepsTheLargestOfEachOp) {
  constexpr std::size_t kUnit = ExtentMap::kAlignment;
  LearnedSpans spans;
  EXPECT_EQ(spans.find(7), 0u);
  spans.raise(7, 3 * kUnit);
  spans.raise(8, 5 * kUnit);
  spans.raise(7, 2 * kUnit);
  EXPECT_EQ(spans.find(7), 3 * kUnit);
  EXPECT_EQ(spans.find(8), 5 * kUnit);
  spans.raise(7, std::size_t{1} << 40);
  EXPECT_EQ(spans.find(7), std::size_t{1} << 40);
}

TEST(LearnedSpansTest, ForgetsRatherThanConfuses) {
  constexpr std::size_t kUnit = ExtentMap::kAlignment;
  LearnedSpans spans;
  for (profiler::QuickToken op = 1; op <= 100'000; ++op) {
    spans.raise(op, op * kUnit);
    ASSERT_EQ(spans.find(op), op * kUnit);
  }
  for (profiler::QuickToken op = 1; op <= 100'000; ++op) {
    const std::size_t span = spans.find(op);
    ASSERT_TRUE(span == 0 || span == op * kUnit) << op;
  }
}

} // namespace
} // namespace chameleon::memory
