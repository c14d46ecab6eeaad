// What is measured while ops run: durations, steps, the link, the timeline; on
// the cpu runtime and, to the nanosecond, on a simulated GPU.
#include <algorithm>
#include <gtest/gtest.h>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "backend/runtime/cpu/cpu_runtime.h"
#include "backend/runtime/simulated/simulated_runtime.h"
#include "memory/pager.h"
#include "memory/streams/op_timer.h"
#include "tests/cpp/memory/policy/hand_profile.h"

namespace chameleon::memory {
namespace {

constexpr std::size_t kKiB = 1024;
constexpr std::size_t kBytes = 1024 * kKiB;
constexpr runtime::Stream kStream = runtime::kDefaultComputeStream;

struct Device {
  std::unique_ptr<runtime::DeviceRuntime> runtime;
  std::unique_ptr<Pager> pager;
  OpMemory memory;

  explicit Device(std::unique_ptr<runtime::DeviceRuntime> made,
                  std::size_t budget = 64 * kBytes)
      : runtime(std::move(made)),
        pager(Pager::create(*runtime, {budget, 1 << 30, 64}, "lru").value()) {}

  Block* create() { return pager->createBlock(kBytes).value(); }
  void op(std::uint32_t name, Block* block, Access access = Access::kWrite) {
    Call call;
    const Operand operand{block, access};
    const profiler::Token token = name;
    const OpIdentity identity = OpIdentity::of(name, token);
    ASSERT_TRUE(pager
                    ->begin(call, kStream, {&operand, 1}, &memory, "op", false,
                            &identity)
                    .ok());
    ASSERT_TRUE(
        runtime->computed(kStream, {.bytes = static_cast<double>(name)}).ok());
    call.overwritten();
    pager->end(call);
  }
};

std::unique_ptr<runtime::DeviceRuntime> simulated() {
  return runtime::make_simulated_runtime(hand_profile());
}

TEST(PagerMeasure, NoStepNoFigures) {
  Device device(simulated());
  EXPECT_FALSE(device.pager->meter().lastStep().has_value());
  device.pager->meter().step(kStream); // nothing ran
  EXPECT_FALSE(device.pager->meter().lastStep().has_value());
}

TEST(PagerMeasure, AStepOnTheSimulatedClockIsExact) {
  Device device(simulated());
  Block* const block = device.create();
  device.op(500, block);
  device.pager->meter().step(kStream);
  for (int i = 0; i < 3; ++i) {
    device.op(3000, block);
    device.op(4000, block);
    ASSERT_TRUE(device.pager->evict(*block).ok());
    device.op(5000, block);
    device.pager->meter().step(kStream);
  }
  const StepFigures step = device.pager->meter().lastStep().value();
  EXPECT_EQ(step.ops, 3);
  EXPECT_EQ(step.bytes_in, kBytes);
  EXPECT_EQ(step.bytes_out, kBytes);
  EXPECT_EQ(step.compute_ns, 3000 + 4000 + 5000 + 3 * 1000);
  // Out and in again, one after the other, and nothing else meanwhile.
  EXPECT_EQ(step.stall_ns, 2 * (2000 + kBytes));
  EXPECT_EQ(step.duration_ns, step.compute_ns + step.stall_ns);
  // 2 MiB at 1,500 bytes a microsecond.
  EXPECT_EQ(step.bound_ns, static_cast<std::int64_t>(2 * kBytes / 1.5));
  EXPECT_EQ(step.forecast_hits + step.forecast_misses, 3);
  EXPECT_EQ(step.plan, nullptr);
  device.pager->release(block);
}

TEST(PagerMeasure, WhatIsMirroredIsOfTheStepInWhichItLeaves) {
  Device device(simulated());
  Block* const block = device.create();
  std::byte kept{}; // a simulated device writes nothing there
  device.op(500, block);
  device.pager->meter().step(kStream);
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(
        device.pager->mirror({block, 0, kBytes, &kept}, {}, kStream).ok());
    device.op(3000, block);
    device.pager->meter().step(kStream);
    ASSERT_TRUE(device.pager->finishMirror().value());
    const StepFigures step = device.pager->meter().lastStep().value();
    EXPECT_EQ(step.mirror_bytes_out, kBytes);
    EXPECT_EQ(step.bytes_out, 0);
    // The op writes it, so it left before, at 1,000 bytes a microsecond.
    EXPECT_EQ(step.bound_ns, kBytes);
    EXPECT_EQ(device.pager->meter().link().now().mirrored_bytes, kBytes);
    if (i == 1) device.pager->resetStats();
  }
  device.pager->release(block);
}

TEST(PagerMeasure, StepsThatAreFoundHaveFigures) {
  Device device(simulated());
  std::vector<Block*> blocks;
  for (int i = 0; i < 50; ++i) blocks.push_back(device.create());
  for (int step = 0; step < 6; ++step) {
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      device.op(1000 + static_cast<std::uint32_t>(i), blocks[i]);
    }
  }
  const StepFigures step = device.pager->meter().lastStep().value();
  EXPECT_EQ(step.ops, 50);
  EXPECT_EQ(step.forecast_hits, 50);
  EXPECT_EQ(step.compute_ns, 50 * 2000 + 49 * 50 / 2);
  EXPECT_EQ(step.duration_ns, step.compute_ns);
  EXPECT_EQ(step.bound_ns, step.compute_ns);
  const Stats stats = device.pager->stats();
  EXPECT_EQ(stats.ops, 300);
  EXPECT_EQ(stats.forecast_hits + stats.forecast_misses, 300);
  EXPECT_GE(stats.steps, 4);
  device.pager->resetStats();
  EXPECT_EQ(device.pager->stats().steps, 0);
  EXPECT_EQ(device.pager->stats().forecast_hits, 0);
  EXPECT_EQ(device.pager->meter().lastStep()->ops,
            50); // counters are not its base
  for (Block* block : blocks) device.pager->release(block);
}

TEST(PagerMeasure, ResettingCountersDoesNotChangeTheStep) {
  Device device(simulated());
  Block* const block = device.create();
  device.op(1, block);
  device.pager->meter().step(kStream);
  ASSERT_TRUE(device.pager->evict(*block).ok());
  device.pager->resetStats();
  device.op(1, block);
  device.pager->meter().step(kStream);
  const StepFigures step = device.pager->meter().lastStep().value();
  EXPECT_EQ(step.bytes_out, kBytes);
  EXPECT_EQ(step.bytes_in, kBytes);
  device.pager->release(block);
}

// The first step moves more than those that follow.
TEST(PagerMeasure, HostMemoryThatStepsDoNotNeedIsGivenBack) {
  Device device(simulated(), 256 * kBytes);
  constexpr std::int64_t kSlab = HostPool::kUnitBytes;
  std::vector<Block*> blocks;
  for (int i = 0; i < 3 * 64; ++i) {
    blocks.push_back(device.create());
    device.op(1, blocks.back());
    ASSERT_TRUE(device.pager->evict(*blocks.back()).ok());
  }
  device.pager->meter().step(kStream);
  EXPECT_EQ(device.pager->meter().lastStep()->host_bytes, 3 * kSlab);
  EXPECT_EQ(device.pager->stats().host_reserved_bytes, 3 * kSlab);
  while (blocks.size() > 1) {
    device.pager->release(blocks.back());
    blocks.pop_back();
  }
  for (int i = 0; i < 12; ++i) {
    device.op(2, blocks[0]);
    EXPECT_TRUE(device.pager->evict(*blocks[0]).ok());
    device.pager->meter().step(kStream);
    // Waits for the copies; a slab that one of them uses is not given back.
    EXPECT_EQ(device.pager->meter().lastStep()->host_bytes,
              i == 0 ? 3 * kSlab : kBytes); // with where it began
  }
  EXPECT_EQ(device.pager->stats().host_reserved_bytes, kSlab);
  // Where nothing moves, nothing is held.
  for (int i = 0; i < 12; ++i) {
    device.op(3, blocks[0]);
    device.pager->meter().step(kStream);
    EXPECT_EQ(device.pager->meter().lastStep()->host_bytes,
              i == 0 ? kBytes : 0);
  }
  EXPECT_EQ(device.pager->stats().host_reserved_bytes, 0);
  device.pager->release(blocks[0]);
}

// Every op is timed by events while the timeline records, and the clock says
// what each took.
TEST(PagerMeasure, SimulatedOpsHaveTheirExactDurations) {
  Device device(simulated());
  Block* const block = device.create();
  device.pager->meter().recordTimeline(true);
  for (std::uint32_t name : {3000U, 4000U, 5000U}) device.op(name, block);
  ASSERT_TRUE(device.pager->evict(*block).ok());
  device.op(6000, block);
  ASSERT_TRUE(device.pager->synchronize().ok());
  const auto intervals = device.pager->meter().timeline().intervals();
  std::map<profiler::Lane, std::vector<profiler::Interval>> lanes;
  for (const auto& interval : intervals) {
    lanes[interval.lane].push_back(interval);
  }
  std::int64_t now_ns = 0;
  std::uint64_t call = 0;
  ASSERT_EQ(lanes[profiler::Lane::kCompute].size(), 4U);
  for (const auto& op : lanes[profiler::Lane::kCompute]) {
    EXPECT_EQ(op.call, ++call);
    if (op.op == 6000) now_ns += 2 * (2000 + kBytes);
    EXPECT_EQ(op.begin_ns, now_ns);
    now_ns += op.op + 1000;
    EXPECT_EQ(op.end_ns, now_ns);
    EXPECT_EQ(device.pager->meter().durations().op(op.op, 1), op.op + 1000);
  }
  ASSERT_EQ(lanes[profiler::Lane::kOut].size(), 1U);
  ASSERT_EQ(lanes[profiler::Lane::kIn].size(), 1U);
  EXPECT_EQ(lanes[profiler::Lane::kIn][0].bytes, kBytes);
  EXPECT_EQ(lanes[profiler::Lane::kIn][0].end_ns -
                lanes[profiler::Lane::kIn][0].begin_ns,
            2000 + kBytes);
  ASSERT_EQ(lanes[profiler::Lane::kStalls].size(), 1U);
  EXPECT_EQ(lanes[profiler::Lane::kStalls][0].op, 6000U);
  EXPECT_EQ(lanes[profiler::Lane::kStalls][0].call, 4U);
  EXPECT_EQ(device.pager->calls(), 4U);
  EXPECT_EQ(lanes[profiler::Lane::kStalls][0].end_ns, now_ns - 7000);
  ASSERT_EQ(lanes[profiler::Lane::kDecisions].size(), 1U);
  EXPECT_EQ(lanes[profiler::Lane::kDecisions][0].bytes, kBytes);
  EXPECT_STREQ(lanes[profiler::Lane::kDecisions][0].what, "fetch");
  device.pager->meter().recordTimeline(false);
  device.op(7000, block);
  EXPECT_EQ(device.pager->meter().timeline().intervals().size(),
            intervals.size());
  device.pager->release(block);
}

// An op that needs nothing but the memory takes twice as long beside a move of
// as many bytes; that is not its own duration.
TEST(PagerMeasure, AMoveBesideAnOpIsNoPartOfItsDuration) {
  Device device(simulated());
  Block* const block = device.create();
  device.pager->meter().recordTimeline(true);
  std::byte* const there = device.runtime->reserve(1 << 20).value();
  const runtime::Copy move{there, there + 2000, 2000}; // reads and writes
  ASSERT_TRUE(
      device.runtime->copy(device.runtime->moveStream(), {&move, 1}).ok());
  device.op(4000, block);
  ASSERT_TRUE(device.pager->synchronize().ok());
  for (const auto& interval : device.pager->meter().timeline().intervals()) {
    if (interval.lane != profiler::Lane::kCompute) continue;
    EXPECT_GT(interval.end_ns - interval.begin_ns, 5000);
  }
  EXPECT_EQ(device.pager->meter().durations().op(4000, 1), 5000);
  device.pager->release(block);
}

TEST(PagerMeasure, BlocksAreThoseWhoseStoragesLive) {
  Device device(simulated());
  Block* const written = device.create();
  Block* const unwritten = device.create();
  Block* const evicted = device.create();
  Block* const dead = device.create();
  for (Block* block : {written, evicted, dead}) device.op(1, block);
  ASSERT_TRUE(device.pager->evict(*evicted).ok());
  device.pager->release(dead); // kept as a spare block, and free memory
  std::map<std::uint64_t, Pager::BlockInfo> rows;
  for (const Pager::BlockInfo& row : device.pager->blocks()) {
    rows.emplace(row.identity, row);
  }
  ASSERT_EQ(rows.size(), 3U);
  EXPECT_EQ(rows.at(written->identity).state, BlockState::kResident);
  EXPECT_EQ(rows.at(unwritten->identity).state, BlockState::kUnbacked);
  const BlockState state = rows.at(evicted->identity).state;
  EXPECT_TRUE(state == BlockState::kHost || state == BlockState::kEvicting);
  EXPECT_EQ(rows.at(written->identity).bytes, kBytes);
  EXPECT_EQ(rows.at(written->identity).logical_address,
            written->logical_address);
  for (Block* block : {written, unwritten, evicted}) {
    device.pager->release(block);
  }
  EXPECT_TRUE(device.pager->blocks().empty());
}

TEST(PagerMeasure, WaitingForRoomInsideIsNoPartOfADuration) {
  Device device(simulated(), 3 * kBytes);
  device.pager->meter().recordTimeline(true);
  std::vector<Block*> blocks;
  for (int i = 0; i < 3; ++i) {
    blocks.push_back(device.create());
    device.op(500, blocks.back()); // dirty: they go by copies
  }
  Call call;
  const Operand operand{blocks[2], Access::kRead};
  constexpr profiler::Token kToken = 5000;
  const OpIdentity identity = OpIdentity::of(5000, kToken);
  ASSERT_TRUE(device.pager
                  ->begin(call, kStream, {&operand, 1}, &device.memory, "op",
                          false, &identity)
                  .ok());
  const auto take = [&] {
    return device.pager->allocate(call, kBytes).value();
  };
  const auto compute = [&](double bytes) {
    ASSERT_TRUE(device.runtime->computed(kStream, {.bytes = bytes}).ok());
  };
  std::vector<std::byte*> places = {take()};
  compute(5000); // between two waits
  places.push_back(take());
  compute(3000);
  for (std::byte* place : places) device.pager->free(&call, place);
  device.pager->end(call);
  ASSERT_TRUE(device.pager->synchronize().ok());
  const auto intervals = device.pager->meter().timeline().intervals();
  const auto op = std::find_if(
      intervals.begin(), intervals.end(), [](const auto& interval) {
        return interval.lane == profiler::Lane::kCompute && interval.op == 5000;
      });
  ASSERT_NE(op, intervals.end());
  EXPECT_GT(op->end_ns - op->begin_ns, std::int64_t{kBytes}); // a copy's time
  EXPECT_EQ(device.pager->meter().durations().op(5000, 1), 6000 + 4000);
  for (Block* block : blocks) device.pager->release(block);
}

TEST(PagerMeasure, AFewOpsAStepAreTimed) {
  Device device(simulated());
  Block* const block = device.create();
  for (int i = 0; i < 5000; ++i) device.op(100 + i % 50, block);
  ASSERT_TRUE(device.pager->synchronize().ok());
  (void)device.pager->meter().timeline(); // collects
  profiler::Durations& durations = device.pager->meter().durations();
  EXPECT_EQ(durations.tokens(), 50U);
  for (std::uint32_t name = 100; name < 150; ++name) {
    EXPECT_EQ(durations.op(name, kBytes), name + 1000);
  }
  EXPECT_GT(durations.stride(), 8U); // nothing surprises any more
  device.pager->release(block);
}

TEST(PagerMeasure, TheSimulatedLinkIsKnown) {
  Device device(simulated());
  const LinkModel link = device.pager->meter().link().now();
  EXPECT_DOUBLE_EQ(link.in_bytes_per_ns, 1);
  EXPECT_DOUBLE_EQ(link.out_bytes_per_ns, 1);
  EXPECT_DOUBLE_EQ(link.both_bytes_per_ns, 1.5);
  EXPECT_DOUBLE_EQ(link.latency_ns, 2000);
}

TEST(PagerMeasure, TheCpuLinkIsMeasured) {
  Device device(runtime::make_cpu_runtime());
  const LinkModel before = device.pager->meter().link().now();
  EXPECT_DOUBLE_EQ(before.in_bytes_per_ns, LinkModel{}.in_bytes_per_ns);
  std::vector<Block*> blocks;
  for (int i = 0; i < 16; ++i) blocks.push_back(device.create());
  std::int64_t longest_ns = 0; // that any copy can have taken
  for (int i = 0; i < 20; ++i) {
    const std::int64_t begin_ns = device.runtime->now_ns();
    for (Block* block : blocks) device.op(1, block);
    ASSERT_TRUE(device.pager->synchronize().ok());
    ASSERT_TRUE(device.pager->evictAll().ok());
    ASSERT_TRUE(device.pager->synchronize().ok());
    longest_ns = std::max(longest_ns, device.runtime->now_ns() - begin_ns);
  }
  const LinkModel link = device.pager->meter().link().now();
  for (const double measured : {link.in_bytes_per_ns, link.out_bytes_per_ns}) {
    EXPECT_GE(measured * static_cast<double>(longest_ns), kBytes);
    EXPECT_LT(measured, 54); // no memory here is that fast
  }
  for (Block* block : blocks) device.pager->release(block);
}

TEST(PagerMeasure, ACpuStepIsMeasured) {
  Device device(runtime::make_cpu_runtime());
  Block* const block = device.create();
  const auto ops = [&] {
    for (std::uint32_t i = 0; i < 40; ++i) device.op(100 + i, block);
  };
  for (int step = 0; step < 7; ++step) {
    ops();
    device.pager->meter().step(kStream);
  }
  ops();
  // A step is from the mark before it to its own, on the device, which passes
  // a mark when it gets to it: the one before within [earliest, begin], its own
  // within [end, latest].
  const std::int64_t earliest_ns = device.runtime->now_ns();
  device.pager->meter().step(kStream);
  ASSERT_TRUE(device.pager->synchronize().ok());
  const std::int64_t begin_ns = device.runtime->now_ns();
  ops();
  const std::int64_t end_ns = device.runtime->now_ns();
  device.pager->meter().step(kStream);
  const StepFigures step = device.pager->meter().lastStep().value();
  const std::int64_t latest_ns = device.runtime->now_ns();
  EXPECT_EQ(step.ops, 40);
  EXPECT_EQ(step.forecast_hits, 40);
  EXPECT_GE(step.duration_ns, end_ns - begin_ns);
  EXPECT_LE(step.duration_ns, latest_ns - earliest_ns);
  EXPECT_GT(step.compute_ns, 0);
  EXPECT_EQ(step.bytes_in, 0);
  device.pager->release(block);
}

// ---- steps that are slow ---------------------------------------------------

std::vector<std::string> warnings; // what the hook was called with

class PagerSlowdown : public testing::Test {
 protected:
  PagerSlowdown() {
    warnings.clear();
    Meter::slowdown_hook = [](SlowdownCause, const std::string& message) {
      warnings.push_back(message);
    };
  }
  ~PagerSlowdown() override { Meter::slowdown_hook = nullptr; }

  runtime::Error op(std::uint32_t name) {
    Call call;
    const Operand operand{block_, Access::kWrite};
    const profiler::Token token = name;
    const OpIdentity identity = OpIdentity::of(name, token);
    if (runtime::Error error =
            device_.pager->begin(call, kStream, {&operand, 1}, &device_.memory,
                                 "op", false, &identity)) {
      return error;
    }
    EXPECT_TRUE(device_.runtime->computed(kStream, {.bytes = kOpBytes}).ok());
    device_.pager->end(call);
    return {};
  }
  // Of 40 ops, before some of which the block is evicted.
  runtime::Error step(bool marked, int evictions) {
    for (std::uint32_t i = 0; i < 40; ++i) {
      if (i < static_cast<std::uint32_t>(evictions)) {
        EXPECT_TRUE(device_.pager->evict(*block_).ok());
      }
      if (runtime::Error error = op(100 + i)) return error;
    }
    EXPECT_TRUE(device_.pager->synchronize().ok()); // a loss is looked at
    if (marked) device_.pager->meter().step(kStream);
    return {};
  }

  void oneError(bool marked) {
    device_.pager->meter().setMaxSlowdown(2.4);
    int errors = 0;
    const int steps = marked ? 15 : SlowdownWatch::kWarmUpUnmarked + 10;
    for (int i = 0; i < steps; ++i) {
      const runtime::Error error = step(marked, kSlow);
      if (!error) continue;
      EXPECT_EQ(error.code(), runtime::ErrorCode::kTooSlow);
      EXPECT_NE(error.message().find("max_slowdown is 2.4"), std::string::npos);
      EXPECT_EQ(device_.pager->stats().pinned_bytes, 0);
      device_.pager->invariants().check(3);
      ++errors;
      device_.pager->meter().setMaxSlowdown(2.5);
    }
    EXPECT_EQ(errors, 1);
    EXPECT_TRUE(warnings.empty()); // the error has told it
  }

  // 40 ops take 44 ms, an eviction and a fetch together 2.1 ms: where 30 are
  // evicted, 1.43 times as long is spent waiting.
  static constexpr double kOpBytes = 1.1e6;
  static constexpr int kSlow = 30;
  Device device_{simulated()};
  Block* block_ = device_.create();
};

TEST_F(PagerSlowdown, OneWarningByTheOpThatFollows) {
  for (int i = 0; i < 8; ++i) {
    EXPECT_TRUE(warnings.empty());
    EXPECT_FALSE(step(/*marked=*/true, kSlow));
  }
  EXPECT_TRUE(warnings.empty()); // the third in a row, after five
  EXPECT_FALSE(op(100));
  ASSERT_EQ(warnings.size(), 1U);
  // 30 x 2 x (1 MiB + 2 us), and 40 x (1.1 ms + 1 us); 30 MiB each way.
  EXPECT_EQ(warnings[0].substr(0, warnings[0].find(" At ")),
            "chameleon:0: a step takes 107.1 ms, 2.43 times what it would "
            "without waiting for bytes.");
  EXPECT_NE(warnings[0].find("30.00 MiB in and 30.00 MiB out"),
            std::string::npos);
  for (int i = 0; i < 8; ++i) EXPECT_FALSE(step(true, kSlow));
  EXPECT_EQ(warnings.size(), 1U);
}

TEST_F(PagerSlowdown, NoneWhereItIsNotSlow) {
  for (int i = 0; i < 20; ++i) EXPECT_FALSE(step(true, kSlow / 2));
  EXPECT_TRUE(warnings.empty());
}

TEST_F(PagerSlowdown, StepsThatAreFound) {
  for (int i = 0; i < SlowdownWatch::kWarmUpUnmarked; ++i) {
    EXPECT_FALSE(step(/*marked=*/false, kSlow));
  }
  EXPECT_TRUE(warnings.empty());
  for (int i = 0; i < 10; ++i) EXPECT_FALSE(step(/*marked=*/false, kSlow));
  EXPECT_EQ(warnings.size(), 1U);
}

TEST_F(PagerSlowdown, TheLimitIsAnErrorOfOneOp) { oneError(true); }

TEST_F(PagerSlowdown, TheLimitWhereStepsAreFound) { oneError(false); }

TEST_F(PagerSlowdown, ABudgetThatChangesStartsAnew) {
  for (int i = 0; i < 20; ++i) {
    if (i % 7 == 6) {
      EXPECT_FALSE(device_.pager->budgets().setHbmBudget(
          static_cast<std::size_t>(i) * kBytes));
    }
    EXPECT_FALSE(step(true, kSlow));
  }
  EXPECT_TRUE(warnings.empty());
}

} // namespace
} // namespace chameleon::memory
