// Blocks that no op makes: a factory's memory is handed to the op that fills
// it. In a steady step such a value begins with that op and dies like any other
// transient, and no forecast misses it.
#include <algorithm>
#include <gtest/gtest.h>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "profiler/cycle_builder.h"
#include "profiler/forecast.h"
#include "profiler/trace/trace_reader.h"
#include "profiler/trace/trace_writer.h"
#include "tests/cpp/profiler/op_driver.h"

namespace chameleon::profiler {
namespace {

constexpr std::uint64_t kTemporary = 3 << 20;
constexpr std::uint64_t kBatch = 5 << 20;
constexpr std::uint64_t kWeight = 1 << 20;

enum Op { kMul, kCopy, kNorm, kMulAgain, kCopyAgain, kNormAgain, kOps };

// t = contiguous(x * w), twice a step. Each step has a batch of its own; the
// old one dies when the new one is there.
class Program {
 public:
  Program() { driver.create("w", kWeight); }

  void step(bool marked = true) {
    const std::string x = "x" + std::to_string(steps_ % 2);
    driver.create(x, kBatch);
    driver.drop("x" + std::to_string(++steps_ % 2));
    for (const std::string t : {"t", "u"}) {
      driver.op("mul", {x, "w"}, {"y"}, 4096);
      driver.create(t, kTemporary);
      driver.op("copy_", {"=" + t, "y"});
      driver.op("norm", {t}, {"n"}, 512);
      driver.drop(t);
    }
    if (marked) driver.profiler.step();
  }
  CycleMap map() {
    const Durations durations;
    CycleBuilder builder(driver.profiler, durations);
    return builder.build(Forecast(driver.profiler).position().path).value();
  }

  OpDriver driver;

 private:
  int steps_ = 0;
};

// If nothing ever leaves: the most bytes of values that are alive.
std::uint64_t peak_of(const Cycle& cycle) {
  std::vector<bool> alive(cycle.values(), true);
  for (const Operand operand : cycle.operands) {
    if (operand.creates()) alive[operand.value()] = false;
  }
  std::uint64_t peak = 0;
  for (int round = 0; round < 2; ++round) {
    for (std::size_t i = 0; i < cycle.ops(); ++i) {
      for (const Operand operand : cycle.operandsOf(i)) {
        alive[operand.value()] = true;
      }
      std::uint64_t live = 0;
      for (ValueIndex v = 0; v < cycle.values(); ++v) {
        if (alive[v]) live += cycle.value_bytes[v];
      }
      peak = std::max(peak, live);
      for (const ValueIndex v : cycle.freedAfter(i)) alive[v] = false;
    }
  }
  return peak;
}

TEST(ExternalInput, IsForecast) {
  for (const bool marked : {true, false}) {
    Program program;
    for (int i = 0; i < 40; ++i) program.step(marked);
    program.driver.endStep();
    for (int i = 0; i < 40; ++i) program.step(marked);
    EXPECT_EQ(program.driver.endStep().misses, 0U) << marked;
  }
}

TEST(ExternalInput, TakesNoWholeTokenWhereItIsExpected) {
  Program program;
  for (int i = 0; i < 8; ++i) program.step();
  const std::uint64_t before = program.driver.whole_tokens;
  for (int i = 0; i < 8; ++i) program.step();
  EXPECT_EQ(program.driver.whole_tokens, before);
  // Another size is not expected.
  program.driver.create("x0", 2 * kBatch);
  EXPECT_FALSE(program.driver.op("mul", {"x0", "w"}, {"y"}, 4096));
  EXPECT_EQ(program.driver.whole_tokens, before + 1);
}

TEST(ExternalInput, IsATransientOfItsFirstOp) {
  Program program;
  for (int i = 0; i < 4; ++i) program.step();
  const CycleMap map = program.map();
  const Cycle& cycle = map.cycle;
  EXPECT_EQ(cycle.problem(), "");
  ASSERT_EQ(cycle.ops(), std::size_t{kOps});
  for (const std::size_t op : {kCopy, kCopyAgain}) {
    const Operand t = cycle.operandsOf(op)[1];
    EXPECT_TRUE(t.creates());
    EXPECT_EQ(cycle.value_bytes[t.value()], kTemporary);
    EXPECT_EQ(map.values[t.value()].birth_op, op);
    EXPECT_EQ(map.values[t.value()].output, PathValue::kExternalInput);
    const auto freed = cycle.freedAfter(op + 1);
    EXPECT_EQ(std::count(freed.begin(), freed.end(), t.value()), 1);
  }
  // One temporary at a time; both y and both n while the second is made.
  EXPECT_EQ(peak_of(cycle), kWeight + kBatch + kTemporary + 4096 + 2 * 512);
}

// What the first step is handed for the first time, and all others use, was
// only recorded as if it began there.
TEST(ExternalInput, WhatStaysPersists) {
  Program program;
  OpDriver& driver = program.driver;
  for (int i = 0; i < 2; ++i) program.step();
  EXPECT_EQ(driver.profiler.state().paths, 1U); // the first step's
  const Forecast forecast(driver.profiler);
  for (int round = 0; round < 4; ++round) {
    const CycleMap map = program.map();
    std::size_t persistent = 0;
    for (ValueIndex v = 0; v < map.values.size(); ++v) {
      if (map.values[v].birth_op != kNone ||
          map.values[v].identity != driver.block("w").identity) {
        continue;
      }
      ++persistent;
      EXPECT_EQ(map.values[v].slot, driver.block("w").slot);
      for (const std::size_t op : {kMul, kMulAgain}) {
        const auto operands = map.cycle.operandsOf(op);
        EXPECT_EQ(std::count(operands.begin(), operands.end(),
                             Operand(v, Operand::kReads)),
                  1);
      }
    }
    EXPECT_EQ(persistent, 1U);
    const NextUse use = forecast.nextUse(driver.block("w").slot);
    EXPECT_EQ(use.kind, NextUseKind::kKnown);
    EXPECT_EQ(use.distance_ops, 0U);
    program.step();
  }
}

// A dead block's room may be kept for the next one of its size: its death is
// heard of when its successor has been used.
TEST(ExternalInput, DeathsThatAreHeardOfLateAreRightToo) {
  Program program;
  OpDriver& driver = program.driver;
  std::vector<std::pair<OpDriver::Block, std::uint64_t>> dead;
  for (int i = 0; i < 5; ++i) {
    driver.op("mul", {"w"}, {"y"}, 4096);
    driver.create("t", kTemporary);
    driver.op("copy_", {"=t", "y"});
    for (const auto& [block, when] : dead) {
      driver.profiler.freed(block.slot, when);
    }
    dead.clear();
    driver.op("norm", {"t"}, {"n"}, 512);
    dead.emplace_back(driver.forget("t"), driver.profiler.opCount());
    driver.op("relu", {"w", "n"}, {"z"}, 512);
    driver.profiler.step();
  }
  const Cycle cycle = program.map().cycle;
  ASSERT_EQ(cycle.ops(), 4U);
  const auto freed = cycle.freedAfter(2);
  ASSERT_EQ(freed.size(), 1U);
  EXPECT_EQ(cycle.value_bytes[freed[0]], kTemporary);
}

TEST(ExternalInput, ATraceSaysSo) {
  Program program;
  for (int i = 0; i < 6; ++i) program.step();
  const CycleMap map = program.map();
  const std::string text =
      write_trace(make_trace(map, program.driver.names, {}));
  const Trace trace = read_trace(text).value();
  EXPECT_EQ(write_trace(trace), text);
  ASSERT_EQ(trace.ops[kCopy].fresh.size(), 1U);
  EXPECT_EQ(trace.ops[kCopy].out.size(), 1U);
  EXPECT_EQ(peak_of(make_cycle(trace).value()), peak_of(map.cycle));
}

// Two short rounds in turn, so that two of them pass before a death is heard
// of.
TEST(ExternalInput, ADeathThatIsHeardOfLateIsADeath) {
  OpDriver driver;
  driver.create("w", kWeight);
  std::optional<OpDriver::Block> dead;
  for (int step = 0; step < 12; ++step) {
    driver.create("x", kBatch);
    driver.op("fill", {"=x"});
    if (dead) driver.profiler.freed(dead->slot, driver.profiler.opCount() - 2);
    driver.op("mul", {"x", "w"}, {"y"});
    dead = driver.forget("x");
    driver.profiler.step();
    driver.op("count", {"+w"});
    driver.profiler.step();
    const auto misses = driver.endStep().misses;
    if (step >= 4) {
      EXPECT_EQ(misses, 0U) << step;
    }
  }
}

TEST(ExternalInput, WhatIsFreshMustBeAmongOut) {
  const auto read = read_trace(
      R"({"trace":1,"bw_in":1,"bw_out":1,"bw_both":1})"
      "\n"
      R"({"op":"mm","t":0,"dur_ns":5,"in":[[1,512]],"out":[[2,512]],)"
      R"("write":[2],"free":[],"fresh":[1]})"
      "\n{\"step\":1}\n");
  ASSERT_FALSE(read.ok());
  EXPECT_EQ(read.error().message(),
            "trace line 2: storage 1 is fresh but not among out");
}

} // namespace
} // namespace chameleon::profiler
