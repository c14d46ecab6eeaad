// How long exchanges took, and what of it was waiting for other ranks: to the
// nanosecond, on a simulated GPU.
#include "memory/figures/exchange_meter.h"

#include <gtest/gtest.h>
#include <memory>

#include "backend/runtime/simulated/simulated_runtime.h"
#include "memory/pager.h"
#include "tests/cpp/memory/policy/hand_profile.h"

namespace chameleon::memory {
namespace {

constexpr std::size_t kBytes = 1 << 20;
constexpr runtime::Stream kStream = runtime::kDefaultComputeStream;
constexpr runtime::Stream kGroup{7};
constexpr std::int64_t kCopy_ns = 2000 + kBytes;
// An identity refers to its token.
constexpr profiler::Token kOpToken = 1;
constexpr profiler::Token kSumToken = 2;
constexpr OpKind kSum{.name = "sum", .may_retry = true, .is_exchange = true};

class ExchangeMeterTest : public testing::Test {
 protected:
  ExchangeMeterTest()
      : runtime_(runtime::make_simulated_runtime(hand_profile())),
        pager_(Pager::create(*runtime_, {64 * kBytes, 1 << 30, 64}, "lru")
                   .value()),
        block_(pager_->createBlock(kBytes).value()) {
    op(0);
    step();
  }
  ~ExchangeMeterTest() override { pager_->release(block_); }

  // A kernel of `bytes` + 1,000 ns, on compute.
  void op(std::int64_t bytes) {
    Call call;
    const Operand operand{block_, Access::kWrite};
    const OpIdentity identity = OpIdentity::of(1, kOpToken);
    ASSERT_TRUE(pager_
                    ->begin(call, {.kind = {.name = "op"},
                                   .stream = kStream,
                                   .operands = {&operand, 1},
                                   .identity = &identity})
                    .ok());
    ASSERT_TRUE(
        runtime_->computed(kStream, {.bytes = static_cast<double>(bytes)})
            .ok());
    pager_->end(call);
  }
  // An exchange of 2 x `bytes` + 1,000 ns, behind compute, on a stream of its
  // own. The event: its end.
  runtime::Event exchange(double bytes, Access access = Access::kRead) {
    const runtime::Event before = runtime_->record(kStream).value();
    EXPECT_TRUE(runtime_->wait(kGroup, before).ok());
    runtime_->destroy(before);
    Call call;
    const Operand operand{block_, access};
    const OpIdentity identity = OpIdentity::of(2, kSumToken);
    EXPECT_TRUE(pager_
                    ->begin(call, {.kind = kSum,
                                   .stream = kGroup,
                                   .operands = {&operand, 1},
                                   .identity = &identity})
                    .ok());
    {
      const ExchangeSpan runs(meter(), ExchangePart::kRuns, kGroup);
      EXPECT_TRUE(runtime_
                      ->exchanged(kGroup, {runtime::ExchangePattern::kAllReduce,
                                           bytes, 1, 1})
                      .ok());
    }
    pager_->end(call);
    return runtime_->record(kGroup).value();
  }
  void wait(runtime::Stream stream, runtime::Event event) {
    {
      const ExchangeSpan waits(meter(), ExchangePart::kWaits, stream);
      ASSERT_TRUE(runtime_->wait(stream, event).ok());
    }
    runtime_->destroy(event);
  }
  StepFigures step() {
    pager_->meter().step(kStream);
    return pager_->meter().lastStep().value();
  }
  ExchangeMeter& meter() { return pager_->meter().exchanges(); }

  std::unique_ptr<runtime::DeviceRuntime> runtime_;
  std::unique_ptr<Pager> pager_;
  Block* block_;
};

TEST_F(ExchangeMeterTest, WhatComputeHidesIsNotExposed) {
  EXPECT_FALSE(meter().sawAny());
  const runtime::Event done = exchange(5000);
  EXPECT_TRUE(meter().sawAny());
  op(3000);
  wait(kStream, done);
  op(1000);
  const StepFigures figures = step();
  EXPECT_EQ(figures.exchange_ns, 11'000);
  EXPECT_EQ(figures.exposed_ns, 7000);
  EXPECT_EQ(figures.stall_ns, 0);
  EXPECT_EQ(figures.compute_ns, 4000 + 2000);
  EXPECT_EQ(figures.duration_ns, 13'000);
}

TEST_F(ExchangeMeterTest, WhereThisRankFetchesItIsAStall) {
  wait(kStream, exchange(500)); // from now on it is looked at
  step();
  ASSERT_TRUE(pager_->evict(*block_).ok());
  ASSERT_TRUE(pager_->synchronize().ok());    // the host waits: no stall
  const runtime::Event done = exchange(5000); // which fetches first
  wait(kStream, done);
  op(1000);
  const StepFigures figures = step();
  EXPECT_EQ(figures.exchange_ns, 11'000);
  EXPECT_EQ(figures.exposed_ns, 11'000);
  EXPECT_EQ(figures.stall_ns, kCopy_ns);
  EXPECT_EQ(figures.duration_ns, 2 * kCopy_ns + 11'000 + 2000);
}

TEST_F(ExchangeMeterTest, OtherStreamsMayWaitAsTheyLike) {
  constexpr runtime::Stream kBeside{8};
  const runtime::Event done = exchange(5000);
  const runtime::Event same = runtime_->record(kGroup).value();
  wait(kBeside, same);
  op(20'000);
  wait(kStream, done);
  const StepFigures figures = step();
  EXPECT_EQ(figures.exchange_ns, 11'000);
  EXPECT_EQ(figures.exposed_ns, 0);
}

// Nobody said so, but the next op uses its operand.
TEST_F(ExchangeMeterTest, AnOpMayWaitWithoutAWord) {
  runtime_->destroy(exchange(5000, Access::kWrite));
  op(1000);
  const StepFigures figures = step();
  EXPECT_EQ(figures.exposed_ns, 11'000);
  EXPECT_EQ(figures.duration_ns, 13'000);
}

// A plan counts on the time of compute, which a collective takes none of.
TEST_F(ExchangeMeterTest, AnExchangeTakesNoComputeTime) {
  for (int i = 0; i < 3; ++i) wait(kStream, exchange(5000));
  ASSERT_TRUE(pager_->synchronize().ok());
  const profiler::Token token = OpIdentity::of(2, kSumToken).whole();
  EXPECT_TRUE(pager_->meter().durations().known(token));
  EXPECT_EQ(pager_->meter().durations().op(token, kBytes), 0);
}

TEST_F(ExchangeMeterTest, ItsLaneIsItsOwn) {
  pager_->meter().recordTimeline(true);
  op(1000);
  wait(kStream, exchange(5000));
  pager_->meter().recordTimeline(false);
  std::size_t exchanges = 0;
  for (const auto& interval : pager_->meter().timeline().intervals()) {
    if (interval.lane != profiler::Lane::kExchanges) continue;
    ++exchanges;
    EXPECT_EQ(interval.end_ns - interval.begin_ns, 11'000);
  }
  EXPECT_EQ(exchanges, 1);
}

TEST_F(ExchangeMeterTest, SpansOfAStepAreBounded) {
  wait(kStream, exchange(500));
  for (std::size_t i = 0; i < ExchangeMeter::kMaxSpans; ++i) {
    const ExchangeSpan waits(meter(), ExchangePart::kWaits, kStream);
  }
  ExchangeMeter::Spans spans = meter().take();
  EXPECT_EQ(spans.size(), ExchangeMeter::kMaxSpans);
  meter().giveBack(spans);
}

} // namespace
} // namespace chameleon::memory
