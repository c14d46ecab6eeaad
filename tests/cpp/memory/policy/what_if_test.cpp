#include "memory/policy/what_if.h"

#include <array>
#include <gtest/gtest.h>
#include <limits>
#include <string>

#include "profiler/trace/trace_reader.h"
#include "tests/cpp/memory/policy/residual_network.h"

namespace chameleon::memory {
namespace {

using profiler::Trace;

constexpr std::uint64_t kMega = 1000000;

// Two values of 100 MB are used in turn, for 1 ms each; a link of 50 GB/s
// takes 2 ms for one of them. One op needs one.
std::string turns(const char* header) {
  return std::string(header) + R"(
{"op":"a","t":0,"dur_ns":1000000,"in":[[1,100000000]],"out":[],"write":[],"free":[]}
{"op":"b","t":0,"dur_ns":1000000,"in":[[2,100000000]],"out":[],"write":[],"free":[]}
{"step":1}
)";
}
constexpr char kHeader[] =
    R"({"trace":1,"name":"hand","hbm_budget":0,"bw_in":5e10,"bw_out":5e10,"bw_both":9e10,"copy_latency_ns":0})";

Trace read(const char* header) {
  return profiler::read_trace(turns(header)).value();
}

TEST(WhatIf, RoomForEverythingTakesTheComputeTime) {
  const std::array<std::uint64_t, 1> budgets{200 * kMega};
  const WhatIf answer = what_if(read(kHeader), budgets).value();
  EXPECT_EQ(answer.peak_bytes, 200 * kMega);
  EXPECT_EQ(answer.largest_op, 100 * kMega);
  EXPECT_EQ(answer.compute_ns, 2e6);
  ASSERT_EQ(answer.steps.size(), 1u);
  EXPECT_EQ(answer.steps[0].duration_ns, 2e6);
  EXPECT_EQ(answer.steps[0].bytes_in, 0u);
}

TEST(WhatIf, WithRoomForOneBothComeInEveryStep) {
  const std::array<std::uint64_t, 1> budgets{100 * kMega};
  const WhatIf answer = what_if(read(kHeader), budgets).value();
  EXPECT_EQ(answer.steps[0].duration_ns, 6e6);
  EXPECT_EQ(answer.steps[0].bytes_in, 200 * kMega);
  EXPECT_EQ(answer.steps[0].bytes_out, 0u); // they are never written
}

TEST(WhatIf, ALinkTwiceAsFastTakesHalfOfTheTime) {
  const std::array<std::uint64_t, 1> budgets{100 * kMega};
  const WhatIf answer = what_if(read(kHeader), budgets, 2).value();
  EXPECT_EQ(answer.steps[0].duration_ns, 4e6);
}

TEST(WhatIf, SoHasTheTracesLink) {
  const auto with = [](const char* rate) {
    return profiler::read_trace(turns(
        (std::string(R"({"trace":1,"name":"hand","hbm_budget":0,"bw_in":)") +
         rate + R"(,"bw_out":5e10,"bw_both":9e10,"copy_latency_ns":0})")
            .c_str()));
  };
  for (const char* rate : {"1", "9e17"}) EXPECT_TRUE(with(rate).ok()) << rate;
  for (const char* rate : {"1e-300", "0.5", "-1", "1e18"}) {
    EXPECT_FALSE(with(rate).ok()) << rate;
  }
}

TEST(WhatIf, TheFactorHasLimits) {
  const std::array<std::uint64_t, 1> budgets{100 * kMega};
  const Trace trace = read(kHeader);
  for (const double factor : {1e-6, 1e6}) {
    EXPECT_TRUE(what_if(trace, budgets, factor).ok()) << factor;
  }
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  for (const double factor :
       {0.0, -1.0, 9e-7, 2e6, 1e300, 1e-320, kInfinity, -kInfinity, kNaN}) {
    const auto answer = what_if(trace, budgets, factor);
    ASSERT_FALSE(answer.ok()) << factor;
    EXPECT_EQ(answer.error().code(), runtime::ErrorCode::kInvalidArgument);
  }
}

TEST(WhatIf, WhatDoesNotFitTakesNoTime) {
  const std::array<std::uint64_t, 2> budgets{99 * kMega, 100 * kMega};
  const WhatIf answer = what_if(read(kHeader), budgets).value();
  EXPECT_EQ(answer.steps[0].duration_ns, 0);
  EXPECT_EQ(answer.steps[1].duration_ns, 6e6);
}

TEST(WhatIf, ATraceWithoutALinkIsRefused) {
  const auto answer = what_if(
      read(
          R"({"trace":1,"name":"hand","hbm_budget":0,"bw_in":0,"bw_out":0,"bw_both":0,"copy_latency_ns":0})"),
      {});
  ASSERT_FALSE(answer.ok());
  EXPECT_NE(answer.error().message().find("how fast the link is"),
            std::string::npos);
}

// Of a step as it runs: as plan_search_test and joint_planner_test have it.
TEST(WhatIf, AsItShipsOpsRunAgain) {
  profiler::CycleMap map;
  map.cycle = residual_network(12);
  const LinkModel link{10, 10, 20, 1};
  const WhatIf whole = what_if(map, link, true, {});
  EXPECT_TRUE(whole.steps.empty());
  const std::array<std::uint64_t, 3> budgets{
      whole.largest_op - 1, whole.peak_bytes / 2, 2 * whole.peak_bytes};
  const WhatIf swapping = what_if(map, link, false, budgets);
  const WhatIf both = what_if(map, link, true, budgets);
  ASSERT_EQ(both.steps.size(), budgets.size());
  for (const WhatIf& answer : {swapping, both}) {
    EXPECT_EQ(answer.compute_ns, whole.compute_ns);
    EXPECT_EQ(answer.steps[0].duration_ns, 0); // it does not fit
    EXPECT_EQ(answer.steps[2].duration_ns, whole.compute_ns);
  }
  EXPECT_EQ(swapping.steps[1].compute_ns, whole.compute_ns);
  EXPECT_GT(both.steps[1].compute_ns, whole.compute_ns);
  EXPECT_LT(both.steps[1].duration_ns, swapping.steps[1].duration_ns);
  EXPECT_LT(both.steps[1].bytes_in, swapping.steps[1].bytes_in);
}

} // namespace
} // namespace chameleon::memory
