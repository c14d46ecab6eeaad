// Operands that an op overwrites unread: what left HBM is not fetched for
// them, and comes back where the op did not overwrite it after all.
#include <gtest/gtest.h>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "profiler/forecast.h"
#include "tests/cpp/memory/pager_fixture.h"

namespace chameleon::memory {
namespace {

constexpr std::size_t kBytes = 64 * kKiB;

class PagerOverwriteTest : public PagerTest {
 protected:
  // Writes the first `bytes` of an operand to overwrite, and says so unless
  // the op fails.
  runtime::Error overwrite(Block* block, std::uint64_t seed,
                           std::size_t bytes = kBytes, bool fails = false) {
    Call call;
    const Operand operand{block, Access::kOverwrite};
    if (runtime::Error error =
            pager->begin(call, kStream, {&operand, 1}, &over_, "over", false)) {
      return error;
    }
    fill_pattern(block->device_address, bytes, seed);
    if (!fails) call.overwritten();
    if (!fails && bytes < block->bytes) call.overwritten(*block, bytes);
    pager->end(call);
    return {};
  }
  Block* evicted(std::uint64_t seed) {
    Block* const block = filled(kBytes, seed);
    EXPECT_TRUE(pager->evict(*block).ok());
    return block;
  }
  std::int64_t bytesIn() { return pager->stats().bytes_in; }

  OpMemory over_;
};

TEST_F(PagerOverwriteTest, WhatIsOverwrittenIsNotFetched) {
  open(kMiB);
  Block* const block = evicted(1);
  ASSERT_TRUE(overwrite(block, 2).ok());
  check();
  EXPECT_EQ(bytesIn(), 0);
  EXPECT_EQ(pager->stats().faults, 0);
  EXPECT_EQ(pager->stats().host_bytes, 0); // the old copy is gone
  EXPECT_TRUE(expect(block, 2).ok());
  // The new value leaves and comes back like any other.
  ASSERT_TRUE(pager->evict(*block).ok());
  EXPECT_TRUE(expect(block, 2).ok());
  EXPECT_EQ(bytesIn(), kBytes);
  pager->release(block);
}

TEST_F(PagerOverwriteTest, OfAResidentBlockTheHostCopyIsDropped) {
  open(kMiB);
  Block* const block = evicted(1);
  EXPECT_TRUE(expect(block, 1).ok()); // is clean now
  ASSERT_TRUE(overwrite(block, 2).ok());
  check();
  EXPECT_EQ(pager->stats().host_bytes, 0);
  EXPECT_TRUE(expect(block, 2).ok());
  pager->release(block);
}

TEST_F(PagerOverwriteTest, AnOpThatFailedLeavesTheOldValue) {
  open(kMiB);
  Block* const block = evicted(1);
  for (const std::size_t written : {std::size_t{0}, kBytes / 2, kBytes}) {
    ASSERT_TRUE(pager->evict(*block).ok());
    ASSERT_TRUE(overwrite(block, 2, written, /*fails=*/true).ok());
    check();
    EXPECT_TRUE(expect(block, 1).ok()) << written;
  }
  pager->release(block);
}

TEST_F(PagerOverwriteTest, WhatLiesBehindASmallerResultStays) {
  open(kMiB);
  Block* const block = evicted(1);
  ASSERT_TRUE(overwrite(block, 2, 1000).ok());
  check();
  EXPECT_EQ(bytesIn(), kBytes - 1000);
  std::vector<std::byte> now(kBytes);
  ASSERT_TRUE(pager->read(*block, 0, now.data(), kBytes, kStream).ok());
  std::vector<std::byte> expected = pattern(kBytes, 1);
  fill_pattern(expected.data(), 1000, 2);
  EXPECT_EQ(now, expected);
  pager->release(block);
}

TEST_F(PagerOverwriteTest, OnceReadItIsFetched) {
  open(kMiB);
  for (const Access other : {Access::kRead, Access::kWrite}) {
    for (const bool first : {false, true}) {
      Block* const block = evicted(1);
      pager->resetStats();
      Call call;
      Operand operands[] = {{block, Access::kOverwrite}, {block, other}};
      if (first) std::swap(operands[0], operands[1]);
      ASSERT_TRUE(
          pager->begin(call, kStream, operands, &over_, "over", false).ok());
      EXPECT_TRUE(holds(block->device_address, kBytes, 1));
      pager->end(call);
      EXPECT_EQ(bytesIn(), kBytes);
      check();
      pager->release(block);
    }
  }
}

TEST_F(PagerOverwriteTest, AFailureOnTheWayInLeavesTheOldValue) {
  open(4 * kBytes);
  Block* const block = evicted(1);
  auto& faults = runtime::FaultInjection::instance();
  for (const auto point :
       {runtime::FaultPoint::kCopy, runtime::FaultPoint::kEvent}) {
    for (std::uint64_t nth = 1; nth < 6; ++nth) {
      Block* others[4];
      for (Block*& other : others) other = filled(kBytes, 9);
      faults.arm(point, nth, false);
      const bool done = overwrite(block, 2).ok();
      faults.disarmAll();
      check();
      EXPECT_TRUE(expect(block, done ? 2 : 1).ok()) << nth;
      for (Block* other : others) {
        EXPECT_TRUE(expect(other, 9).ok());
        pager->release(other);
      }
      ASSERT_TRUE(fill(block, 1).ok());
      ASSERT_TRUE(pager->evict(*block).ok());
    }
  }
  pager->release(block);
}

// An op fails while it overwrites a block whose old bytes are on the host, and
// so does the copy that is to bring them back.
TEST_F(PagerOverwriteTest, OldBytesThatCannotComeBackStayOnTheHost) {
  open(kMiB);
  auto& faults = runtime::FaultInjection::instance();
  Block* const block = evicted(1);
  faults.arm(runtime::FaultPoint::kCopy, 1, /*for_ever=*/true);
  ASSERT_TRUE(overwrite(block, 2, kBytes, /*fails=*/true).ok());
  EXPECT_EQ(block->pins(), 0u);
  EXPECT_EQ(block->device, nullptr);
  check(2);
  std::vector<std::byte> now(kBytes);
  ASSERT_TRUE(pager->read(*block, 0, now.data(), kBytes, kStream).ok());
  EXPECT_EQ(now, pattern(kBytes, 1)); // no copy: they are there
  faults.disarmAll();
  EXPECT_TRUE(expect(block, 1).ok());

  // A smaller result goes to the rest of the old bytes instead.
  ASSERT_TRUE(pager->evict(*block).ok());
  faults.arm(runtime::FaultPoint::kCopy, 1, /*for_ever=*/false);
  ASSERT_TRUE(overwrite(block, 2, 1000).ok());
  faults.disarmAll();
  EXPECT_EQ(block->device, nullptr);
  check();
  std::vector<std::byte> expected = pattern(kBytes, 1);
  fill_pattern(expected.data(), 1000, 2);
  ASSERT_TRUE(pager->read(*block, 0, now.data(), kBytes, kStream).ok());
  EXPECT_EQ(now, expected);
  pager->release(block);
}

TEST_F(PagerOverwriteTest, WhatIsLostSaysSoUntilItIsOverwritten) {
  open(kMiB);
  auto& faults = runtime::FaultInjection::instance();
  std::vector<std::byte> bytes = pattern(kBytes, 3);
  for (const bool by_op : {true, false}) {
    Block* const block = evicted(1);
    faults.arm(runtime::FaultPoint::kCopy, 1, /*for_ever=*/true);
    ASSERT_TRUE(overwrite(block, 2, 1000).ok()); // neither way can be gone
    faults.disarmAll();
    check();
    EXPECT_EQ(block->pins(), 0u);
    EXPECT_EQ(pager->stats().host_bytes, 0);
    const runtime::Error read = expect(block, 1);
    ASSERT_TRUE(failed(read));
    EXPECT_EQ(read.code(), runtime::ErrorCode::kLost) << read.message();
    for (const std::size_t some : {std::size_t{1}, kBytes}) {
      EXPECT_EQ(pager->read(*block, 0, bytes.data(), some, kStream).code(),
                runtime::ErrorCode::kLost);
    }
    EXPECT_EQ(pager->write(*block, 0, bytes.data(), 8, kStream).code(),
              runtime::ErrorCode::kLost);
    EXPECT_EQ(fill(block, 3).code(), runtime::ErrorCode::kLost); // as add_()
    check();
    if (by_op) {
      ASSERT_TRUE(overwrite(block, 3).ok());
    } else {
      ASSERT_TRUE(pager->write(*block, 0, bytes.data(), kBytes, kStream).ok());
    }
    EXPECT_TRUE(expect(block, 3).ok());
    check();
    pager->release(block);
  }
}

TEST_F(PagerOverwriteTest, TheForecastKnows) {
  open(kMiB);
  Block* const a = filled(kBytes, 1);
  Block* const b = filled(kBytes, 1);
  const auto op = [&](std::uint32_t name, Block* block, Access access) {
    Call call;
    const Operand operand{block, access};
    const profiler::Token token = name;
    const OpIdentity identity = OpIdentity::of(name, token);
    ASSERT_TRUE(pager
                    ->begin(call, kStream, {&operand, 1}, &over_, "op", false,
                            &identity)
                    .ok());
    if (writes(access)) fill_pattern(block->device_address, kBytes, 1);
    call.overwritten();
    pager->end(call);
  };
  for (int i = 0; i < 4; ++i) {
    op(1, a, Access::kRead);
    op(2, a, Access::kOverwrite);
    op(3, b, Access::kWrite);
    pager->meter().step(kStream);
  }
  op(1, a, Access::kRead);
  const profiler::Forecast forecast(pager->profiler());
  const profiler::NextUse of_a = forecast.nextUse(a->profiler_slot);
  EXPECT_EQ(of_a.kind, profiler::NextUseKind::kKnown);
  EXPECT_EQ(of_a.distance_ops, 0U);
  EXPECT_TRUE(of_a.overwritten_first);
  EXPECT_FALSE(forecast.nextUse(b->profiler_slot).overwritten_first);
  pager->release(a);
  pager->release(b);
}

class PagerOverwriteUnderAdversary
    : public PagerOverwriteTest,
      public testing::WithParamInterface<const char*> {};

// Blocks in a budget for a quarter of them: evictions are under way while
// their blocks are overwritten, ops fail, and results are smaller.
TEST_P(PagerOverwriteUnderAdversary, EveryValueIsRight) {
  open(6 * kBytes, 256 * kMiB, 64,
       runtime::parse_cpu_adversary(GetParam()).value());
  constexpr std::size_t kBlocks = 20;
  std::vector<Block*> blocks;
  std::vector<std::uint64_t> seeds;
  for (std::size_t i = 0; i < kBlocks; ++i) {
    blocks.push_back(filled(kBytes, i));
    seeds.push_back(i);
  }
  std::mt19937_64 random(7);
  for (std::uint64_t i = 100; i < 400; ++i) {
    const std::size_t k = random() % kBlocks;
    switch (random() % 3) {
      case 0:
        ASSERT_TRUE(overwrite(blocks[k], i).ok());
        seeds[k] = i;
        break;
      case 1: {
        // What it wrote in place before it failed nobody takes back.
        const bool resident = blocks[k]->state() == BlockState::kResident;
        const std::size_t written = resident ? 0 : random() % kBytes;
        ASSERT_TRUE(overwrite(blocks[k], i, written, /*fails=*/true).ok());
        break;
      }
      default:
        ASSERT_TRUE(expect(blocks[k], seeds[k]).ok());
    }
  }
  for (std::size_t k = 0; k < kBlocks; ++k) {
    EXPECT_TRUE(expect(blocks[k], seeds[k]).ok());
    pager->release(blocks[k]);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Modes, PagerOverwriteUnderAdversary,
    testing::Values("copies=late", "copies=reordered,seed=1",
                    "copies=on_await,poison=1",
                    "copies=on_await,compute_delay=8,poison=1",
                    "copies=reordered,compute_delay=3,poison=1,seed=2"));

} // namespace
} // namespace chameleon::memory
