// Room on the host for what is evicted: what lies in the way moves, and a
// budget is refused only where the bytes do not fit.
#include <random>

#include "memory/pager.h"
#include "tests/cpp/memory/pager_fixture.h"

namespace chameleon::memory {
namespace {

using runtime::Error;
using runtime::ErrorCode;
using runtime::FaultInjection;
using runtime::FaultPoint;

constexpr std::size_t kPage = 4 * kKiB;

class PagerHostRoomTest : public PagerTest {
 protected:
  std::size_t hostBytes() {
    return static_cast<std::size_t>(pager->stats().host_bytes);
  }
  // Blocks on the host, with as many holes between them.
  std::vector<Block*> evictedWithHoles(std::size_t count, std::size_t bytes) {
    std::vector<Block*> kept;
    std::vector<Block*> others;
    for (std::size_t i = 0; i < count; ++i) {
      for (std::vector<Block*>* to : {&others, &kept}) {
        to->push_back(filled(bytes, i));
        EXPECT_FALSE(failed(pager->evict(*to->back())));
      }
    }
    for (Block* block : others) pager->release(block);
    return kept;
  }
  void expectAll(const std::vector<Block*>& blocks) {
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      EXPECT_FALSE(failed(expect(blocks[i], i)));
    }
  }
};

TEST_F(PagerHostRoomTest, HolesOfManyBlocksServeALargeOne) {
  open(kMiB, 32 * 4 * kPage);
  const std::vector<Block*> kept = evictedWithHoles(16, 4 * kPage);
  check();
  Block* const large = filled(16 * 4 * kPage, 99);
  EXPECT_FALSE(failed(pager->evict(*large)));
  EXPECT_EQ(hostBytes(), 32 * 4 * kPage);
  check();
  EXPECT_FALSE(failed(expect(large, 99)));
  expectAll(kept);
}

TEST_F(PagerHostRoomTest, ABudgetMayFallToWhatIsUsed) {
  open(kMiB);
  const std::vector<Block*> kept = evictedWithHoles(16, 3 * kPage);
  const std::size_t used = 16 * 3 * kPage;
  Error error = pager->budgets().setHostBudget(used - 1);
  ASSERT_TRUE(failed(error));
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(error.message(),
            "torch_chameleon.config.host_budget = 192.00 KiB is too low: "
            "evicted tensors use 192.00 KiB of host memory");
  EXPECT_EQ(pager->stats().host_budget, 256 * kMiB);
  check();
  EXPECT_FALSE(failed(pager->budgets().setHostBudget(used)));
  EXPECT_EQ(hostBytes(), used);
  check();
  Block* const another = filled(kPage, 99);
  error = pager->evict(*another);
  EXPECT_EQ(error.code(), ErrorCode::kOutOfHostMemory);
  EXPECT_FALSE(failed(pager->budgets().setHostBudget(used + kPage)));
  EXPECT_FALSE(failed(pager->evict(*another)));
  EXPECT_FALSE(failed(pager->budgets().setHostBudget(256 * kMiB)));
  EXPECT_FALSE(failed(pager->evict(*filled(16 * kPage, 1))));
  check();
  EXPECT_FALSE(failed(expect(another, 99)));
  expectAll(kept);
}

TEST_F(PagerHostRoomTest, CleanCopiesGoOnlyAsFarAsTheyMust) {
  open(kMiB);
  const std::vector<Block*> kept = evictedWithHoles(8, kPage);
  expectAll(kept); // and now each has a clean copy on the host
  EXPECT_FALSE(failed(pager->budgets().setHostBudget(5 * kPage)));
  EXPECT_EQ(hostBytes(), 5 * kPage);
  check();
  EXPECT_FALSE(failed(pager->budgets().setHostBudget(0)));
  EXPECT_EQ(hostBytes(), 0u);
  check();
  expectAll(kept);
}

TEST_F(PagerHostRoomTest, ABudgetWaitsForNobodyInsideACall) {
  open(kMiB);
  std::vector<Block*> low = {filled(8 * kPage, 0), filled(8 * kPage, 1)};
  for (Block* block : low) ASSERT_FALSE(failed(pager->evict(*block)));
  Call call; // its operand's old bytes lie where they are
  const Operand operand{low[1], Access::kOverwrite};
  ASSERT_FALSE(failed(pager->begin(call, kStream, {&operand, 1}, &fill_memory,
                                   "overwrite", false)));
  pager->release(low[0]);
  EXPECT_TRUE(failed(pager->budgets().setHostBudget(8 * kPage)));
  check(2);
  fill_pattern(low[1]->device_address, low[1]->bytes, 7);
  call.overwritten();
  pager->end(call);
  EXPECT_FALSE(failed(pager->budgets().setHostBudget(8 * kPage)));
  EXPECT_FALSE(failed(pager->evict(*low[1])));
  EXPECT_FALSE(failed(expect(low[1], 7)));
}

TEST_F(PagerHostRoomTest, MemoryThatIsRefusedLosesNothing) {
  open(kMiB);
  std::vector<Block*> blocks = evictedWithHoles(8, 4 * kPage);
  for (std::uint64_t nth = 1; nth < 4; ++nth) {
    ASSERT_FALSE(failed(pager->budgets().setHostBudget(8 * 4 * kPage)));
    ASSERT_FALSE(failed(pager->budgets().setHostBudget(256 * kMiB)));
    FaultInjection::instance().arm(FaultPoint::kAllocateHost, nth, false);
    for (int i = 0; i < 3; ++i) {
      blocks.push_back(filled(16 * kPage, blocks.size()));
      const Error error = pager->evict(*blocks.back());
      EXPECT_TRUE(!error || error.code() == ErrorCode::kOutOfHostMemory);
      check();
    }
    FaultInjection::instance().disarmAll();
    expectAll(blocks);
    while (blocks.size() > 8) {
      pager->release(blocks.back());
      blocks.pop_back();
    }
    for (Block* block : blocks) ASSERT_FALSE(failed(pager->evict(*block)));
  }
}

// Blocks come and go on a host that has hardly room for them. They may be on
// their way in either direction when others take their places.
class PagerHostRoomRandom : public PagerHostRoomTest,
                            public ::testing::WithParamInterface<int> {
 protected:
  struct Tensor {
    Block* block;
    std::uint64_t seed;
  };
  std::uint64_t below(std::uint64_t bound) { return random_() % bound; }

  std::mt19937_64 random_;
  std::vector<Tensor> tensors_;
};

TEST_P(PagerHostRoomRandom, IsRefusedOnlyWhereBytesDoNotFit) {
  const auto seed = static_cast<std::uint64_t>(GetParam());
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  random_.seed(seed);
  constexpr std::size_t kHost = 320 * kKiB;
  open(2 * kMiB, kHost, 64, support::random_adversary(random_));
  constexpr int kSteps = 400;
  RecordProperty("random_operations", kSteps);
  std::size_t refused = 0;
  for (int i = 0; i < kSteps; ++i) {
    SCOPED_TRACE(::testing::Message() << "step " << i);
    if (tensors_.size() < 8 || (tensors_.size() < 40 && below(4) == 0)) {
      const std::size_t bytes =
          below(6) == 0 ? 1 + below(160 * kKiB) : 1 + below(24 * kKiB);
      tensors_.push_back({filled(bytes, random_()), 0});
      tensors_.back().seed = random_();
      ASSERT_FALSE(failed(fill(tensors_.back().block, tensors_.back().seed)));
    }
    Tensor& tensor = tensors_[below(tensors_.size())];
    Block& block = *tensor.block;
    switch (below(12)) {
      case 0:
      case 1:
        pager->release(&block);
        std::swap(tensor, tensors_.back());
        tensors_.pop_back();
        break;
      case 2:
      case 3:
        ASSERT_FALSE(failed(expect(&block, tensor.seed)));
        break;
      case 4:
        tensor.seed = random_();
        ASSERT_FALSE(failed(fill(&block, tensor.seed)));
        break;
      case 5: {
        // Nobody is at the host's bytes: all that is in the way can move.
        const std::size_t used = hostBytes();
        ASSERT_FALSE(failed(pager->budgets().setHostBudget((used + kPage - 1) /
                                                           kPage * kPage)));
        ASSERT_EQ(hostBytes(), used);
        check(2);
        ASSERT_FALSE(failed(pager->budgets().setHostBudget(kHost)));
        break;
      }
      default: {
        const bool clean = block.hasHostCopy();
        const Error error = pager->evict(block);
        if (!error) break;
        // No clean copy is left by now, but for those of blocks in no list.
        ASSERT_EQ(error.code(), ErrorCode::kOutOfHostMemory);
        ASSERT_FALSE(clean);
        ASSERT_GT(hostBytes() + block.rounded_bytes, kHost);
        ++refused;
        break;
      }
    }
    check(below(16) == 0 ? 3 : 2);
  }
  EXPECT_GT(refused, 0u);
  for (const Tensor& tensor : tensors_) {
    ASSERT_FALSE(failed(expect(tensor.block, tensor.seed)));
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, PagerHostRoomRandom, ::testing::Range(0, 16));

} // namespace
} // namespace chameleon::memory
