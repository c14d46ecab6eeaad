// What a change of the op sequence costs: ops without forecast, per step of the
// program. A step is lost when more than a tenth of it had none. Each program
// runs with and without step() at the end of its steps.
#include <gtest/gtest.h>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "profiler/cycle_builder.h"
#include "tests/cpp/profiler/op_driver.h"

namespace chameleon::profiler {
namespace {

using StepCount = OpDriver::StepCount;

class Adaptation : public testing::TestWithParam<bool> {
 protected:
  StepCount endStep() {
    if (GetParam()) driver_.profiler.step();
    return driver_.endStep();
  }
  StepCount train(std::uint64_t batch = 8) {
    model_.train(batch);
    return endStep();
  }
  StepCount eval() {
    model_.eval();
    return endStep();
  }
  // The first steps: optimizer state is made in the first one.
  void warmUp() {
    EXPECT_EQ(train().misses, 24U * 2 + 2 + 24 * 4 + 1 + 24 * 2);
    EXPECT_LE(train().misses, 10U);
    EXPECT_EQ(train().misses, 0U);
  }

  // A model of attention and experts, by layer.
  static std::string name(const char* what, int i) {
    return what + std::to_string(i);
  }
  void createExperts(int layers, int experts) {
    for (int i = 0; i < layers; ++i) {
      driver_.create(name("attention", i), 1 << 20);
      for (int e = 0; e < experts; ++e) {
        driver_.create(name("expert", i * experts + e), 1 << 20);
      }
    }
  }
  void attend(int layer, std::uint64_t bytes) {
    for (int k = 0; k < 10; ++k) {
      driver_.op(name("attention", k), {"x", name("attention", layer)}, {"x"},
                 bytes);
    }
  }

  OpDriver driver_;
  ToyModel model_{driver_, 24};
};

INSTANTIATE_TEST_SUITE_P(Marker, Adaptation, testing::Bool(),
                         [](const auto& test) {
                           return test.param ? "Marked" : "Found";
                         });

TEST_P(Adaptation, SteadyLoopIsForecastFromItsSecondStep) {
  warmUp();
  for (int i = 0; i < 200; ++i) EXPECT_EQ(train().misses, 0U) << i;
  const ProfilerState state = driver_.profiler.state();
  EXPECT_EQ(state.matching, Matching::kFollowing);
  EXPECT_EQ(state.path_ops, 24U * 2 + 2 + 24 * 4 + 1 + 24);
  EXPECT_LE(state.paths, 3U);
}

TEST_P(Adaptation, TrainAndEvalInTurnAreSteadyFromTheSecondRound) {
  warmUp();
  for (int round = 0; round < 12; ++round) {
    for (int i = 0; i < 3; ++i) {
      const StepCount count = train();
      EXPECT_LE(count.misses, round < 2 ? 2U : 1U) << round << " " << i;
    }
    for (int i = 0; i < 2; ++i) {
      const StepCount count = eval();
      EXPECT_LE(count.misses, round < 2 ? 2U : 1U) << round << " " << i;
    }
  }
  // The order of rounds has been learned as well: not one op is a surprise.
  for (int round = 0; round < 5; ++round) {
    for (int i = 0; i < 3; ++i) EXPECT_EQ(train().misses, 0U);
    for (int i = 0; i < 2; ++i) EXPECT_EQ(eval().misses, 0U);
  }
}

TEST_P(Adaptation, EvalOfAnyLengthCostsOneOpAtItsEdges) {
  warmUp();
  eval();
  train();
  std::mt19937 random(3);
  for (int round = 0; round < 30; ++round) {
    const auto trains = 1 + random() % 7;
    const auto evals = 1 + random() % 5;
    std::uint32_t misses = 0;
    for (unsigned i = 0; i < trains; ++i) misses += train().misses;
    for (unsigned i = 0; i < evals; ++i) {
      const StepCount count = eval();
      EXPECT_FALSE(count.lost());
      misses += count.misses;
    }
    EXPECT_LE(misses, trains + evals) << round;
  }
}

TEST_P(Adaptation, GradientAccumulation) {
  int lost = 0;
  for (int outer = 0; outer < 20; ++outer) {
    for (int micro = 0; micro < 4; ++micro) {
      model_.forward(8, true);
      model_.backward(8);
    }
    model_.optimizer();
    model_.zeroGrad();
    const StepCount count = endStep();
    if (outer > 0) lost += count.lost() ? 1 : 0;
    if (outer > 5) {
      EXPECT_EQ(count.misses, 0U) << outer;
    }
  }
  EXPECT_LE(lost, 1);
  // One step is one walk, from micro-batch to optimizer.
  const ProfilerState state = driver_.profiler.state();
  EXPECT_EQ(state.path_ops, 4U * (24 * 2 + 2 + 24 * 4 + 1) + 24);
}

TEST_P(Adaptation, SkippedOptimizerStep) {
  warmUp();
  bool skipped = false;
  for (int i = 0; i < 60; ++i) {
    const bool skip = i % 11 == 7;
    model_.forward(8, true);
    model_.backward(8);
    if (!skip) model_.optimizer();
    model_.zeroGrad();
    const StepCount count = endStep();
    EXPECT_LE(count.misses, 1U) << i;
    if (!skipped && !skip) {
      EXPECT_EQ(count.misses, 0U) << i;
    }
    skipped = skipped || skip;
  }
}

TEST_P(Adaptation, ThreeLengthsAtRandom) {
  std::mt19937 random(1);
  std::set<std::uint64_t> seen;
  int lost = 0;
  std::uint32_t misses = 0;
  for (int i = 0; i < 200; ++i) {
    const std::uint64_t length = 8 + 8 * (random() % 3);
    const bool fresh = seen.insert(length).second;
    const StepCount count = train(length);
    if (fresh) continue;
    lost += count.lost() ? 1 : 0;
    if (i > 20) misses += count.misses;
  }
  EXPECT_LE(lost, 1); // the first step made the optimizer's state
  EXPECT_LE(misses, 180U * 3 / 2);
  EXPECT_LE(driver_.profiler.state().paths, 24U);
}

TEST_P(Adaptation, BatchSizeChangeLosesOneStep) {
  warmUp();
  for (int i = 0; i < 5; ++i) train();
  for (const std::uint64_t batch : {16, 4, 32}) {
    EXPECT_TRUE(train(batch).lost()) << batch;
    EXPECT_LE(train(batch).misses, 2U);
    for (int i = 0; i < 5; ++i) EXPECT_EQ(train(batch).misses, 0U);
  }
  for (const std::uint64_t batch : {8, 16, 4, 32}) { // all seen
    EXPECT_LE(train(batch).misses, 1U);
    EXPECT_LE(train(batch).misses, 1U);
  }
}

// Every step has sizes of its own, none far from the others.
TEST_P(Adaptation, SizesThatNeverComeAgainLoseNoStep) {
  warmUp();
  for (int i = 0; i < 3; ++i) train(100);
  const std::size_t paths = driver_.profiler.state().paths;
  for (std::uint64_t i = 1; i <= 20; ++i) {
    EXPECT_LE(train(100 + i).misses, 1U) << i;
    EXPECT_LE(train(100 - i).misses, 1U) << i;
  }
  EXPECT_EQ(driver_.profiler.state().paths, paths);
  EXPECT_EQ(driver_.profiler.state().matching, Matching::kFollowing);
  EXPECT_EQ(train(100).misses, 0U);
}

// The path followed has other sizes; the values are those of a step with a path
// of its own.
TEST(LastStep, IsTheOneThatRan) {
  OpDriver driver;
  ToyModel model(driver, 24);
  const Durations durations;
  const CycleBuilder builder(driver.profiler, durations);
  const auto train = [&](std::uint64_t batch) {
    model.train(batch);
    driver.profiler.step();
    return builder.buildLast()->cycle;
  };
  EXPECT_FALSE(builder.buildLast());
  for (int i = 0; i < 5; ++i) train(100);
  const Cycle variant = train(90);
  train(90);
  const std::size_t paths = driver.profiler.state().paths;
  const Cycle own = train(90);
  EXPECT_EQ(driver.profiler.state().paths, paths);
  EXPECT_EQ(variant.value_bytes, own.value_bytes);
  EXPECT_EQ(variant.operand_end, own.operand_end);
  EXPECT_EQ(variant.operands, own.operands);
  EXPECT_EQ(variant.freed_end, own.freed_end);
  EXPECT_EQ(variant.freed, own.freed);
  EXPECT_NE(train(110).value_bytes, own.value_bytes);
  EXPECT_EQ(train(90).value_bytes, own.value_bytes);
}

TEST_P(Adaptation, SizesThatComeAgainAreAPathOfTheirOwn) {
  warmUp();
  for (int i = 0; i < 3; ++i) train(100);
  const std::size_t paths = driver_.profiler.state().paths;
  for (int time = 0; time < 3; ++time) {
    EXPECT_LE(train(110).misses, 1U) << time;
    EXPECT_LE(train(100).misses, 1U) << time;
  }
  EXPECT_EQ(driver_.profiler.state().paths, paths + 1);
  for (int i = 0; i < 3; ++i) train(110);
  EXPECT_EQ(train(110).misses, 0U);
}

// A plan for the one would not do for the other.
TEST_P(Adaptation, SizesThatAreFarAreANewSequence) {
  warmUp();
  for (int i = 0; i < 3; ++i) train(1000);
  EXPECT_TRUE(train(2000).lost());
  EXPECT_TRUE(train(500).lost());
  EXPECT_LE(train(2000).misses, 2U);
  EXPECT_LE(train(500).misses, 2U);
}

TEST_P(Adaptation, NewPhaseLosesOneStep) {
  warmUp();
  for (int i = 0; i < 5; ++i) train();
  ToyModel other(driver_, 40, "b");
  int lost = 0;
  for (int i = 0; i < 10; ++i) {
    other.train();
    const StepCount count = endStep();
    lost += count.lost() ? 1 : 0;
    if (i > 2) {
      EXPECT_EQ(count.misses, 0U) << i;
    }
  }
  EXPECT_LE(lost, 1);
  EXPECT_LE(train().misses, 2U); // back again
  EXPECT_EQ(train().misses, 0U);
}

// Layers of attention, the same every step, and experts that get another number
// of tokens every time: only theirs have no forecast.
TEST_P(Adaptation, MixtureOfExperts) {
  std::mt19937 random(5);
  constexpr int kLayers = 8;
  constexpr int kExperts = 4;
  createExperts(kLayers, kExperts);
  for (int step = 0; step < 30; ++step) {
    std::uint32_t expert_ops = 0;
    driver_.op("copy_in", {}, {"x"});
    for (int i = 0; i < kLayers; ++i) {
      attend(i, 4096);
      for (int e = 0; e < kExperts; ++e) {
        const std::uint64_t tokens = 1 + random() % 1000;
        driver_.op("expert_mm", {"x", name("expert", i * kExperts + e)}, {"y"},
                   tokens * 512, tokens);
        driver_.op("expert_act", {"y"}, {"y"}, tokens * 512, tokens);
        driver_.op("scatter", {"+x", "y"}, {}, 0, tokens);
        expert_ops += 3;
      }
    }
    const StepCount count = endStep();
    if (step < 2) continue;
    // One op is needed to find the place again after each stretch.
    EXPECT_LE(count.misses, expert_ops + kLayers + 1) << step;
  }
  EXPECT_LE(driver_.profiler.state().memory_bytes,
            driver_.profiler.state().limit_bytes * 5 / 4);
}

// The tokens of a step are as many as ever, but shared anew among the experts.
TEST_P(Adaptation, TokensSharedAnewAmongExpertsAreForecast) {
  std::mt19937 random(5);
  constexpr int kLayers = 4;
  constexpr int kExperts = 4;
  constexpr std::uint64_t kTokens = 2048;
  createExperts(kLayers, kExperts);
  for (int step = 0; step < 30; ++step) {
    driver_.op("copy_in", {}, {"x"}, kTokens * 512);
    for (int i = 0; i < kLayers; ++i) {
      attend(i, kTokens * 512);
      std::uint64_t rest = kTokens;
      for (int e = 0; e < kExperts; ++e) {
        const std::uint64_t tokens =
            e + 1 == kExperts ? rest : 1 + random() % (rest / 2);
        rest -= tokens;
        driver_.op("expert_mm", {"x", name("expert", i * kExperts + e)},
                   {name("y", e)}, tokens * 512, tokens);
        driver_.op("expert_act", {name("y", e)}, {name("z", e)}, tokens * 512,
                   tokens);
        driver_.op("scatter", {"+x", name("z", e)}, {}, 0, tokens);
      }
    }
    const StepCount count = endStep();
    if (step < 2) continue;
    EXPECT_LE(count.misses, 1U) << step;
  }
  EXPECT_LE(driver_.profiler.state().paths, 3U);
}

TEST_P(Adaptation, RandomDivergencesStayLocal) {
  std::mt19937 random(7);
  warmUp();
  std::uint32_t other = 0;
  std::uint32_t ops = 0;
  std::uint32_t misses = 0;
  for (int step = 0; step < 60; ++step) {
    // A tenth of the weights is touched by an op that was never seen.
    model_.forward(8, true);
    for (int i = 0; i < model_.layers(); ++i) {
      driver_.op("norm", {"x" + std::to_string(i)}, {"n"});
      if (random() % 5 == 0) {
        driver_.op("surprise", {"n"}, {"s"}, 512, random());
        ++other;
      }
      driver_.op("log", {"n"}, {"l"});
    }
    model_.backward(8);
    model_.optimizer();
    model_.zeroGrad();
    const StepCount count = endStep();
    if (step < 3) {
      other = 0;
      continue;
    }
    ops += count.ops;
    misses += count.misses;
  }
  EXPECT_GT(other * 50, ops); // more than 2 % of all ops
  // Each costs itself and the op where the sequence is found again.
  EXPECT_LE(misses, 2 * other + 57);
}

// What is put into one layer is what another one has anyway: it is not that
// one.
TEST_P(Adaptation, AnOpThatComesBetweenIsNotOneOfTheNextLayer) {
  constexpr int kLayers = 6;
  for (int i = 0; i < kLayers; ++i) driver_.create(name("w", i), 1 << 20);
  const auto run = [&](int put_in) {
    driver_.op("copy_in", {}, {"x"});
    for (int i = 0; i < kLayers; ++i) {
      driver_.op("mm", {"x", name("w", i)}, {"x"});
      driver_.op("scale", {"x"}, {"x"});
      if (i == 3 || i == put_in) driver_.op("scale", {"x"}, {"x"});
    }
    return endStep();
  };
  for (int step = 0; step < 6; ++step) run(3);
  EXPECT_EQ(run(3).misses, 0U);
  EXPECT_LE(run(1).misses, 1U);
}

// The end of a round costs more than an op, so a loop of one op shall not end
// one with every op; and what comes after the loop is found as ever.
TEST(Unrolled, ALoopOfOneOpHasFewRoundsAndForecastsEveryOp) {
  OpDriver driver;
  driver.create("w", 4096);
  for (int i = 0; i < 10'000; ++i) driver.op("relu", {"w"}, {"y"});
  EXPECT_LE(driver.endStep().misses, 20U);
  const ProfilerState before = driver.profiler.state();
  EXPECT_EQ(before.path_ops, StepFinder::kUnrolledOps);
  for (int i = 0; i < 2560; ++i) driver.op("relu", {"w"}, {"y"});
  EXPECT_EQ(driver.endStep().misses, 0U);
  EXPECT_EQ(driver.profiler.state().steps - before.steps, 10U);
  // Another loop, left and come back to in the middle of a round.
  for (int phase = 0; phase < 4; ++phase) {
    for (int i = 0; i < 9'000; ++i) driver.op("gelu", {"w"}, {"z"});
    EXPECT_LE(driver.endStep().misses, phase == 0 ? 20U : 2U) << phase;
    for (int i = 0; i < 9'001; ++i) driver.op("relu", {"w"}, {"y"});
    EXPECT_LE(driver.endStep().misses, 2U) << phase;
  }
}

// A block that no op makes (a factory's) is another one in every round.
TEST(Loop, WithANewBlockInEveryRoundIsFound) {
  OpDriver driver;
  driver.create("leaf", 512);
  driver.create("grad", 512);
  for (int phase = 0; phase < 4; ++phase) {
    for (int i = 0; i < 400; ++i) {
      driver.op("sum", {"leaf"}, {"s"}, 512);
      driver.create("g", 512);
      driver.op("fill", {"+g"});
      driver.op("mul", {"g", "leaf"}, {"d"}, 512);
      driver.drop("g");
      driver.op("add_", {"+grad", "d"});
      driver.drop("d");
    }
    EXPECT_LE(driver.endStep().misses, phase == 0 ? 16U : 0U) << phase;
  }
}

// Nothing ever repeats.
TEST_P(Adaptation, EndlessNoveltyIsBounded) {
  OpDriver driver(1 << 20);
  driver.create("w", 4096);
  for (int i = 0; i < 60'000; ++i) {
    driver.op("new" + std::to_string(i), {"w"}, {"x" + std::to_string(i % 50)});
    if (GetParam() && i % 700 == 699) driver.profiler.step();
    if (i % 5000 == 0) {
      const ProfilerState state = driver.profiler.state();
      EXPECT_LE(state.memory_bytes, state.limit_bytes * 3 / 2);
      EXPECT_LE(state.paths, OpHistory::kMaxPaths);
    }
  }
  EXPECT_EQ(driver.endStep().misses, 60'000U);
  EXPECT_GT(driver.profiler.state().dropped_paths, 0U);
}

TEST_P(Adaptation, ReplacedPersistentBlocksCostNothing) {
  warmUp();
  // load_state_dict with assign: every weight is another block now.
  for (int i = 0; i < model_.layers(); ++i) {
    driver_.create("w" + std::to_string(i), 1 << 20);
  }
  for (int i = 0; i < 5; ++i) EXPECT_EQ(train().misses, 0U);
}

} // namespace
} // namespace chameleon::profiler
