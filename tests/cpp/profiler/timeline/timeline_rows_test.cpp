#include "profiler/timeline/timeline_rows.h"

#include <gtest/gtest.h>
#include <string>
#include <vector>

#include "profiler/timeline/timeline_writer.h"

namespace chameleon::profiler {
namespace {

using Rows = std::vector<std::size_t>;

Interval in_lane(Lane lane, std::int64_t begin_ns, std::int64_t end_ns) {
  return {lane, kNoOpName, begin_ns, end_ns, 0};
}

TEST(TimelineRows, WhatFollowsAtOnceShares) {
  const std::vector<Interval> intervals = {in_lane(Lane::kCompute, 0, 10),
                                           in_lane(Lane::kCompute, 10, 20),
                                           in_lane(Lane::kIn, 5, 15)};
  const TimelineRows rows = timeline_rows(intervals);
  EXPECT_EQ(rows.of, (Rows{0, 0, 0}));
  EXPECT_EQ(rows.counts[static_cast<std::size_t>(Lane::kCompute)], 1U);
  EXPECT_EQ(rows.counts[static_cast<std::size_t>(Lane::kOut)], 1U);
}

TEST(TimelineRows, WhatOverlapsGoesApart) {
  // Added in the order in which they ended.
  const std::vector<Interval> intervals = {
      in_lane(Lane::kCompute, 5, 12), in_lane(Lane::kCompute, 0, 20),
      in_lane(Lane::kCompute, 11, 21), in_lane(Lane::kCompute, 21, 22)};
  const TimelineRows rows = timeline_rows(intervals);
  EXPECT_EQ(rows.of, (Rows{1, 0, 2, 0}));
  EXPECT_EQ(rows.counts[static_cast<std::size_t>(Lane::kCompute)], 3U);
}

TEST(TimelineRows, MomentsShare) {
  const std::vector<Interval> intervals(3, in_lane(Lane::kDecisions, 7, 7));
  EXPECT_EQ(timeline_rows(intervals).of, (Rows{0, 0, 0}));
}

TEST(TimelineRows, NumbersAndNames) {
  EXPECT_EQ(row_number(Lane::kCompute, 0), 0U);
  EXPECT_EQ(row_number(Lane::kOut, 1), kLanes + 2);
  EXPECT_EQ(row_name(Lane::kOut, 0), "out");
  EXPECT_EQ(row_name(Lane::kOut, 1), "out (2)");
}

TEST(TimelineRows, AreThreadsInTheFile) {
  const std::vector<Interval> intervals = {in_lane(Lane::kIn, 0, 2000),
                                           in_lane(Lane::kIn, 1000, 3000)};
  const std::string text = write_timeline(intervals, OpNames());
  const auto has = [&](const char* part) {
    return text.find(part) != std::string::npos;
  };
  EXPECT_TRUE(has(R"("tid":2,"ts":0.000,"dur":2.000)"));
  EXPECT_TRUE(has(R"("tid":9,"ts":1.000,"dur":2.000)"));
  EXPECT_TRUE(
      has(R"x("tid":9,"name":"thread_name","args":{"name":"in (2)"})x"));
  EXPECT_TRUE(
      has(R"("tid":9,"name":"thread_sort_index","args":{"sort_index":3})"));
  EXPECT_TRUE(
      has(R"("tid":3,"name":"thread_sort_index","args":{"sort_index":4})"));
}

} // namespace
} // namespace chameleon::profiler
