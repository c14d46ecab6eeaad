#include "profiler/timeline/timeline.h"

#include <gtest/gtest.h>
#include <thread>
#include <vector>

#include "profiler/timeline/timeline_writer.h"

namespace chameleon::profiler {
namespace {

constexpr std::uint32_t kNoOp = ~std::uint32_t{0};

TEST(Timeline, IsOffUntilStarted) {
  Timeline timeline(4);
  timeline.add({Lane::kIn, kNoOp, 1, 2, 3});
  EXPECT_TRUE(timeline.intervals().empty());
  timeline.start();
  timeline.add({Lane::kIn, kNoOp, 1, 2, 3});
  EXPECT_EQ(timeline.intervals().size(), 1U);
  timeline.stop();
  timeline.add({Lane::kIn, kNoOp, 1, 2, 3});
  EXPECT_EQ(timeline.intervals().size(), 1U);
  timeline.start();
  EXPECT_TRUE(timeline.intervals().empty());
}

TEST(Timeline, KeepsTheLatest) {
  Timeline timeline(4);
  timeline.start();
  for (int i = 0; i < 11; ++i) timeline.add({Lane::kCompute, 0, i, i + 1, 0});
  const auto list = timeline.intervals();
  ASSERT_EQ(list.size(), 4U);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(list[i].begin_ns, static_cast<std::int64_t>(7 + i));
  }
  EXPECT_EQ(timeline.dropped(), 7U);
}

TEST(Timeline, ManyThreads) {
  Timeline timeline(64);
  timeline.start();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 500; ++i) timeline.add({Lane::kOut, 0, i, i, 1});
      (void)timeline.intervals();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(timeline.dropped(), 4U * 500 - 64);
}

TEST(TimelineWriter, OneLaneAThread) {
  OpNames names;
  const std::uint32_t mm = names.add("aten::\"mm\"");
  const std::vector<Interval> intervals = {
      {Lane::kCompute, mm, 1'000'000, 1'002'500, 0},
      {Lane::kStalls, kNoOp, 1'000'500, 1'000'501, 0},
      {Lane::kIn, kNoOp, 999'000, 1'001'000, 4096},
  };
  const std::string text = write_timeline(intervals, names);
  const auto has = [&](const char* part) {
    return text.find(part) != std::string::npos;
  };
  EXPECT_TRUE(has(R"("name":"thread_name","args":{"name":"compute"})"));
  EXPECT_TRUE(has(R"("name":"thread_name","args":{"name":"re-runs"})"));
  EXPECT_TRUE(has(R"({"ph":"X","pid":1,"tid":1,"ts":1.000,"dur":2.500,)"
                  R"("name":"aten::\"mm\""})"));
  EXPECT_TRUE(has(R"({"ph":"X","pid":1,"tid":6,"ts":1.500,"dur":0.001,)"
                  R"("name":"stalls"})"));
  EXPECT_TRUE(has(R"("tid":2,"ts":0.000,"dur":2.000,"name":"in",)"
                  R"("args":{"bytes":4096}})"));
  EXPECT_EQ(text.substr(0, 42),
            "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n{\"");
}

} // namespace
} // namespace chameleon::profiler
