// What counts as not expected, and what is said of it.
#include "profiler/divergence_log.h"

#include <gtest/gtest.h>
#include <string>

#include "tests/cpp/profiler/op_driver.h"

namespace chameleon::profiler {
namespace {

// n ops on n weights, and a chain of transients.
void chain(OpDriver& driver, int n, int skip = -1) {
  driver.op("load", {}, {"x"});
  for (int i = 0; i < n; ++i) {
    if (i == skip) continue;
    driver.op("mm", {"x", "w" + std::to_string(i)}, {"x"});
  }
}

class DivergenceLogTest : public testing::Test {
 protected:
  static constexpr int kOps = 20;
  void SetUp() override {
    for (int i = 0; i < kOps; ++i) {
      driver_.create("w" + std::to_string(i), 4096);
    }
    driver_.create("other", 4096);
    driver_.create("large", 8192);
    for (int i = 0; i < 6; ++i) {
      chain(driver_, kOps);
      driver_.profiler.step();
    }
    EXPECT_EQ(driver_.endStep().misses, kOps + 1U);
  }
  const Divergence last() const {
    return driver_.profiler.state().last_divergence;
  }
  OpDriver driver_;
};

TEST_F(DivergenceLogTest, AnotherBlockOfTheSameSizeIsADivergence) {
  driver_.op("load", {}, {"x"});
  EXPECT_TRUE(driver_.op("mm", {"x", "w0"}, {"x"}));
  EXPECT_FALSE(driver_.op("mm", {"x", "other"}, {"x"}));
  EXPECT_EQ(last().kind, DivergenceKind::kOperand);
  EXPECT_EQ(last().position, 2U);
  EXPECT_EQ(driver_.names.name(last().seen_op), "mm");
  EXPECT_EQ(last().expected_token, last().seen_token);
  // It goes on where it was.
  EXPECT_TRUE(driver_.op("mm", {"x", "w1"}, {"x"}));
}

TEST_F(DivergenceLogTest, AnotherOpIsADivergence) {
  driver_.op("load", {}, {"x"});
  EXPECT_FALSE(driver_.op("add", {"x", "w0"}, {"x"}));
  EXPECT_EQ(last().kind, DivergenceKind::kOp);
  EXPECT_EQ(driver_.names.name(last().seen_op), "add");
  EXPECT_EQ(driver_.names.name(last().expected_op), "mm");
  EXPECT_EQ(last().op, driver_.profiler.opCount() - 1);
}

TEST_F(DivergenceLogTest, OperandsInAnotherOrderAreADivergence) {
  driver_.op("load", {}, {"x"});
  EXPECT_FALSE(driver_.op("mm", {"w0", "x"}, {"x"}));
  EXPECT_EQ(last().kind, DivergenceKind::kOperand);
}

TEST_F(DivergenceLogTest, AnotherResultSizeIsADivergence) {
  driver_.op("load", {}, {"x"});
  EXPECT_TRUE(driver_.op("mm", {"x", "w0"}, {"x"}, 8192));
  EXPECT_EQ(last().kind, DivergenceKind::kResult);
  EXPECT_EQ(last().position, 1U);
}

TEST_F(DivergenceLogTest, MoreResultsThanBeforeAreADivergence) {
  driver_.op("load", {}, {"x"});
  EXPECT_TRUE(driver_.op("mm", {"x", "w0"}, {"x", "y"}));
  EXPECT_EQ(last().kind, DivergenceKind::kResult);
  driver_.op("mm", {"y", "w1"}, {"x"});
  chain(driver_, kOps);
}

TEST_F(DivergenceLogTest, OmittedAndInsertedOpsCostOneOp) {
  chain(driver_, kOps, /*skip=*/7);
  driver_.profiler.step();
  EXPECT_EQ(driver_.endStep().misses, 1U);
  chain(driver_, kOps);
  EXPECT_LE(driver_.endStep().misses, 1U);
  driver_.op("relu", {"other"}, {"y"});
  driver_.profiler.step();
  EXPECT_EQ(driver_.endStep().misses, 1U);
}

TEST_F(DivergenceLogTest, AnEarlyStepMarkIsReported) {
  driver_.op("load", {}, {"x"});
  driver_.profiler.step();
  EXPECT_EQ(last().kind, DivergenceKind::kNewRound);
  EXPECT_EQ(last().position, 1U);
  EXPECT_EQ(to_string(last().kind), "ended early");
}

TEST_F(DivergenceLogTest, StateSaysWhatIsMatched) {
  ProfilerState state = driver_.profiler.state();
  EXPECT_EQ(state.matching, Matching::kFollowing);
  EXPECT_EQ(state.position, 0U);
  EXPECT_EQ(state.path_ops, kOps + 1U);
  EXPECT_TRUE(state.marked);
  EXPECT_EQ(state.ops, 6U * (kOps + 1));
  EXPECT_EQ(state.forecast_misses, kOps + 1U);
  EXPECT_EQ(state.forecast_hits + state.forecast_misses, state.ops);
  for (int i = 0; i < 8; ++i) {
    driver_.op("never" + std::to_string(i), {"other"}, {"y"});
  }
  EXPECT_EQ(driver_.profiler.state().matching, Matching::kUnknown);
}

} // namespace
} // namespace chameleon::profiler
