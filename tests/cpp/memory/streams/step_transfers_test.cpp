// What goes over the link, in which batches, and what does not: to the byte and
// the nanosecond, on a simulated GPU.
#include <algorithm>
#include <gtest/gtest.h>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "backend/runtime/simulated/simulated_runtime.h"
#include "memory/pager.h"
#include "tests/cpp/memory/policy/hand_profile.h"

namespace chameleon::memory {
namespace {

constexpr std::size_t kBytes = 16 * 1024;
constexpr runtime::Stream kStream = runtime::kDefaultComputeStream;

// A batch has less than 40 latencies of hand_profile(): four blocks.
constexpr std::int64_t kLatency = 2000;
constexpr std::int64_t kShared =
    kBytes * 4 / 3 + 2; // while the other way is busy

class PagerTransfersTest : public ::testing::Test {
 protected:
  void open(std::size_t budget, const std::string& policy = "lru") {
    runtime_ = runtime::make_simulated_runtime(hand_profile());
    pager = Pager::create(*runtime_, {budget, 1 << 28, 64}, policy).value();
  }
  void TearDown() override {
    pager->invariants().check(2);
    for (Block* block : blocks_) pager->release(block);
  }

  Block* create(std::size_t bytes = kBytes) {
    return blocks_.emplace_back(pager->createBlock(bytes).value());
  }
  void release(Block* block) {
    std::erase(blocks_, block);
    pager->release(block);
  }
  // Of `name` ns and the launch.
  void op(std::uint32_t name, const std::vector<Operand>& operands) {
    Call call;
    const profiler::Token token = name;
    const OpIdentity identity = OpIdentity::of(name, token);
    ASSERT_FALSE(
        pager->begin(call, kStream, operands, nullptr, "op", false, &identity));
    ASSERT_FALSE(
        runtime_->computed(kStream, {.bytes = static_cast<double>(name)}));
    call.overwritten();
    pager->end(call);
  }
  Block* written() {
    Block* const block = create();
    op(1000, {{block, Access::kWrite}});
    return block;
  }
  // How long what `work` submits takes.
  template <typename Work>
  std::int64_t timeOf(Work work) {
    EXPECT_FALSE(pager->synchronize());
    const std::int64_t begin = runtime_->now_ns();
    work();
    EXPECT_FALSE(pager->synchronize());
    return runtime_->now_ns() - begin;
  }

  std::unique_ptr<runtime::DeviceRuntime> runtime_;
  std::unique_ptr<Pager> pager;

 private:
  std::vector<Block*> blocks_;
};

// ---- reads -----------------------------------------------------------------

// As a loss is read while what does not fit is on its way out.
TEST_F(PagerTransfersTest, ASmallReadDoesNotWaitForEvictions) {
  open(1 << 24);
  Block* const large[] = {create(1 << 20), create(1 << 20)};
  for (Block* const block : large) op(1000, {{block, Access::kWrite}});
  Block* const loss = written();
  ASSERT_FALSE(pager->synchronize());
  for (Block* const block : large) ASSERT_FALSE(pager->evict(*block));
  op(5000, {{loss, Access::kWrite}});
  const std::int64_t begin = runtime_->now_ns();
  ASSERT_FALSE(pager->read(*loss, 512, nullptr, 4, kStream));
  // The op, with its launch, then four bytes of the link, with its latency.
  EXPECT_EQ(runtime_->now_ns() - begin, 6000 + kLatency + 4);
  ASSERT_FALSE(pager->synchronize());
  EXPECT_EQ(runtime_->now_ns() - begin, 2 * (kLatency + (1 << 20)));
}

// Else the stream's kernels would wait for the link.
TEST_F(PagerTransfersTest, ALargeReadIsACopyOutLikeAnother) {
  open(1 << 24);
  Block* const first = create(1 << 20);
  Block* const second = create(1 << 20);
  op(1000, {{first, Access::kWrite}});
  op(1000, {{second, Access::kWrite}});
  ASSERT_FALSE(pager->synchronize());
  ASSERT_FALSE(pager->evict(*first));
  const std::int64_t begin = runtime_->now_ns();
  ASSERT_FALSE(pager->read(*second, 0, nullptr, 1 << 20, kStream));
  EXPECT_EQ(runtime_->now_ns() - begin, 2 * (kLatency + (1 << 20)));
  EXPECT_EQ(runtime_->computeTimes().stalled_ns, 0);
}

// ---- batches ---------------------------------------------------------------

TEST_F(PagerTransfersTest, WhatOneOpMissesIsOneBatch) {
  open(64 * kBytes);
  std::vector<Operand> operands;
  for (int i = 0; i < 10; ++i) operands.push_back({written(), Access::kRead});
  ASSERT_FALSE(pager->evictAll());
  const std::int64_t time = timeOf([&] { op(3000, operands); });
  EXPECT_EQ(time, kLatency + 10 * std::int64_t{kBytes} + 4000);
  EXPECT_EQ(pager->stats().faults, 10);
}

TEST_F(PagerTransfersTest, WhatLeavesForOneOpGoesInBatches) {
  open(16 * kBytes);
  std::vector<Block*> blocks;
  for (int i = 0; i < 16; ++i) blocks.push_back(written());
  Block* const large = create(10 * kBytes);
  const std::int64_t time =
      timeOf([&] { op(3000, {{large, Access::kWrite}}); });
  EXPECT_EQ(pager->stats().bytes_out, 10 * std::int64_t{kBytes});
  // 4, 4 and 2 blocks; the kernel needs the room of all.
  EXPECT_EQ(time, 3 * kLatency + 10 * std::int64_t{kBytes} + 4000);
}

TEST_F(PagerTransfersTest, RoomInsideAKernelIsMadeInBatchesToo) {
  open(16 * kBytes);
  for (int i = 0; i < 16; ++i) written();
  const std::int64_t time = timeOf([&] {
    Call call;
    ASSERT_FALSE(pager->begin(call, kStream, {}, nullptr, "op", true));
    std::byte* const address = pager->allocate(call, 6 * kBytes).value();
    ASSERT_FALSE(runtime_->computed(kStream, {.bytes = 3000}));
    pager->free(&call, address);
    pager->end(call);
  });
  EXPECT_EQ(pager->stats().bytes_out, 6 * std::int64_t{kBytes});
  EXPECT_EQ(time, 2 * kLatency + 6 * std::int64_t{kBytes} + 4000);
}

// ---- copies that nobody needs any more -------------------------------------

TEST_F(PagerTransfersTest, TheCopyOutOfADeadBlockIsTakenBack) {
  open(64 * kBytes);
  Block* const other = written();
  const std::int64_t time = timeOf([&] {
    Block* const block = create();
    op(50'000, {{block, Access::kWrite}});
    ASSERT_FALSE(pager->evict(*block)); // after that op
    EXPECT_EQ(pager->stats().bytes_out, kBytes);
    release(block);
    ASSERT_FALSE(pager->evict(*other));
  });
  EXPECT_EQ(pager->stats().bytes_out, kBytes); // the other one's
  EXPECT_EQ(pager->stats().host_bytes, kBytes);
  EXPECT_EQ(time, 51'000 + kLatency + std::int64_t{kBytes});
}

TEST_F(PagerTransfersTest, SoIsThatOfWhatIsOverwritten) {
  open(64 * kBytes);
  const std::int64_t time = timeOf([&] {
    Block* const block = create();
    op(50'000, {{block, Access::kWrite}});
    ASSERT_FALSE(pager->evict(*block));
    op(3000, {{block, Access::kOverwrite}});
  });
  EXPECT_EQ(pager->stats().bytes_out, 0);
  EXPECT_EQ(pager->stats().bytes_in, 0);
  EXPECT_EQ(pager->stats().host_bytes, 0);
  EXPECT_EQ(time, 51'000 + 4'000);
}

TEST_F(PagerTransfersTest, OneThatHasBegunRuns) {
  open(64 * kBytes);
  Block* const block = written();
  const std::int64_t time = timeOf([&] {
    ASSERT_FALSE(pager->evict(*block));
    release(block);
    op(1000, {{create(), Access::kWrite}});
  });
  EXPECT_EQ(pager->stats().bytes_out, kBytes);
  EXPECT_EQ(time, kLatency + std::int64_t{kBytes});
}

// What was submitted reads the host copy still.
TEST_F(PagerTransfersTest, OneThatAFetchReadsRuns) {
  open(64 * kBytes);
  Block* const block = create();
  const std::int64_t time = timeOf([&] {
    op(50'000, {{block, Access::kWrite}});
    ASSERT_FALSE(pager->evict(*block));
    op(3000, {{block, Access::kRead}});
    ASSERT_FALSE(pager->evict(*block)); // is clean
    release(block);
    op(1000, {{create(), Access::kWrite}});
  });
  EXPECT_EQ(pager->stats().bytes_out, kBytes);
  EXPECT_EQ(pager->stats().bytes_in, kBytes);
  EXPECT_EQ(time, 51'000 + 2 * (kLatency + std::int64_t{kBytes}) + 4000 + 2000);
}

TEST_F(PagerTransfersTest, PartOfABatchIsTakenBack) {
  open(16 * kBytes);
  std::vector<Operand> operands;
  for (int i = 0; i < 16; ++i) operands.push_back({create(), Access::kWrite});
  const std::int64_t time = timeOf([&] {
    op(50'000, operands);
    op(1000, {{create(4 * kBytes), Access::kWrite}}); // one batch
    EXPECT_EQ(pager->stats().bytes_out, 4 * std::int64_t{kBytes});
    for (const Operand& operand : operands) release(operand.block);
    op(1000, {{create(), Access::kWrite}});
  });
  EXPECT_EQ(pager->stats().bytes_out, 0);
  EXPECT_EQ(time, 51'000 + 2000 + 2000);
}

// ---- plans -----------------------------------------------------------------

class PlannedTransfersTest : public PagerTransfersTest {
 protected:
  static constexpr std::size_t kLayers = 24;
  static constexpr std::size_t kParts = 3; // of a layer, a block each

  // Gradients live on, and are overwritten in the next step unread.
  void openTraining() {
    open(kLayers * kParts * kBytes, "forecast");
    for (std::size_t i = 0; i < kLayers * kParts; ++i) {
      weights_.push_back(written());
      gradients_.push_back(written());
    }
  }
  void step() {
    pager->profiler().step();
    const auto layer = [&](std::uint32_t name, std::size_t i, Access weight,
                           std::optional<Access> gradient) {
      std::vector<Operand> operands;
      for (std::size_t part = i * kParts; part < (i + 1) * kParts; ++part) {
        operands.push_back({weights_[part], weight});
        if (gradient) operands.push_back({gradients_[part], *gradient});
      }
      op(name, operands);
    };
    for (std::size_t i = 0; i < kLayers; ++i) {
      layer(60'000, i, Access::kRead, std::nullopt);
    }
    for (std::size_t i = kLayers; i-- > 0;) {
      layer(60'001, i, Access::kRead, Access::kOverwrite);
      layer(6'000, i, Access::kWrite, Access::kRead);
    }
  }
  std::vector<DecisionRecord> decisionsOfAStep() {
    for (int i = 0; i < 6; ++i) step();
    pager->decisions().start(1 << 16);
    pager->resetStats();
    step();
    return pager->decisions().records();
  }
  std::set<std::uint64_t> gradients() const {
    std::set<std::uint64_t> identities;
    for (const Block* block : gradients_) identities.insert(block->identity);
    return identities;
  }

  std::vector<Block*> weights_;
  std::vector<Block*> gradients_;
};

std::size_t count(const std::vector<DecisionRecord>& records, Decision decision,
                  const std::set<std::uint64_t>& blocks) {
  return static_cast<std::size_t>(
      std::count_if(records.begin(), records.end(), [&](const auto& record) {
        return record.decision == decision && blocks.count(record.block) != 0;
      }));
}

TEST_F(PlannedTransfersTest, WhatHasNoFurtherUseIsWrittenBackAheadAndStaysOut) {
  openTraining();
  const auto records = decisionsOfAStep();
  ASSERT_NE(pager->meter().lastStep()->plan, nullptr);
  const std::set<std::uint64_t> of = gradients();
  const std::size_t left = count(records, Decision::kEvict, of) +
                           count(records, Decision::kVictim, of);
  EXPECT_GT(left, kLayers);
  EXPECT_GE(count(records, Decision::kWriteBack, of), left);
  EXPECT_EQ(count(records, Decision::kFetch, of), 0U);
  EXPECT_EQ(count(records, Decision::kFault, of), 0U);
  const Stats stats = pager->stats();
  EXPECT_EQ(stats.faults, 0);
  EXPECT_EQ(stats.clean_evictions, stats.evictions); // nobody waited for one
  for (const DecisionRecord& record : records) {
    if (record.decision != Decision::kEvict) continue;
    EXPECT_EQ(record.bytes, 0U);
  }
}

TEST_F(PlannedTransfersTest, WhatThePlanJoinsIsOneBatch) {
  openTraining();
  for (int i = 0; i < 6; ++i) step();
  ASSERT_FALSE(pager->synchronize()); // ops' times are known: another plan
  for (int i = 0; i < 3; ++i) step();
  ASSERT_FALSE(pager->synchronize());
  pager->meter().recordTimeline(true);
  step();
  pager->meter().recordTimeline(false);
  const PlanPtr plan =
      pager->meter().lastStep()->plan; // of the step that was recorded
  ASSERT_NE(plan, nullptr);
  step();
  std::size_t copies = 0; // by direction: out, in
  std::size_t batches[2] = {};
  for (const Action action : plan->actions) {
    if (action.kind() == Action::Kind::kEvict) continue;
    ++copies;
    if (action.joined()) continue;
    ++batches[action.kind() == Action::Kind::kFetch ? 1 : 0];
  }
  EXPECT_LT(batches[0] + batches[1], copies);
  std::size_t seen[2] = {};
  for (const profiler::Interval& interval :
       pager->meter().timeline().intervals()) {
    if (interval.lane == profiler::Lane::kOut) ++seen[0];
    if (interval.lane == profiler::Lane::kIn) ++seen[1];
  }
  EXPECT_EQ(seen[0], batches[0]);
  EXPECT_EQ(seen[1], batches[1]);
}

// Copies in are one queue. What is in it before an op's own is what the plan
// begins before that op: a fault costs its own copies and no more. (Where a
// step takes up a new plan what is missing comes back ahead instead.)
TEST_F(PlannedTransfersTest, AFaultDoesNotWaitForWhatIsFetchedAhead) {
  openTraining();
  // Whether a plan still fits is looked at in rounds 128, 256 and 512.
  for (int i = 0; i < 300; ++i) step();
  ASSERT_FALSE(pager->policy().costs().is_trying);
  const std::int64_t planned = timeOf([&] { step(); });
  pager->resetStats();
  EXPECT_EQ(timeOf([&] { step(); }), planned);
  EXPECT_EQ(pager->stats().faults, 0);
  std::int64_t evicted = 0;
  std::int64_t ahead = 0;
  const std::uint64_t plans_before = pager->policy().costs().plans_made;
  for (Block* const weight : weights_) {
    if (weight->state() != BlockState::kResident) continue; // as planned
    ASSERT_FALSE(pager->evict(*weight));
    ++evicted;
    pager->decisions().start(1 << 20);
    const std::int64_t time = timeOf([&] { step(); });
    // A copy that is under way is not taken back.
    EXPECT_LE(time, planned + kLatency + 2 * kShared);
    const auto records = pager->decisions().records();
    pager->decisions().start(0);
    const auto first = std::ranges::find_if(records, [&](const auto& record) {
      return record.block == weight->identity &&
             (record.decision == Decision::kFetch ||
              record.decision == Decision::kFault);
    });
    ASSERT_NE(first, records.end());
    ahead += first->decision == Decision::kFetch ? 1 : 0;
  }
  EXPECT_GT(evicted, std::int64_t{kLayers});
  const std::uint64_t plans = pager->policy().costs().plans_made - plans_before;
  EXPECT_EQ(ahead, static_cast<std::int64_t>(plans));
  EXPECT_LE(ahead, 2);
  EXPECT_EQ(pager->stats().faults + ahead, evicted);
}

} // namespace
} // namespace chameleon::memory
