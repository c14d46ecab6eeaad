#include "profiler/memory_history.h"

#include <gtest/gtest.h>
#include <thread>
#include <vector>

namespace chameleon::profiler {
namespace {

MemoryHistory::Sample sample(std::size_t n) {
  return {static_cast<std::int64_t>(n), n, n / 2, n / 4};
}

TEST(MemoryHistory, IsOffUntilStarted) {
  MemoryHistory history;
  EXPECT_FALSE(history.recording());
  history.start();
  EXPECT_TRUE(history.recording());
  EXPECT_TRUE(history.samples().empty());
}

TEST(MemoryHistory, KeepsEverySampleThatFits) {
  MemoryHistory history;
  history.start();
  for (std::size_t i = 0; i < MemoryHistory::kCapacity; ++i) {
    history.add(sample(i));
  }
  const auto samples = history.samples();
  ASSERT_EQ(samples.size(), MemoryHistory::kCapacity);
  for (std::size_t i = 0; i < samples.size(); ++i) {
    EXPECT_EQ(samples[i].logical_bytes, i);
    EXPECT_EQ(samples[i].resident_bytes, i / 2);
    EXPECT_EQ(samples[i].host_bytes, i / 4);
  }
}

TEST(MemoryHistory, ThinsEvenlyAndStaysBounded) {
  MemoryHistory history;
  history.start();
  constexpr std::size_t kOps = 10 * MemoryHistory::kCapacity;
  for (std::size_t i = 0; i < kOps; ++i) history.add(sample(i));
  const auto samples = history.samples();
  ASSERT_LE(samples.size(), MemoryHistory::kCapacity);
  ASSERT_GE(samples.size(), MemoryHistory::kCapacity / 2);
  const std::int64_t distance = samples[1].time_ns - samples[0].time_ns;
  EXPECT_EQ(distance, 16); // 10 times the capacity: halved four times
  for (std::size_t i = 2; i + 1 < samples.size(); ++i) {
    EXPECT_LE(samples[i + 1].time_ns - samples[i].time_ns, 2 * distance);
    EXPECT_GT(samples[i + 1].time_ns, samples[i].time_ns);
  }
}

TEST(MemoryHistory, StartForgets) {
  MemoryHistory history;
  history.start();
  history.add(sample(1));
  history.start();
  EXPECT_TRUE(history.samples().empty());
}

TEST(MemoryHistory, SamplesOfManyThreadsAllCount) {
  MemoryHistory history;
  history.start();
  constexpr std::size_t kThreads = 4;
  constexpr std::size_t kEach = 500;
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&history] {
      for (std::size_t i = 0; i < kEach; ++i) history.add(sample(i));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(history.samples().size(), kThreads * kEach);
}

} // namespace
} // namespace chameleon::profiler
