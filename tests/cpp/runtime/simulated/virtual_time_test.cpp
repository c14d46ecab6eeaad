// All times here were worked out by hand.
#include "backend/runtime/simulated/virtual_time.h"

#include <gtest/gtest.h>
#include <vector>

namespace chameleon::runtime {
namespace {

constexpr Picoseconds kUs = 1'000'000;
constexpr VirtualTime::Line kIn = VirtualTime::kIn;
constexpr VirtualTime::Line kOut = VirtualTime::kOut;

// 50 bytes a microsecond each way, 80 both, 2 us of latency.
constexpr LinkRates kLink{50, 50, 80, 2 * kUs};

Picoseconds end_of(VirtualTime& time, VirtualTime::Line line) {
  const VirtualTime::Mark mark = time.mark(line);
  time.await(mark);
  const Picoseconds end = time.timeOf(mark);
  time.release(mark);
  return end;
}

TEST(VirtualTime, KernelsRunOneAfterTheOther) {
  VirtualTime time(kLink);
  const VirtualTime::Line compute = time.addLine();
  for (int i = 1; i <= 4; ++i) time.compute(compute, i * kUs);
  EXPECT_EQ(time.now(), 0);
  EXPECT_EQ(end_of(time, compute), 10 * kUs);
  EXPECT_EQ(time.computeTime(), 10 * kUs);
  EXPECT_EQ(time.stallTime(), 0);
}

TEST(VirtualTime, ACopyTakesLatencyAndBandwidth) {
  VirtualTime time(kLink);
  time.copy(kIn, 500);
  time.copy(kIn, 0); // latency all the same
  EXPECT_EQ(end_of(time, kIn), 14 * kUs);
}

TEST(VirtualTime, WhatHasNotBegunIsTakenBack) {
  VirtualTime time(kLink);
  EXPECT_EQ(time.copy(kIn, 500), 1U);
  EXPECT_EQ(time.copy(kIn, 500), 2U);
  EXPECT_EQ(time.copy(kIn, 500), 3U);
  EXPECT_EQ(time.copy(kOut, 500), 1U);
  EXPECT_FALSE(time.shrink(kIn, 1, 500)); // runs
  EXPECT_FALSE(time.shrink(kOut, 1, 500));
  EXPECT_TRUE(time.shrink(kIn, 2, 200)); // a part
  EXPECT_TRUE(time.shrink(kIn, 3, 500)); // all of it, and its latency
  EXPECT_EQ(end_of(time, kOut), 14 * kUs + kUs / 2);
  EXPECT_EQ(end_of(time, kIn), 14 * kUs + kUs / 2 + 8 * kUs);
  EXPECT_FALSE(time.shrink(kIn, 2, 1)); // is done
}

TEST(VirtualTime, RoundsUpToPicoseconds) {
  VirtualTime time({3, 3, 6, 0});
  time.copy(kIn, 1);
  EXPECT_EQ(end_of(time, kIn), 333'334);
}

TEST(VirtualTime, BothDirectionsShareTheJointLimit) {
  VirtualTime time(kLink);
  time.copy(kIn, 500);
  time.copy(kOut, 500); // each at 40 from 2 us on
  EXPECT_EQ(end_of(time, kIn), 14 * kUs + kUs / 2);
  EXPECT_EQ(end_of(time, kOut), 14 * kUs + kUs / 2);
}

TEST(VirtualTime, RatesChangeWhenADirectionEnds) {
  VirtualTime time(kLink);
  time.copy(kIn, 500);
  time.copy(kOut, 200); // 5 us at 40; then 300 are left at 50
  EXPECT_EQ(end_of(time, kOut), 7 * kUs);
  EXPECT_EQ(end_of(time, kIn), 13 * kUs);
}

TEST(VirtualTime, RatesChangeWhenADirectionBegins) {
  VirtualTime time(kLink);
  const VirtualTime::Line compute = time.addLine();
  time.copy(kIn, 500);
  time.compute(compute, 4 * kUs);
  const VirtualTime::Mark computed = time.mark(compute);
  time.wait(kOut, computed);
  time.release(computed);
  time.copy(kOut, 1000);
  // In: 2..6 us at 50 (200), then 300 at 40. Out: latency 4..6 us, 300 at 40
  // until 13.5 us, then 700 at 50.
  EXPECT_EQ(end_of(time, kIn), 13 * kUs + kUs / 2);
  EXPECT_EQ(end_of(time, kOut), 27 * kUs + kUs / 2);
}

TEST(VirtualTime, ASlowDirectionLeavesTheOtherWhatItCannotUse) {
  VirtualTime time({50, 20, 60, 0});
  time.copy(kIn, 400); // 40
  time.copy(kOut, 200);
  EXPECT_EQ(end_of(time, kIn), 10 * kUs);
  EXPECT_EQ(end_of(time, kOut), 10 * kUs);
}

// Thirty ops: ten times fetch 400 bytes, compute 10 us on them, write 400
// bytes back. Fetches 1 and 2 flow alone and take 2 + 8 us; fetch k >= 3 flows
// beside write-back k - 2 and takes 2 + 10 us, so the period is 12 us.
TEST(VirtualTime, ThirtyOpsByHand) {
  VirtualTime time(kLink);
  const VirtualTime::Line compute = time.addLine();
  std::vector<VirtualTime::Mark> fetched;
  std::vector<VirtualTime::Mark> computed;
  std::vector<VirtualTime::Mark> written;
  for (int k = 0; k < 10; ++k) {
    time.copy(kIn, 400);
    fetched.push_back(time.mark(kIn));
    time.wait(compute, fetched.back());
    time.compute(compute, 10 * kUs);
    computed.push_back(time.mark(compute));
    time.wait(kOut, computed.back());
    time.copy(kOut, 400);
    written.push_back(time.mark(kOut));
  }
  EXPECT_EQ(time.now(), 0);
  time.await(written.back());
  const std::vector<int> fetches{10, 20, 32, 44, 56, 68, 80, 92, 104, 116};
  const std::vector<int> kernels{20, 30, 42, 54, 66, 78, 90, 102, 114, 126};
  const std::vector<int> writes{32, 44, 56, 68, 80, 92, 104, 116, 126, 136};
  for (std::size_t k = 0; k < 10; ++k) {
    EXPECT_EQ(time.timeOf(fetched[k]), fetches[k] * kUs) << k;
    EXPECT_EQ(time.timeOf(computed[k]), kernels[k] * kUs) << k;
    EXPECT_EQ(time.timeOf(written[k]), writes[k] * kUs) << k;
  }
  EXPECT_EQ(time.computeTime(), 100 * kUs);
  EXPECT_EQ(time.stallTime(), 26 * kUs); // 10, 0, then 2 each
}

TEST(VirtualTime, TheHostRunsAheadAsFarAsAQueueIsLong) {
  VirtualTime time(kLink);
  const VirtualTime::Line compute = time.addLine();
  const auto ahead = static_cast<Picoseconds>(VirtualTime::kAhead);
  for (Picoseconds i = 0; i < ahead; ++i) time.compute(compute, kUs);
  EXPECT_EQ(time.now(), 0);
  time.compute(compute, kUs);
  EXPECT_EQ(time.now(), kUs);
  time.compute(compute, kUs);
  EXPECT_EQ(time.now(), 2 * kUs);
  EXPECT_EQ(time.computeTime(), 2 * kUs);
  EXPECT_EQ(end_of(time, compute), (ahead + 2) * kUs);
}

TEST(VirtualTime, WhatIsSubmittedLaterStartsLater) {
  VirtualTime time(kLink);
  const VirtualTime::Line compute = time.addLine();
  time.compute(compute, 5 * kUs);
  EXPECT_EQ(end_of(time, compute), 5 * kUs);
  time.copy(kIn, 0);
  EXPECT_EQ(end_of(time, kIn), 7 * kUs);
  time.idle(3 * kUs);
  EXPECT_EQ(time.now(), 10 * kUs);
  EXPECT_EQ(end_of(time, compute), 10 * kUs); // the mark's own time
}

TEST(VirtualTime, FiguresUpToNow) {
  VirtualTime time(kLink);
  const VirtualTime::Line compute = time.addLine();
  time.copy(kIn, 100); // until 4 us
  const VirtualTime::Mark fetched = time.mark(kIn);
  time.wait(compute, fetched);
  time.release(fetched);
  time.compute(compute, 4 * kUs);
  time.idle(3 * kUs);
  EXPECT_EQ(time.stallTime(), 3 * kUs);
  EXPECT_EQ(time.computeTime(), 0);
  time.idle(3 * kUs);
  EXPECT_EQ(time.stallTime(), 4 * kUs);
  EXPECT_EQ(time.computeTime(), 2 * kUs);
}

TEST(VirtualTime, MovesAreNoKernels) {
  VirtualTime time(kLink);
  const VirtualTime::Line compute = time.addLine();
  time.compute(compute, 4 * kUs);
  time.move(compute, 3 * kUs);
  time.idle(5 * kUs);
  EXPECT_EQ(time.stallTime(), kUs);
  EXPECT_EQ(end_of(time, compute), 7 * kUs);
  EXPECT_EQ(time.computeTime(), 4 * kUs);
  EXPECT_EQ(time.stallTime(), 3 * kUs);
}

constexpr VirtualTime::Line kMoves = VirtualTime::kMoves;
constexpr VirtualTime::Share kWhole = VirtualTime::kWhole;

TEST(VirtualTime, AMoveRunsBesideAKernelThatNeedsNoMemory) {
  VirtualTime time(kLink);
  const VirtualTime::Line compute = time.addLine();
  time.compute(compute, 4 * kUs, 0);
  time.move(kMoves, 3 * kUs);
  EXPECT_EQ(end_of(time, kMoves), 3 * kUs);
  EXPECT_EQ(end_of(time, compute), 4 * kUs);
  EXPECT_EQ(time.stallTime(), 0);
}

TEST(VirtualTime, AMoveGetsWhatAKernelLeaves) {
  VirtualTime time(kLink);
  const VirtualTime::Line compute = time.addLine();
  time.compute(compute, 4 * kUs, kWhole / 4);
  time.move(kMoves, 6 * kUs);
  EXPECT_EQ(end_of(time, compute), 4 * kUs); // the move has done 3 of its 6
  EXPECT_EQ(end_of(time, kMoves), 7 * kUs);
  EXPECT_EQ(time.computeTime(), 4 * kUs);
  EXPECT_EQ(time.stallTime(), 0);
}

TEST(VirtualTime, AMoveAndAKernelThatNeedsAllShareTheMemory) {
  VirtualTime time(kLink);
  const VirtualTime::Line compute = time.addLine();
  time.compute(compute, 4 * kUs);
  time.move(kMoves, 3 * kUs);
  time.idle(2 * kUs);
  EXPECT_EQ(time.computeTime(), kUs);
  EXPECT_EQ(time.stallTime(), kUs);
  EXPECT_EQ(end_of(time, kMoves), 6 * kUs);
  EXPECT_EQ(end_of(time, compute), 7 * kUs); // the last one at full speed
  EXPECT_EQ(time.computeTime(), 4 * kUs);
  EXPECT_EQ(time.stallTime(), 3 * kUs);
}

TEST(VirtualTime, KernelsShareTheirHalf) {
  VirtualTime time(kLink);
  const VirtualTime::Line one = time.addLine();
  const VirtualTime::Line other = time.addLine();
  time.compute(one, 4 * kUs, kWhole / 2);
  time.compute(other, 2 * kUs, kWhole / 2);
  time.move(kMoves, 8 * kUs);
  EXPECT_EQ(end_of(time, other), 4 * kUs);
  EXPECT_EQ(end_of(time, one), 6 * kUs); // alone it has all that it needs
  EXPECT_EQ(end_of(time, kMoves), 11 * kUs);
}

TEST(VirtualTime, ToWaitForAMoveIsAStall) {
  VirtualTime time(kLink);
  const VirtualTime::Line compute = time.addLine();
  time.move(kMoves, 3 * kUs);
  const VirtualTime::Mark moved = time.mark(kMoves);
  time.wait(compute, moved);
  time.release(moved);
  time.compute(compute, kUs);
  EXPECT_EQ(end_of(time, compute), 4 * kUs);
  EXPECT_EQ(time.stallTime(), 3 * kUs);
  EXPECT_EQ(time.computeTime(), kUs);
}

TEST(VirtualTime, MarksAreReused) {
  VirtualTime time(kLink);
  const VirtualTime::Mark first = time.mark(kIn);
  EXPECT_TRUE(time.passed(first));
  time.release(first);
  EXPECT_EQ(time.mark(kIn), first);
}

TEST(VirtualTimeDeathTest, AMarkIsReleasedOnce) {
  VirtualTime time(kLink);
  const VirtualTime::Mark mark = time.mark(kIn);
  time.release(mark);
  EXPECT_DEATH(time.release(mark), "released twice");
}

TEST(VirtualTime, AnExchangeRunsBesideKernels) {
  VirtualTime time(kLink);
  const VirtualTime::Line compute = time.addLine();
  const VirtualTime::Line group = time.addLine();
  time.compute(compute, 2 * kUs);
  const VirtualTime::Mark ready = time.mark(compute);
  time.wait(group, ready);
  time.release(ready);
  time.exchange(group, 5 * kUs); // from 2 to 7
  const VirtualTime::Mark done = time.mark(group);
  time.compute(compute, 3 * kUs); // hides 3 of it
  time.wait(compute, done);
  time.release(done);
  time.compute(compute, kUs);
  EXPECT_EQ(end_of(time, compute), 8 * kUs);
  EXPECT_EQ(time.computeTime(), 6 * kUs);
  EXPECT_EQ(time.stallTime(), 0);
}

TEST(VirtualTime, AnExchangeThatWaitsForACopyIsNoStall) {
  VirtualTime time(kLink);
  const VirtualTime::Line group = time.addLine();
  time.exchange(group, 0);
  time.copy(kIn, 500); // until 12
  const VirtualTime::Mark fetched = time.mark(kIn);
  time.wait(group, fetched);
  time.release(fetched);
  time.exchange(group, kUs);
  EXPECT_EQ(end_of(time, group), 13 * kUs);
  EXPECT_EQ(time.stallTime(), 0);
}

TEST(VirtualTime, OverTheHostsLinkItSharesWithCopies) {
  VirtualTime time(kLink);
  const VirtualTime::Line group = time.addLine();
  // Alone: both ways at once, 40 bytes a microsecond each.
  time.exchange(group, kUs, 400, 50);
  EXPECT_EQ(end_of(time, group), 11 * kUs);
  // Beside a copy in: 20 each way for both, until the copy is done.
  time.copy(kIn, 200); // 2 us of latency, then 20 a microsecond
  time.exchange(group, 2 * kUs, 400, 50);
  EXPECT_EQ(end_of(time, kIn), 23 * kUs);
  EXPECT_EQ(end_of(time, group), 28 * kUs); // 200 more at 40
  // One that is slower for other reasons leaves the rest.
  time.exchange(group, 2 * kUs, 50, 5);
  time.copy(kOut, 350); // 35 a microsecond
  EXPECT_EQ(end_of(time, kOut), 40 * kUs);
  EXPECT_EQ(end_of(time, group), 40 * kUs);
}

} // namespace
} // namespace chameleon::runtime
