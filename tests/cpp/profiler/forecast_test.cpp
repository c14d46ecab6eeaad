// Forecasts against the future: programs made at random run again and again,
// and for every live block each answer is compared with what then happens.
#include "profiler/forecast.h"

#include <gtest/gtest.h>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "profiler/cycle_builder.h"
#include "tests/cpp/profiler/op_driver.h"

namespace chameleon::profiler {
namespace {

struct ProgramOp {
  std::string name;
  std::vector<std::string> operands; // with the driver's marks
  std::vector<std::string> results;
  std::vector<std::string> drops; // after it
  std::uint64_t bytes;
};

std::string bare(const std::string& operand) {
  const bool marked = operand[0] == '+' || operand[0] == '=';
  return marked ? operand.substr(1) : operand;
}

// A step over `weights` persistent blocks: transients are born, used, dropped;
// some live on into the next step and are dropped or replaced there.
std::vector<ProgramOp> make_program(std::mt19937& random, int ops,
                                    int weights) {
  std::vector<ProgramOp> program;
  std::vector<std::string> live;
  const auto pick = [&](std::size_t n) { return random() % n; };
  for (int i = 0; i < ops; ++i) {
    ProgramOp op;
    op.name = "op" + std::to_string(pick(5));
    op.bytes = 512 * (1 + pick(3));
    const std::string weight =
        "w" + std::to_string(pick(static_cast<std::size_t>(weights)));
    switch (pick(4)) {
      case 0:
        op.operands.push_back("+" + weight);
        break;
      case 1:
        op.operands.push_back("=" + weight);
        break;
      default:
        op.operands.push_back(weight);
    }
    if (!live.empty()) op.operands.push_back(live[pick(live.size())]);
    if (pick(3) > 0) {
      const std::string made = "t" + std::to_string(i);
      op.results.push_back(made);
      live.push_back(made);
    }
    while (live.size() > 1 && pick(3) == 0) {
      const std::size_t at = pick(live.size());
      op.drops.push_back(live[at]);
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(at));
    }
    program.push_back(op);
  }
  // What is left is dropped at the beginning of the next step.
  for (const std::string& name : live) {
    if (name != "t0") program.front().drops.push_back(name);
  }
  // Some of it is used there first.
  for (std::size_t i = 0; i < program.front().drops.size(); i += 2) {
    program.front().operands.push_back(program.front().drops[i]);
  }
  return program;
}

void run_op(OpDriver& driver, const ProgramOp& op) {
  std::vector<std::string> operands;
  for (const std::string& operand : op.operands) { // none left in round one
    if (driver.has(bare(operand))) operands.push_back(operand);
  }
  driver.op(op.name, operands, op.results, op.bytes);
  for (const std::string& name : op.drops) driver.drop(name);
}

// Ops from `next` on until the block that has this name now is used; -1: never.
int truth(const std::vector<ProgramOp>& program, std::size_t next,
          const std::string& name, bool& overwritten) {
  for (std::size_t i = 0; i < 2 * program.size(); ++i) {
    const ProgramOp& op = program[(next + i) % program.size()];
    for (const std::string& operand : op.operands) {
      if (bare(operand) != name) continue;
      overwritten = operand[0] == '=';
      return static_cast<int>(i);
    }
    const auto in = [&](const std::vector<std::string>& list) {
      return std::find(list.begin(), list.end(), name) != list.end();
    };
    if (in(op.results) || in(op.drops)) return -1;
  }
  return -1;
}

class RandomProgram : public testing::TestWithParam<unsigned> {};
INSTANTIATE_TEST_SUITE_P(Seeds, RandomProgram, testing::Range(1U, 13U));

TEST_P(RandomProgram, NextUsesAreTrue) {
  std::mt19937 random(GetParam());
  OpDriver driver;
  constexpr int kWeights = 12;
  for (int i = 0; i < kWeights; ++i) {
    driver.create("w" + std::to_string(i), 4096);
  }
  const auto program = make_program(random, 60, kWeights);
  for (int round = 0; round < 5; ++round) {
    for (const ProgramOp& op : program) run_op(driver, op);
    driver.profiler.step();
  }
  const Forecast forecast(driver.profiler);
  driver.endStep();
  int known = 0;
  for (int round = 0; round < 2; ++round) {
    for (std::size_t i = 0; i < program.size(); ++i) {
      run_op(driver, program[i]);
      if (i + 1 == program.size()) driver.profiler.step();
      const PathPosition position = forecast.position();
      ASSERT_EQ(position.ops, program.size());
      ASSERT_EQ(position.next_op, (i + 1) % program.size());
      std::map<std::string, bool> names;
      for (const ProgramOp& op : program) {
        for (const std::string& n : op.operands) names[bare(n)] = true;
        for (const std::string& n : op.results) names[n] = true;
      }
      for (const auto& [name, unused] : names) {
        if (!driver.has(name)) continue;
        bool overwritten = false;
        const int expected =
            truth(program, (i + 1) % program.size(), name, overwritten);
        const NextUse use = forecast.nextUse(driver.block(name).slot);
        if (expected >= 0) {
          ASSERT_EQ(use.kind, NextUseKind::kKnown)
              << name << " after op " << i << " seed " << GetParam();
          ASSERT_EQ(use.distance_ops, static_cast<std::uint32_t>(expected))
              << name << " after op " << i;
          ASSERT_EQ(use.overwritten_first, overwritten) << name;
          ASSERT_EQ(use.in_ns, expected * kUntimedOp_ns);
          ++known;
        } else {
          ASSERT_NE(use.kind, NextUseKind::kKnown)
              << name << " after op " << i << " seed " << GetParam();
        }
      }
    }
  }
  EXPECT_EQ(driver.endStep().misses, 0U);
  EXPECT_GT(known, 500);
}

TEST_P(RandomProgram, CyclesAreTheProgram) {
  std::mt19937 random(GetParam() + 100);
  OpDriver driver;
  constexpr int kWeights = 12;
  for (int i = 0; i < kWeights; ++i) {
    driver.create("w" + std::to_string(i), 4096);
  }
  const auto program = make_program(random, 60, kWeights);
  for (int round = 0; round < 6; ++round) {
    for (const ProgramOp& op : program) run_op(driver, op);
    driver.profiler.step();
  }
  const Forecast forecast(driver.profiler);
  const Durations durations;
  CycleBuilder builder(driver.profiler, durations);
  const auto map = builder.build(forecast.position().path);
  ASSERT_TRUE(map.has_value());
  const Cycle& cycle = map->cycle;
  EXPECT_EQ(cycle.problem(), "") << "seed " << GetParam();
  ASSERT_EQ(cycle.ops(), program.size());
  std::map<std::string, ValueIndex> values;
  std::map<ValueIndex, std::string> names;
  for (int pass = 0; pass < 2; ++pass) {
    for (std::size_t i = 0; i < program.size(); ++i) {
      const ProgramOp& op = program[i];
      EXPECT_EQ(driver.names.name(map->op_names[i]), op.name);
      std::size_t created = 0;
      for (const Operand operand : cycle.operandsOf(i)) {
        const ValueIndex v = operand.value();
        if (operand.creates()) {
          ASSERT_LT(created, op.results.size());
          EXPECT_EQ(map->values[v].birth_op, i);
          EXPECT_EQ(cycle.value_bytes[v], op.bytes);
          const std::string& name = op.results[map->values[v].output];
          if (pass == 0) {
            values[name] = v;
            names[v] = name;
          }
          EXPECT_EQ(values[name], v);
          ++created;
        }
      }
      EXPECT_EQ(created, op.results.size());
      if (pass == 0) continue; // names are known from the second on
      for (const std::string& operand : op.operands) {
        const std::string name = bare(operand);
        std::size_t found = 0;
        for (const Operand o : cycle.operandsOf(i)) {
          const CycleMap::Value& value = map->values[o.value()];
          const bool persistent = value.birth_op == kNone;
          if (name[0] != 'w' ? !persistent && values.contains(name) &&
                                   values[name] == o.value()
                             : persistent && value.identity ==
                                                 driver.block(name).identity) {
            ++found;
            EXPECT_EQ((o.flags() & Operand::kWrites) != 0, operand != name)
                << name;
            EXPECT_EQ(o.needsBytes(), operand[0] != '=');
          }
        }
        EXPECT_EQ(found, 1U) << name << " at " << i;
      }
      // Deaths: exactly where the program drops.
      std::vector<std::string> freed;
      for (const ValueIndex v : cycle.freedAfter(i)) {
        freed.push_back(names[v]);
      }
      std::vector<std::string> drops;
      for (const std::string& name : op.drops) {
        if (values.contains(name)) drops.push_back(name);
      }
      std::sort(freed.begin(), freed.end());
      std::sort(drops.begin(), drops.end());
      EXPECT_EQ(freed, drops) << "after op " << i;
    }
  }
}

TEST(Forecast, NothingIsKnownAtFirst) {
  OpDriver driver;
  driver.create("w", 4096);
  const Forecast forecast(driver.profiler);
  EXPECT_EQ(forecast.position().path, 0U);
  EXPECT_EQ(forecast.following(), 0U);
  EXPECT_EQ(forecast.nextUse(driver.block("w").slot).kind,
            NextUseKind::kUnknown);
  driver.op("mm", {"w"}, {"x"});
  EXPECT_EQ(forecast.nextUse(driver.block("w").slot).kind,
            NextUseKind::kUnknown);
  EXPECT_TRUE(forecast.expected(0).empty());
}

TEST(Forecast, KnowsTheWeightsOfTheNextPath) {
  OpDriver driver;
  ToyModel model(driver, 8);
  const Forecast forecast(driver.profiler);
  for (int i = 0; i < 6; ++i) {
    model.train();
    driver.profiler.step();
    model.eval();
    driver.profiler.step();
  }
  model.train(); // at its end: w0 comes second in eval
  const NextUse use = forecast.nextUse(driver.block("w0").slot);
  EXPECT_EQ(use.kind, NextUseKind::kKnown);
  EXPECT_EQ(use.distance_ops, 1U);
  // Optimizer state is not used in eval, and the train step after that is
  // further than is looked.
  EXPECT_EQ(forecast.nextUse(driver.block("m0").slot).kind,
            NextUseKind::kNoMore);
}

TEST(Forecast, ExpectedOperandsAreTheLiveBlocks) {
  OpDriver driver;
  ToyModel model(driver, 4);
  for (int i = 0; i < 5; ++i) {
    model.train();
    driver.profiler.step();
  }
  const Forecast forecast(driver.profiler);
  // copy_in, then mm(x0, w0): x0 is not born yet.
  const auto operands = forecast.expected(1);
  ASSERT_EQ(operands.size(), 2U);
  EXPECT_EQ(operands[0].identity, 0U);
  EXPECT_EQ(operands[1].identity, driver.block("w0").identity);
  EXPECT_EQ(operands[1].slot, driver.block("w0").slot);
}

TEST(Forecast, TimesComeFromDurations) {
  OpDriver driver;
  driver.create("a", 4096);
  driver.create("b", 4096);
  for (int i = 0; i < 12; ++i) {
    driver.op("first", {"a"});
    driver.op("second", {"a"});
    driver.op("third", {"b"});
    driver.profiler.step();
  }
  Durations durations;
  const auto token = [&](const char* name) {
    TokenHasher hasher(driver.names.add(name));
    hasher.add(0);
    hasher.add(Operand::kReads);
    hasher.add(4096);
    return hasher.token();
  };
  durations.addOp(token("first"), 4096, 64'000);
  durations.addOp(token("second"), 4096, 128'000);
  durations.addOp(token("third"), 4096, 64'000);
  const Forecast forecast(driver.profiler);
  EXPECT_EQ(forecast.nextUse(driver.block("b").slot).in_ns, 2 * kUntimedOp_ns);
  CycleBuilder builder(driver.profiler, durations);
  ASSERT_TRUE(builder.build(forecast.position().path).has_value());
  EXPECT_EQ(forecast.nextUse(driver.block("b").slot).in_ns, 192'000);
  EXPECT_FALSE(builder.build(12345).has_value());
  const PathId path = forecast.position().path;
  EXPECT_EQ(builder.timesOff(path), 0);
  for (int i = 0; i < 100; ++i) durations.addOp(token("first"), 4096, 32'000);
  EXPECT_NEAR(builder.timesOff(path), 32'000. / 256'000, 0.001);
  ASSERT_TRUE(builder.build(path).has_value());
  EXPECT_EQ(builder.timesOff(path), 0);
  EXPECT_EQ(builder.timesOff(12345), 0);
}

} // namespace
} // namespace chameleon::profiler
