// A sequence known beforehand: written as a trace by one run, expected by
// another one.
#include <gtest/gtest.h>
#include <string>

#include "op_driver.h"
#include "profiler/cycle_builder.h"
#include "profiler/forecast.h"
#include "profiler/trace_reader.h"
#include "profiler/trace_writer.h"

namespace chameleon::profiler {
namespace {

constexpr int kLayers = 6;

// Its optimizer has its state from the beginning.
void prepare(OpDriver& driver) {
  for (int i = 0; i < kLayers; ++i) {
    driver.create("m" + std::to_string(i), 1 << 20);
  }
}

// One step of the toy model as text, as a first process leaves it.
std::string recorded_trace() {
  OpDriver driver;
  ToyModel model(driver, kLayers);
  prepare(driver);
  for (int i = 0; i < 6; ++i) model.train();
  Durations durations;
  CycleBuilder builder(driver.profiler, durations);
  const auto map =
      builder.build(Forecast(driver.profiler).position().path).value();
  EXPECT_EQ(map.cycle.problem(), "");
  return write_trace(make_trace(map, driver.names, {}));
}

Trace read(const std::string& text) { return read_trace(text).value(); }

PathId expect(OpDriver& driver, const Trace& trace) {
  const PathId id = driver.profiler.nextPath();
  driver.profiler.expect(make_path(trace, 0, driver.names, id).value());
  return id;
}

class Expected : public testing::Test {
 protected:
  const Trace trace_ = read(recorded_trace());
};

TEST_F(Expected, IsFollowedFromTheFirstOp) {
  OpDriver driver;
  ToyModel model(driver, kLayers);
  prepare(driver);
  const PathId id = expect(driver, trace_);
  for (int step = 0; step < 5; ++step) {
    model.train();
    const auto count = driver.endStep();
    EXPECT_EQ(count.ops, trace_.ops.size());
    // Its end, and what comes after it, is not part of a trace.
    EXPECT_LE(count.misses, step == 1 ? 1U : 0U) << step;
    const Position place = Forecast(driver.profiler).position();
    EXPECT_EQ(place.path, id);
    EXPECT_EQ(place.next_op, place.ops);
  }
  EXPECT_EQ(driver.profiler.state().paths, 1U);
}

TEST_F(Expected, AnswersInTheFirstRound) {
  OpDriver driver;
  ToyModel model(driver, kLayers);
  prepare(driver);
  expect(driver, trace_);
  const Forecast forecast(driver.profiler);
  model.forward(8, true);
  // The last activation is used next, the first one much later; weights in
  // backward, in the opposite order.
  const NextUse last = forecast.nextUse(driver.block("x6").slot);
  const NextUse first = forecast.nextUse(driver.block("x1").slot);
  EXPECT_EQ(last.kind, NextUseKind::kKnown);
  EXPECT_EQ(first.kind, NextUseKind::kKnown);
  EXPECT_LT(last.distance_ops, first.distance_ops);
  const NextUse near = forecast.nextUse(driver.block("w5").slot);
  const NextUse far = forecast.nextUse(driver.block("w0").slot);
  EXPECT_EQ(near.kind, NextUseKind::kKnown);
  EXPECT_LT(near.distance_ops, far.distance_ops);
}

TEST_F(Expected, IsTheSameCycle) {
  OpDriver driver;
  ToyModel model(driver, kLayers);
  prepare(driver);
  const PathId id = expect(driver, trace_);
  Durations durations;
  CycleBuilder builder(driver.profiler, durations);
  const Cycle before = builder.build(id)->cycle;
  for (int i = 0; i < 3; ++i) model.train();
  const Cycle after = builder.build(id)->cycle;
  const Cycle written = make_cycle(trace_).value();
  for (const Cycle* cycle : {&before, &after}) {
    EXPECT_EQ(cycle->problem(), "");
    EXPECT_EQ(cycle->ops(), written.ops());
    EXPECT_EQ(cycle->values(), written.values());
    EXPECT_EQ(cycle->operands.size(), written.operands.size());
  }
  EXPECT_EQ(before.duration_ns[1] / 64, written.duration_ns[1] / 64);
  EXPECT_EQ(before.freed.size(), written.freed.size());
  // One dies when its successor is there, which a trace cannot say.
  EXPECT_EQ(after.freed.size(), written.freed.size() - 1);
  EXPECT_EQ(before.value_bytes, after.value_bytes);
}

TEST_F(Expected, BeginsAfterOtherOpsToo) {
  OpDriver driver;
  ToyModel model(driver, kLayers);
  prepare(driver);
  expect(driver, trace_);
  driver.create("other", 3 << 20);
  for (int i = 0; i < 3; ++i) driver.op("normal_", {"+other"});
  driver.endStep();
  model.train();
  // Eight ops make the place certain.
  EXPECT_EQ(driver.endStep().misses, 8U);
}

TEST_F(Expected, BeginsAtAMarker) {
  OpDriver driver;
  ToyModel model(driver, kLayers);
  prepare(driver);
  const PathId id = expect(driver, trace_);
  model.eval();
  driver.profiler.step();
  driver.endStep();
  for (int step = 0; step < 4; ++step) {
    model.train();
    driver.profiler.step();
    EXPECT_LE(driver.endStep().misses, step == 0 ? 0U : 1U);
  }
  EXPECT_NE(Forecast(driver.profiler).position().path, 0U);
  EXPECT_EQ(driver.profiler.state().path, id);
}

TEST_F(Expected, StateThatIsMadeFirst) {
  OpDriver driver;
  ToyModel model(driver, kLayers);
  expect(driver, trace_);
  model.train(); // makes the optimizer's state in its midst
  EXPECT_EQ(driver.endStep().misses, std::uint32_t{kLayers});
  for (int step = 0; step < 4; ++step) {
    model.train();
    EXPECT_LE(driver.endStep().misses, step == 0 ? 8U : 1U) << step;
  }
}

TEST_F(Expected, AnotherProgramIsLearnedAsEver) {
  OpDriver with;
  OpDriver without;
  std::uint32_t misses[2] = {};
  for (OpDriver* driver : {&with, &without}) {
    ToyModel model(*driver, kLayers + 3);
    if (driver == &with) expect(*driver, trace_);
    for (int i = 0; i < 8; ++i) model.train(16);
    driver->endStep();
    for (int i = 0; i < 8; ++i) model.train(16);
    misses[driver == &with ? 0 : 1] = driver->endStep().misses;
  }
  EXPECT_EQ(misses[0], misses[1]);
  EXPECT_EQ(misses[0], 0U);
}

} // namespace
} // namespace chameleon::profiler
