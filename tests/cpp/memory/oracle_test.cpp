// The oracle: a trace that one run wrote is replayed by another one, which
// follows its plan from the first op on.
#include "memory/policy/oracle.h"

#include <cstdio>
#include <fstream>
#include <gtest/gtest.h>
#include <string>
#include <unistd.h>

#include "backend/runtime/options.h"
#include "miniature_training.h"
#include "profiler/cycle_builder.h"
#include "profiler/forecast.h"
#include "profiler/trace.h"
#include "profiler/trace_writer.h"

namespace chameleon::memory {
namespace {

constexpr std::size_t kLayers = 40;
constexpr std::size_t kBudget = 32 * kBytes;

class Oracle : public testing::Test {
 protected:
  void SetUp() override {
    file_ = testing::TempDir() + "oracle_" + std::to_string(getpid());
  }
  void TearDown() override {
    std::remove(file_.c_str());
    runtime::reset_options_for_testing();
  }

  void writeTrace(std::size_t layers) {
    Device device("lru", kBudget);
    Training training(*device.pager, layers);
    for (int i = 0; i < 4; ++i) training.step();
    profiler::Profiler& profiler = device.pager->profiler();
    profiler::CycleBuilder builder(profiler, device.pager->durations());
    const auto map =
        builder.build(profiler::Forecast(profiler).position().path);
    ASSERT_TRUE(map.has_value());
    const std::string text = profiler::write_trace(
        profiler::make_trace(*map, profiler::op_names(), {}));
    ASSERT_FALSE(profiler::write_file(file_, text));
    ASSERT_FALSE(runtime::set_option("oracle_trace", file_));
  }

  std::string file_;
};

TEST_F(Oracle, FollowsThePlanFromTheFirstOp) {
  writeTrace(kLayers);
  Device lru("lru", kBudget);
  Device oracle("oracle", kBudget);
  Stats first[2];
  Stats later[2];
  for (Device* device : {&lru, &oracle}) {
    Training training(*device->pager, kLayers);
    const int which = device == &lru ? 0 : 1;
    device->pager->resetStats();
    training.step();
    first[which] = device->pager->stats();
    device->pager->resetStats();
    for (int i = 0; i < 4; ++i) training.step();
    later[which] = device->pager->stats();
    device->pager->checkInvariants(3);
  }
  // A block is first seen where it is first used: weights that did not fit
  // when they were written fault once each.
  EXPECT_GT(first[0].faults, 60);
  EXPECT_LE(first[1].faults, static_cast<std::int64_t>(kLayers));
  EXPECT_GT(first[1].prefetched_bytes / std::int64_t{kBytes}, 30);
  EXPECT_GT(first[1].clean_evictions, first[0].clean_evictions);
  EXPECT_LE(20 * later[1].faults, later[0].faults);
}

TEST_F(Oracle, AnotherBudgetIsPlannedForAtOnce) {
  writeTrace(kLayers);
  Device device("lru", 2 * kBudget);
  Training training(*device.pager, kLayers);
  ASSERT_FALSE(device.pager->setPolicy("oracle"));
  training.step();
  for (const std::size_t budget : {kBudget, 2 * kBudget, kBudget}) {
    ASSERT_FALSE(device.pager->setHbmBudget(budget));
    device.pager->resetStats();
    for (int i = 0; i < 2; ++i) training.step();
    EXPECT_GT(device.pager->stats().prefetched_bytes, 0);
    device.pager->checkInvariants(3);
  }
}

TEST_F(Oracle, AnotherStepIsLearned) {
  writeTrace(kLayers / 2); // fewer layers
  Device device("oracle", kBudget);
  Training training(*device.pager, kLayers);
  for (int i = 0; i < 8; ++i) training.step();
  device.pager->checkInvariants(3);
  const auto state = device.pager->profiler().state();
  device.pager->resetStats();
  training.step();
  EXPECT_EQ(device.pager->profiler().state().forecast_misses,
            state.forecast_misses);
}

TEST_F(Oracle, NeedsATrace) {
  Device device("lru", kBudget);
  const auto problem = [&] {
    return std::string(device.pager->setPolicy("oracle").message());
  };
  EXPECT_NE(problem().find("oracle_trace"), std::string::npos);
  ASSERT_FALSE(runtime::set_option("oracle_trace", file_ + ".missing"));
  EXPECT_NE(problem().find(".missing"), std::string::npos) << problem();
  std::ofstream(file_) << "no trace\n";
  ASSERT_FALSE(runtime::set_option("oracle_trace", file_));
  EXPECT_NE(problem().find("line 1"), std::string::npos) << problem();
  // What was in force stays.
  Training training(*device.pager, kLayers);
  training.step();
}

} // namespace
} // namespace chameleon::memory
