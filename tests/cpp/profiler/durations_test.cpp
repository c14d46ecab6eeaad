#include "profiler/durations.h"

#include <gtest/gtest.h>
#include <random>
#include <thread>
#include <vector>

namespace chameleon::profiler {
namespace {

TEST(Durations, UnknownOpsTakeTheDefault) {
  const Durations durations;
  EXPECT_EQ(durations.op(1, 0), kUntimedOp_ns);
  EXPECT_EQ(durations.op(1, 1 << 30), kUntimedOp_ns);
  EXPECT_FALSE(durations.known(1));
}

TEST(Durations, FollowsItsSamples) {
  Durations durations;
  durations.addOp(1, 4096, 1000);
  EXPECT_EQ(durations.op(1, 4096), 1000);
  for (int i = 0; i < 50; ++i) durations.addOp(1, 4096, 2000);
  EXPECT_NEAR(static_cast<double>(durations.op(1, 4096)), 2000, 5);
}

TEST(Durations, WhatRunsBesideTakesNothing) {
  Durations durations;
  durations.addOp(1, 4096, 1000);
  durations.addBeside(2);
  EXPECT_TRUE(durations.known(2));
  EXPECT_EQ(durations.op(2, 4096), 0);
  EXPECT_EQ(durations.op(3, 4096), 1000); // nor does it say so of others
}

TEST(Durations, OneOutlierChangesNothingThreeDo) {
  Durations durations;
  for (int i = 0; i < 10; ++i) durations.addOp(1, 4096, 1000);
  durations.addOp(1, 4096, 1'000'000);
  durations.addOp(1, 4096, 1'000'000);
  EXPECT_EQ(durations.op(1, 4096), 1000);
  durations.addOp(1, 4096, 1000); // not in a row
  durations.addOp(1, 4096, 1'000'000);
  EXPECT_EQ(durations.op(1, 4096), 1000);
  durations.addOp(1, 4096, 1'000'000);
  durations.addOp(1, 4096, 1'000'000);
  EXPECT_EQ(durations.op(1, 4096), 1'000'000);
  for (int i = 0; i < 3; ++i) durations.addOp(1, 4096, 10);
  EXPECT_EQ(durations.op(1, 4096), 10);
}

TEST(Durations, UnknownShapesAreEstimatedFromTheirBytes) {
  Durations durations;
  std::mt19937 random(23);
  for (std::uint64_t token = 1; token <= 100; ++token) {
    const std::uint64_t bytes = (1 + random() % 1000) << 16;
    durations.addOp(token, bytes,
                    3000 + static_cast<std::int64_t>(bytes / 4000));
  }
  for (const std::uint64_t bytes : {1ULL << 18, 1ULL << 22, 1ULL << 26}) {
    const double expected = 3000 + static_cast<double>(bytes) / 4000;
    EXPECT_NEAR(static_cast<double>(durations.op(999, bytes)), expected,
                0.02 * expected + 10);
  }
}

bool asked(Durations& durations, Token token) {
  return durations.shouldLook() && durations.shouldSample(token);
}

TEST(Durations, TheShortestOfTheFirstThreeCounts) {
  Durations durations;
  for (const std::int64_t ns : {90'000, 1000, 5000}) {
    durations.addOp(1, 4096, ns);
  }
  EXPECT_EQ(durations.op(1, 4096), 1000);
  durations.addOp(1, 4096, 2000);
  EXPECT_EQ(durations.op(1, 4096), 1200);
}

TEST(Durations, EachOfTheFirstThreeOfATokenIsSampled) {
  Durations durations;
  std::vector<int> seen(100);
  const auto step = [&] {
    for (Token token = 0; token < seen.size(); ++token) {
      if (asked(durations, token)) ++seen[token];
    }
  };
  for (int i = 0; i < 3; ++i) step();
  EXPECT_EQ(seen, std::vector<int>(100, 3));
  EXPECT_FALSE(durations.known(7)); // nothing was reported yet
  for (int i = 0; i < 3; ++i) step();
  EXPECT_EQ(seen, std::vector<int>(100, 3));
  for (int i = 0; i < 1000; ++i) step(); // all positions in turn
  for (const int count : seen) EXPECT_GT(count, 20);
  // New ones are met soon, and then all of them.
  seen.resize(200);
  for (int i = 0; i < 10; ++i) step();
  for (std::size_t token = 100; token < 200; ++token) EXPECT_GE(seen[token], 3);
}

TEST(Durations, SamplesSparselyLater) {
  Durations durations;
  std::mt19937 random(29);
  const auto sampled = [&](int ops) {
    int count = 0;
    for (int i = 0; i < ops; ++i) {
      const Token token = random() % 50;
      if (!asked(durations, token)) continue;
      ++count;
      durations.addOp(token, 4096, 1000 * static_cast<std::int64_t>(token) + 1);
    }
    return count;
  };
  EXPECT_EQ(sampled(1000), 150);
  sampled(300'000);
  const int late = sampled(100'000);
  EXPECT_LT(late, 300); // "a few ops a step"
  EXPECT_GT(late, 100);
}

TEST(Durations, WhereAllIsNewForEverAFewAreSampled) {
  Durations durations;
  Token next = 0;
  const auto sampled = [&](int ops) {
    int count = 0;
    for (int i = 0; i < ops; ++i, ++next)
      count += asked(durations, next) ? 1 : 0;
    return count;
  };
  sampled(200'000);
  EXPECT_LT(sampled(400'000), 400'000 / 4);
}

TEST(Durations, IsBounded) {
  Durations durations;
  for (Token token = 0; token < 3 * Durations::kMaxTokens; ++token) {
    durations.addOp(token, 4096, 1000);
  }
  EXPECT_LE(durations.tokens(), Durations::kMaxTokens);
  EXPECT_EQ(durations.op(3 * Durations::kMaxTokens - 1, 4096), 1000);
}

TEST(Durations, LinkSpeedPerDirectionAloneAndShared) {
  Durations durations;
  const auto copy = [&](Direction d, bool shared, double gb_per_s) {
    for (int i = 0; i < 100; ++i) {
      durations.addCopy(d, shared, 4096, 7000);
      const std::uint64_t bytes = std::uint64_t{1 + i % 7U} << 24;
      durations.addCopy(d, shared, bytes,
                        7000 + static_cast<std::int64_t>(
                                   static_cast<double>(bytes) / gb_per_s));
    }
  };
  EXPECT_EQ(durations.link(Direction::kIn, false).bytes_per_second, 0);
  copy(Direction::kIn, false, 55);
  copy(Direction::kOut, false, 50);
  copy(Direction::kIn, true, 45);
  const auto speed = [&](Direction d, bool shared) {
    return durations.link(d, shared).bytes_per_second / 1e9;
  };
  EXPECT_NEAR(speed(Direction::kIn, false), 55, 0.5);
  EXPECT_NEAR(speed(Direction::kOut, false), 50, 0.5);
  EXPECT_NEAR(speed(Direction::kIn, true), 45, 0.5);
  EXPECT_EQ(speed(Direction::kOut, true), 0);
  EXPECT_EQ(durations.link(Direction::kIn, false).latency_ns, 7000);
  // A copy that had to wait for the machine.
  durations.addCopy(Direction::kIn, false, 1 << 24, 1'000'000'000);
  EXPECT_GT(speed(Direction::kIn, false), 45);
}

TEST(Durations, ManyThreads) {
  Durations durations;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&durations, t] {
      for (int i = 0; i < 2000; ++i) {
        const auto token = static_cast<Token>(i % 10);
        if (asked(durations, token)) durations.addOp(token, 4096, 1000 + t);
        durations.addCopy(Direction::kOut, t % 2 == 0, 1 << 20, 20'000);
        (void)durations.op(static_cast<Token>(i % 12), 4096);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(durations.tokens(), 0U);
}

} // namespace
} // namespace chameleon::profiler
