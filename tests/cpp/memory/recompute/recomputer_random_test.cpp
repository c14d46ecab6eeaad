// Random sequences of ops that can be run again, drops, evictions, deaths,
// writes from the host and changes of limits, against a model that holds each
// tensor's bytes, on a runtime that delays, reorders, poisons and checks. The
// invariants are walked after every step. Then the same from several threads.
#include <random>
#include <thread>

#include "tests/cpp/memory/recompute/rerun_fixture.h"

namespace chameleon::memory {
namespace {

constexpr std::size_t kSmallestBudget = 192 * kKiB;
constexpr std::size_t kLargestBudget = 512 * kKiB;
constexpr std::size_t kLargestBlock = 16 * kKiB;

class PagerRerunRandomTest : public RerunTest,
                             public ::testing::WithParamInterface<int> {
 protected:
  std::uint64_t below(std::uint64_t bound) { return random_() % bound; }
  Handle& any() { return tensors_[below(tensors_.size())]; }
  std::size_t anySize() {
    return below(2) == 0 ? 1 + below(kLargestBlock)
                         : 512 * (1 + below(4)) - below(100);
  }

  void runOp() {
    std::vector<Handle> operands;
    MixOp op{random_(), {}, {}, {}};
    for (std::uint64_t i = 0, n = 1 + below(4); i < n; ++i) {
      const Handle each = any();
      if (std::find(operands.begin(), operands.end(), each) != operands.end()) {
        continue;
      }
      operands.push_back(each);
      op.accesses.push_back(Access::kRead);
      op.side_effects.push_back(false);
    }
    const std::uint64_t kind = below(8);
    if (kind == 0) {
      op.accesses[0] = Access::kOverwrite;
    } else if (kind <= 2) {
      op.accesses[0] = Access::kWrite;
    } else {
      for (std::uint64_t i = 0, n = 1 + below(3); i < n; ++i) {
        op.result_bytes.push_back(anySize());
      }
      if (kind == 3) {
        op.accesses[0] = Access::kWrite;
        op.side_effects[0] = below(2) == 0; // else it cannot be recorded
      }
    }
    for (Handle& each : run(op, operands)) tensors_.push_back(std::move(each));
  }

  void hostWrite() {
    const Handle each = any();
    const std::size_t offset = below(each->bytes.size());
    const std::size_t count = below(each->bytes.size() - offset + 1);
    const Bytes bytes = pattern(count, random_());
    ASSERT_FALSE(failed(
        pager->write(*each->block, offset, bytes.data(), count, stream)));
    std::copy(bytes.begin(), bytes.end(),
              each->bytes.begin() + static_cast<std::ptrdiff_t>(offset));
  }

  void switchStream() {
    const runtime::Stream next{below(4)};
    runtime::Result<runtime::Event> event = runtime_->record(stream);
    ASSERT_TRUE(event.ok());
    ASSERT_FALSE(failed(runtime_->wait(next, *event)));
    if (!event->complete()) runtime_->destroy(*event);
    stream = next;
  }

  void step() {
    if (tensors_.size() < 6) tensors_.push_back(leaf(anySize(), random_()));
    switch (below(20)) {
      case 0:
        tensors_.push_back(leaf(anySize(), random_()));
        break;
      case 1:
      case 2:
      case 3:
        if (tensors_.size() > 25 || below(2) == 0) {
          std::swap(any(), tensors_.back());
          tensors_.pop_back();
        }
        break;
      case 4:
      case 5:
      case 6:
        drops_ += pager->recomputer().drop(*any()->block) ? 1 : 0;
        break;
      case 7:
        ASSERT_FALSE(failed(pager->evict(*any()->block)));
        break;
      case 8:
        if (below(4) == 0) {
          ASSERT_FALSE(failed(pager->evictAll()));
        }
        break;
      case 9:
        hostWrite();
        break;
      case 10:
        expectBytes(any());
        break;
      case 11:
        (void)pager->budgets().setHbmBudget(
            kSmallestBudget + below(kLargestBudget - kSmallestBudget));
        break;
      case 12:
        switchStream();
        break;
      default:
        runOp();
        break;
    }
  }

  std::mt19937_64 random_;
  std::vector<Handle> tensors_;
  std::int64_t drops_ = 0;
};

TEST_P(PagerRerunRandomTest, AgreesWithTheModel) {
  const auto seed = static_cast<std::uint64_t>(GetParam());
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  random_.seed(seed);
  open(kLargestBudget / 2, 16 * kMiB, 64, support::random_adversary(random_));
  // Records are used up by a re-run, or not.
  const auto mode = std::array{DropStress::kRecord, DropStress::kRecord,
                               DropStress::kRandom, DropStress::kAll}[seed % 4];
  pager->stress().setDropStress(mode, seed);
  constexpr int kSteps = 200;
  RecordProperty("random_operations", kSteps);
  for (int i = 0; i < kSteps && !HasFatalFailure(); ++i) {
    SCOPED_TRACE(::testing::Message() << "step " << i);
    step();
    check(below(16) == 0 ? 3 : 2);
    const Stats stats = pager->stats();
    ASSERT_LE(stats.resident_bytes, stats.hbm_budget);
    std::size_t logical = 0;
    for (const Handle& each : tensors_) logical += each->bytes.size();
    ASSERT_EQ(stats.logical_bytes, static_cast<std::int64_t>(logical));
  }
  EXPECT_GT(pager->stats().dropped_bytes, 0);
  EXPECT_GT(pager->stats().rerun_ops, 0);
  for (const Handle& each : tensors_) expectBytes(each);
  tensors_.clear();
  EXPECT_EQ(pager->stats().held_bytes, 0);
  EXPECT_EQ(alive, 0);
}

INSTANTIATE_TEST_SUITE_P(Seeds, PagerRerunRandomTest, ::testing::Range(0, 32));

// Threads work on tensors of their own, made of shared ones, and read shared
// ones that are dropped meanwhile.
class PagerRerunThreadsTest : public RerunTest {};

TEST_F(PagerRerunThreadsTest, MakeTheSameBlocksAtOnce) {
  constexpr int kThreads = 4;
  constexpr int kRounds = 12;
  open(512 * kKiB);
  recordAll();
  const Handle root = leaf(4 * kKiB, 1);
  for (int round = 0; round < kRounds; ++round) {
    std::vector<Handle> chain{root};
    for (int i = 0; i < 6; ++i) {
      chain.push_back(
          run({static_cast<std::uint64_t>(round * 10 + i),
               {Access::kRead, Access::kRead},
               {4 * kKiB, 1024},
               {}},
              {chain.back(), root == chain.back() ? leaf(64, 3) : root})[0]);
    }
    for (std::size_t i = 1; i < chain.size(); ++i) {
      ASSERT_TRUE(pager->recomputer().drop(*chain[i]->block));
    }
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        for (std::size_t i = chain.size() - 1; i > 0; --i) {
          expectBytes(chain[t % 2 == 0 ? i : chain.size() - i]);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    check(2);
  }
}

TEST_F(PagerRerunThreadsTest, WorkBesideEachOther) {
  constexpr int kThreads = 4;
  open(384 * kKiB);
  pager->stress().setDropStress(DropStress::kRandom, 5);
  const std::vector<Handle> shared{leaf(8 * kKiB, 1), leaf(8 * kKiB, 2)};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 random(static_cast<std::uint64_t>(t));
      std::vector<Handle> mine;
      for (std::uint64_t i = 0; i < 60; ++i) {
        const std::uint64_t seed = random();
        std::vector<Handle> operands{shared[random() % 2]};
        if (!mine.empty()) operands.push_back(mine[random() % mine.size()]);
        MixOp op{seed,
                 std::vector<Access>(operands.size(), Access::kRead),
                 {1 + random() % (8 * kKiB)},
                 {}};
        if (operands.size() > 1 && random() % 3 == 0) {
          op.accesses[1] = Access::kWrite;
          op.result_bytes.clear();
        }
        for (Handle& each : run(op, operands)) mine.push_back(std::move(each));
        if (mine.size() > 6) mine.erase(mine.begin() + random() % 6);
        if (random() % 4 == 0 && !mine.empty()) {
          expectBytes(mine[random() % mine.size()]);
        }
      }
      for (const Handle& each : mine) expectBytes(each);
    });
  }
  for (std::thread& thread : threads) thread.join();
  pager->stress().setDropStress(DropStress::kNever);
  check(3);
  for (const Handle& each : shared) expectBytes(each);
}

} // namespace
} // namespace chameleon::memory
