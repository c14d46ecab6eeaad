// Results, deaths, bounds, and threads.
#include "profiler/profiler.h"

#include <atomic>
#include <gtest/gtest.h>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "profiler/cycle_builder.h"
#include "profiler/forecast.h"
#include "tests/cpp/profiler/op_driver.h"

namespace chameleon::profiler {
namespace {

// Where nobody asks which block an operand is, the op alone counts; what begins
// with an op is bound as ever.
TEST(Trusted, OperandsMayBeAnyAndWhatBeginsIsBound) {
  OpDriver driver;
  for (const std::string weight : {"w", "other"}) {
    driver.create(weight, 4096);
    driver.op("init", {"=" + weight}); // so that they were there before
  }
  driver.profiler.step();
  const auto step = [&driver](const std::string& weight) {
    driver.op("load", {}, {"x"});
    driver.op("mm", {"x", weight}, {"x"});
    driver.create("t", 4096);
    driver.op("copy_", {"=t", "x"});
  };
  const auto end = [&driver] {
    const bool expected = driver.op("norm", {"t"}, {"n"}, 512);
    driver.drop("t");
    driver.profiler.step();
    return expected;
  };
  for (int i = 0; i < 6; ++i) {
    step("w");
    end();
  }
  driver.endStep();

  driver.profiler.trustOperands(true);
  step("other");
  driver.profiler.trustOperands(false);
  EXPECT_TRUE(end()); // on the very block that began in between
  EXPECT_EQ(driver.endStep().misses, 0U);
  driver.profiler.trustOperands(true);
  driver.op("load", {}, {"x"});
  EXPECT_FALSE(driver.op("add", {"x", "w"}, {"x"}));
  EXPECT_FALSE(driver.op("mm", {"x"}, {"x"}));
  driver.profiler.step();
  driver.profiler.trustOperands(false);
  step("w");
  end();
  driver.endStep();
  step("other");
  EXPECT_GT(driver.endStep().misses, 0U);
}

// The queue of released blocks is drained late, and in any order: what is
// recorded is when they died.
TEST(Deaths, DoNotDependOnWhenTheyAreDrained) {
  std::vector<std::vector<ValueIndex>> first;
  for (unsigned seed = 1; seed <= 5; ++seed) {
    std::mt19937 random(seed);
    Profiler profiler;
    std::uint64_t identity = 0;
    struct Dead {
      BlockSlot slot;
      std::uint64_t when;
    };
    std::vector<Dead> queue;
    const auto drain = [&] {
      std::shuffle(queue.begin(), queue.end(), random);
      for (const Dead& dead : queue) profiler.freed(dead.slot, dead.when);
      queue.clear();
    };
    std::vector<Use> weights;
    for (int i = 0; i < 30; ++i) {
      ++identity;
      weights.push_back(
          {identity, profiler.born(identity, 512), Operand::kReads});
    }
    for (int round = 0; round < 8; ++round) {
      std::vector<Use> live;
      for (std::uint32_t i = 0; i < 30; ++i) {
        OpTicket ticket = profiler.observe(0, 100 + i, {&weights[i], 1});
        ++identity;
        live.push_back({identity, profiler.result(ticket, identity, 512), 1});
        if (i % 3 == 2) { // the older two of three
          for (int k = 0; k < 2; ++k) {
            queue.push_back({live.front().slot, profiler.opCount()});
            live.erase(live.begin());
          }
        }
        if (random() % 7 == 0) drain();
      }
      for (const Use& use : live) {
        queue.push_back({use.slot, profiler.opCount()});
      }
      profiler.step();
    }
    drain();
    const Durations durations;
    const auto map = CycleBuilder(profiler, durations)
                         .build(Forecast(profiler).position().path);
    ASSERT_TRUE(map.has_value());
    EXPECT_EQ(map->cycle.problem(), "");
    std::vector<std::vector<ValueIndex>> deaths;
    for (std::size_t i = 0; i < map->cycle.ops(); ++i) {
      const auto freed = map->cycle.freedAfter(i);
      deaths.emplace_back(freed.begin(), freed.end());
    }
    if (first.empty()) first = deaths;
    EXPECT_EQ(deaths, first) << "seed " << seed;
    EXPECT_EQ(deaths[2].size(), 2U);
    EXPECT_EQ(deaths[29].size(), 12U);
  }
}

// A result that takes over a dead block's slot is a death and a birth, in one
// call.
TEST(Results, InPlaceOfADeadBlock) {
  std::vector<ProfilerState> states;
  for (const bool in_place : {false, true}) {
    Profiler profiler;
    std::uint64_t identity = 1;
    const Use weight{1, profiler.born(1, 512), Operand::kReads};
    BlockSlot last = kNoSlot;
    std::uint64_t died = 0;
    std::uint32_t expected = 0;
    for (std::uint32_t i = 0; i < 4000; ++i) {
      OpTicket ticket =
          profiler.observe(i % 10, 100 + i % 10 + (i % 977 == 0), {&weight, 1});
      expected += ticket.expected ? 1 : 0;
      ++identity;
      if (last == kNoSlot) {
        last = profiler.result(ticket, identity, 512);
      } else if (in_place) {
        profiler.resultInPlaceOf(last, died, ticket, identity);
      } else {
        profiler.freed(last, died);
        last = profiler.result(ticket, identity, 512);
      }
      died = profiler.opCount();
    }
    EXPECT_GT(expected, 3900U);
    states.push_back(profiler.state());
  }
  EXPECT_EQ(states[0].forecast_misses, states[1].forecast_misses);
  EXPECT_EQ(states[0].steps, states[1].steps);
  EXPECT_EQ(states[0].divergences, states[1].divergences);
  EXPECT_EQ(states[0].path_ops, states[1].path_ops);
  EXPECT_EQ(states[0].memory_bytes, states[1].memory_bytes);
}

TEST(Memory, OfAStepIsBoundedPerOp) {
  OpDriver driver;
  ToyModel model(driver, 300);
  for (int i = 0; i < 12; ++i) model.train();
  const ProfilerState state = driver.profiler.state();
  ASSERT_EQ(state.matching, Matching::kFollowing);
  // Two paths: the first step, which made the optimizer's state, and the rest.
  EXPECT_EQ(state.paths, 2U);
  EXPECT_LE(state.memory_bytes / state.recorded_ops, 128U);
}

TEST(Memory, TheWorkspaceOfAnOpIsKept) {
  Profiler profiler;
  const Use use{1, profiler.born(1, 512), Operand::kReads};
  for (int round = 0; round < 4; ++round) {
    for (std::uint32_t i = 0; i < 12; ++i) {
      const OpTicket ticket = profiler.observe(0, i, {&use, 1});
      if (i == 5) profiler.finished(ticket, 5000);
    }
    profiler.step();
  }
  const Durations durations;
  const auto map = CycleBuilder(profiler, durations)
                       .build(Forecast(profiler).position().path);
  ASSERT_TRUE(map.has_value());
  EXPECT_EQ(map->cycle.workspace_bytes[5], 5120U);
  EXPECT_EQ(map->cycle.workspace_bytes[6], 0U);
}

// Several threads run ops at once, others ask and export: nothing is promised
// about forecasts then, but that all this is safe.
TEST(Threads, OpsQueriesAndExportsAtOnce) {
  Profiler profiler(1 << 20);
  const Forecast forecast(profiler);
  std::atomic<std::uint64_t> identities{0};
  std::atomic<bool> done{false};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(t);
      std::vector<Use> live;
      const auto birth = [&](OpTicket* ticket) {
        const std::uint64_t id = ++identities;
        live.push_back({id,
                        ticket != nullptr ? profiler.result(*ticket, id, 512)
                                          : profiler.born(id, 512),
                        Operand::kReads});
      };
      for (int i = 0; i < 8; ++i) birth(nullptr);
      for (unsigned i = 0; i < 4000; ++i) {
        const Use uses[2] = {live[i % 4], live[4 + i % 3]};
        OpTicket ticket = profiler.observe(t, 1000 * t + i % 40, uses);
        if (i % 3 == 0) birth(&ticket);
        if (random() % 50 == 0) profiler.finished(ticket, 4096);
        while (live.size() > 12) {
          profiler.freed(live.back().slot, profiler.opCount());
          live.pop_back();
        }
        if (t == 0 && i % 400 == 399) profiler.step();
        (void)forecast.nextUse(live[i % 8].slot);
      }
    });
  }
  threads.emplace_back([&] {
    const Durations durations;
    CycleBuilder builder(profiler, durations);
    while (!done.load()) {
      const PathId path = forecast.position().path;
      if (path != 0) (void)builder.build(path);
      (void)forecast.following();
      (void)profiler.state();
      std::this_thread::yield();
    }
  });
  for (std::size_t t = 0; t < 3; ++t) threads[t].join();
  done.store(true);
  threads.back().join();
  EXPECT_EQ(profiler.state().ops, 3U * 4000);
}

// Autograd's thread and the main thread take turns: one sequence.
TEST(Threads, TakingTurnsIsOneSequence) {
  OpDriver driver;
  ToyModel model(driver, 20);
  for (int i = 0; i < 6; ++i) {
    model.forward(8, true);
    std::thread([&] { model.backward(8); }).join();
    model.optimizer();
    model.zeroGrad();
    const auto count = driver.endStep();
    if (i > 1) {
      EXPECT_EQ(count.misses, 0U);
    }
  }
  EXPECT_EQ(driver.profiler.state().lock_waits, 0U);
}

} // namespace
} // namespace chameleon::profiler
