// Several threads in one pager: no error, no hang, no wrong bit, no race (run
// under TSan), although their working sets do not fit together.
#include <array>
#include <atomic>
#include <chrono>
#include <mutex>
#include <random>
#include <thread>

#include "memory/pager.h"
#include "tests/cpp/memory/pager_fixture.h"

namespace chameleon::memory {
namespace {

using runtime::Error;
using runtime::ErrorCode;
using runtime::Stream;

constexpr std::size_t kUnit = 32 * kKiB;

class PagerStressTest : public PagerTest {
 protected:
  static constexpr int kThreads = 8;

  void SetUp() override {
    hook_depth = 0;
    Admission::wait_hooks = {[]() -> void* {
                               ++hook_depth;
                               return &hook_depth;
                             },
                             [](void* token) {
                               EXPECT_EQ(token, &hook_depth);
                               --hook_depth;
                             }};
  }
  void TearDown() override {
    EXPECT_EQ(hook_depth.load(), 0);
    Admission::wait_hooks = {};
    PagerTest::TearDown();
  }

  template <typename Body>
  void inThreads(int count, Body body) {
    using Clock = std::chrono::steady_clock;
    const Clock::time_point start = Clock::now();
    std::vector<std::thread> threads;
    for (int i = 0; i < count; ++i) threads.emplace_back([=] { body(i); });
    for (std::thread& thread : threads) thread.join();
    thread_time_ += count * (Clock::now() - start);
    RecordProperty(
        "thread_milliseconds",
        static_cast<int>(thread_time_ / std::chrono::milliseconds(1)));
  }

  // c = a + b, in place in `a` if asked, with a workspace of `bytes`. Retries
  // as the kernels do.
  Error op(Stream stream, Block* a, Block* b, Block* c, std::uint64_t seed,
           bool writes, std::size_t bytes, OpMemory& memory,
           Block** output = nullptr) {
    const Operand operands[] = {{a, Access::kRead},
                                {b, Access::kRead},
                                {c, writes ? Access::kWrite : Access::kRead}};
    Call call;
    for (;;) {
      if (Error error =
              pager->begin(call, stream, operands, &memory, "add", !writes)) {
        return error;
      }
      EXPECT_TRUE(holds(a->device_address, a->bytes, seed));
      EXPECT_TRUE(holds(b->device_address, b->bytes, seed + 1));
      if (writes) fill_pattern(c->device_address, c->bytes, seed + 2);
      Error error;
      if (bytes > 0) {
        runtime::Result<std::byte*> result = pager->allocate(call, bytes);
        if (result.ok()) {
          fill_pattern(*result, bytes, seed + 3);
          if (output != nullptr) {
            runtime::Result<Block*> block = pager->adopt(call, *result, bytes);
            EXPECT_TRUE(block.ok());
            *output = *block;
          } else {
            pager->free(&call, *result);
          }
        } else {
          error = result.takeError();
        }
      }
      pager->end(call);
      if (error.ok() || !call.worthRetrying() || writes) return error;
    }
  }

  // Each thread has three blocks of its own and needs a workspace as well.
  // One call needs four units and a bit; the budget is 1.3 of that.
  void exceedTogether(const runtime::CpuAdversary& adversary, int rounds) {
    const std::size_t sizes[] = {kUnit, kUnit / 2, 3 * kUnit / 2};
    open(4 * kUnit * 13 / 10, 64 * kMiB, 64, adversary);
    OpMemory reading;
    OpMemory writing;
    inThreads(kThreads, [&](int id) {
      const Stream stream{static_cast<std::uint64_t>(id % 3)};
      const auto seed = static_cast<std::uint64_t>(100 * id);
      std::vector<Block*> blocks;
      for (std::size_t i = 0; i < 3; ++i) {
        blocks.push_back(create(sizes[i]));
        EXPECT_FALSE(failed(fill(blocks[i], seed + i, stream)));
      }
      for (int round = 0; round < rounds; ++round) {
        const bool writes = (round + id) % 2 == 0;
        EXPECT_FALSE(failed(op(stream, blocks[0], blocks[1], blocks[2], seed,
                               writes, kUnit, writes ? writing : reading)));
        if (round % 4 == 0) pager->invariants().check(2);
      }
      for (Block* block : blocks) pager->release(block);
    });
    EXPECT_LE(pager->stats().peak_resident_bytes, pager->stats().hbm_budget);
    EXPECT_EQ(pager->stats().pinned_bytes, 0);
  }

  static std::atomic<int> hook_depth;

  std::chrono::steady_clock::duration thread_time_{}; // of all threads
};

std::atomic<int> PagerStressTest::hook_depth{0};

TEST_F(PagerStressTest, WorkingSetsThatExceedTheBudgetTogether) {
  // On a busy machine the threads may happen to run one after another.
  std::int64_t waits = 0;
  for (int i = 0; i < 50 && waits == 0; ++i) {
    exceedTogether({}, 20);
    waits = pager->stats().host_waits;
  }
  EXPECT_GT(waits, 0);
}

TEST_F(PagerStressTest, TheSameOnAnAdversarialRuntime) {
  for (const runtime::CopyTiming copies :
       {runtime::CopyTiming::kLate, runtime::CopyTiming::kReordered,
        runtime::CopyTiming::kOnAwait}) {
    runtime::CpuAdversary adversary;
    adversary.copies = copies;
    adversary.compute_delay_ops = 3;
    adversary.poison = true;
    exceedTogether(adversary, 4);
  }
}

// Weights that all threads read, pinned by several of them at a time.
TEST_F(PagerStressTest, SharedOperandsAreCountedOnce) {
  open(5 * kUnit, 64 * kMiB);
  Block* const weight = filled(2 * kUnit, 1);
  Block* const bias = filled(kUnit / 2, 2);
  OpMemory memory;
  inThreads(kThreads, [&](int id) {
    const Stream stream{static_cast<std::uint64_t>(id)};
    for (int round = 0; round < 30; ++round) {
      Block* output = nullptr;
      EXPECT_FALSE(failed(
          op(stream, weight, bias, weight, 1, false, kUnit, memory, &output)));
      if (output == nullptr) continue;
      EXPECT_FALSE(failed(expect(output, 4, stream)));
      pager->release(output);
      if (round % 8 == 0) pager->invariants().check(2);
    }
  });
  EXPECT_FALSE(failed(expect(weight, 1)));
  EXPECT_EQ(pager->stats().pinned_bytes, 0);
}

// Everything at once: ops, host access, evictions, budgets, releases.
TEST_F(PagerStressTest, Everything) {
  runtime::CpuAdversary adversary;
  adversary.copies = runtime::CopyTiming::kReordered;
  adversary.compute_delay_ops = 4;
  for (const bool adversarial : {false, true}) {
    open(12 * kUnit, 64 * kMiB, 64,
         adversarial ? adversary : runtime::CpuAdversary{});
    Block* const shared = filled(kUnit, 7);
    OpMemory reading;
    OpMemory writing;
    std::atomic<int> running{4};
    inThreads(6, [&](int id) {
      std::mt19937_64 random(static_cast<std::uint64_t>(id));
      if (id >= 4) {
        while (running > 0) {
          switch (random() % 5) {
            case 0:
              EXPECT_FALSE(failed(pager->evictAll()));
              break;
            case 1:
              // Refused when more than that is pinned just then.
              (void)pager->budgets()
                  .setHbmBudget((8 + random() % 8) * kUnit)
                  .ok();
              break;
            case 2:
              (void)pager->budgets()
                  .setHostBudget((64 + random() % 64) * kMiB)
                  .ok();
              break;
            case 3:
              pager->invariants().check(2);
              break;
            default: {
              std::vector<std::byte> bytes(kUnit);
              EXPECT_FALSE(failed(
                  pager->read(*shared, 0, bytes.data(), kUnit, kStream)));
              EXPECT_TRUE(holds(bytes.data(), kUnit, 7));
            }
          }
          std::this_thread::yield();
        }
        return;
      }
      const Stream stream{static_cast<std::uint64_t>(id)};
      for (std::uint64_t round = 0; round < 25; ++round) {
        const std::uint64_t seed = 1000 * round;
        Block* const a = create(kUnit);
        Block* const b = create(kUnit / 3);
        const std::vector<std::byte> bytes = pattern(kUnit / 3, seed + 1);
        EXPECT_FALSE(failed(fill(a, seed, stream)));
        EXPECT_FALSE(
            failed(pager->write(*b, 0, bytes.data(), bytes.size(), stream)));
        const bool writes = random() % 2 == 0;
        Block* const c = writes ? create(kUnit) : shared;
        Block* output = nullptr;
        EXPECT_FALSE(failed(op(stream, a, b, c, seed, writes, kUnit / 2,
                               writes ? writing : reading, &output)));
        if (writes) {
          EXPECT_FALSE(failed(expect(c, seed + 2, stream)));
          pager->release(c);
        }
        if (output != nullptr) {
          std::vector<std::byte> result(kUnit / 2);
          EXPECT_FALSE(failed(
              pager->read(*output, 0, result.data(), result.size(), stream)));
          EXPECT_TRUE(holds(result.data(), result.size(), seed + 3));
          pager->release(output);
        }
        pager->release(a);
        pager->release(b);
      }
      --running;
    });
    EXPECT_FALSE(failed(expect(shared, 7)));
  }
}

// HBM is large: only what the test evicts is on the host, and moves whenever
// the budget falls to what is used there.
TEST_F(PagerStressTest, BytesOnTheHostMoveBesideTheirUsers) {
  runtime::CpuAdversary adversary;
  adversary.copies = runtime::CopyTiming::kLate;
  for (const bool adversarial : {false, true}) {
    open(64 * kUnit, 64 * kMiB, 64,
         adversarial ? adversary : runtime::CpuAdversary{});
    std::atomic<int> running{3};
    std::atomic<int> lowered{0};
    inThreads(4, [&](int id) {
      std::mt19937_64 random(static_cast<std::uint64_t>(id));
      while (id == 3 && running > 0) {
        const auto used = static_cast<std::size_t>(pager->stats().host_bytes);
        // Refused when more is used by then.
        const Error error =
            pager->budgets().setHostBudget((used + 4095) / 4096 * 4096);
        if (!error && used != 0) ++lowered;
        pager->invariants().check(2);
        EXPECT_FALSE(failed(pager->budgets().setHostBudget(64 * kMiB)));
        std::this_thread::yield();
      }
      if (id == 3) return;
      const Stream stream{static_cast<std::uint64_t>(id)};
      for (std::uint64_t round = 0; round < 40; ++round) {
        std::array<Block*, 4> blocks{};
        for (Block*& block : blocks) {
          block = create(1 + random() % kUnit);
          EXPECT_FALSE(failed(fill(block, round, stream)));
        }
        for (Block* block : blocks) { // there may be no room just then
          const runtime::Error error = pager->evict(*block);
          EXPECT_TRUE(!error ||
                      error.code() == runtime::ErrorCode::kOutOfHostMemory);
        }
        pager->release(blocks[0]); // what is left may move into the holes
        pager->release(blocks[2]);
        Block* const block = blocks[3];
        std::vector<std::byte> bytes(block->bytes);
        EXPECT_FALSE(
            failed(pager->read(*block, 0, bytes.data(), bytes.size(), stream)));
        EXPECT_TRUE(holds(bytes.data(), bytes.size(), round));
        fill_pattern(bytes.data(), bytes.size(), round + 1);
        EXPECT_FALSE(failed(
            pager->write(*block, 0, bytes.data(), bytes.size(), stream)));
        EXPECT_FALSE(failed(expect(block, round + 1, stream)));
        EXPECT_FALSE(failed(expect(blocks[1], round, stream)));
        pager->release(block);
        pager->release(blocks[1]);
      }
      --running;
    });
    EXPECT_GT(lowered, 0);
  }
}

// A pin without the lock and an eviction with it: one of them wins.
TEST_F(PagerStressTest, PinsRaceWithEvictions) {
  open(8 * kUnit, 64 * kMiB);
  std::vector<Block*> blocks;
  for (int i = 0; i < 3; ++i) blocks.push_back(filled(512, i));
  std::atomic<int> running{2};
  inThreads(3, [&](int id) {
    if (id == 2) {
      while (running > 0) {
        for (Block* block : blocks) {
          if (Error error = pager->evict(*block)) {
            EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument); // pinned
          }
        }
      }
      return;
    }
    for (int i = 0; i < 2000; ++i) {
      EXPECT_FALSE(failed(expect(blocks[i % 3], i % 3)));
    }
    --running;
  });
  EXPECT_EQ(pager->stats().pinned_bytes, 0);
}

// Host copies go when an op writes, but not under a thread that reads them.
// The user's own mutex keeps reads and kernels apart, but not begin().
TEST_F(PagerStressTest, ReadersOfHostCopiesAndWriters) {
  open(64 * kUnit, 64 * kMiB);
  Block* const block = filled(8 * kUnit, 0);
  std::mutex users;
  std::uint64_t seed = 0;
  std::atomic<bool> stop{false};
  inThreads(3, [&](int id) {
    std::vector<std::byte> bytes(8 * kUnit);
    for (int i = 0; i < 150 && !stop; ++i) {
      if (id == 0) {
        std::this_thread::sleep_for(std::chrono::microseconds(100));
        Call call;
        const Operand operand{block, Access::kWrite};
        EXPECT_FALSE(failed(pager->begin(call, kStream, {&operand, 1}, nullptr,
                                         "fill", false)));
        std::unique_lock lock(users);
        fill_pattern(block->device_address, block->bytes, ++seed);
        // Where kernels are asynchronous, who reads before the call has ended
        // does not know what to wait for.
        if (!support::tests_run_on_cuda()) lock.unlock();
        pager->end(call);
      } else {
        if (Error error = pager->evict(*block)) {
          EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument); // pinned
        }
        const std::lock_guard lock(users);
        for (int again = 0; again < 4; ++again) {
          EXPECT_FALSE(failed(
              pager->read(*block, 0, bytes.data(), bytes.size(), kStream)));
        }
        EXPECT_TRUE(holds(bytes.data(), bytes.size(), seed));
      }
    }
    stop = true;
  });
}

// A call whose kernel must not fail found its room beside another: later pins
// do not come to lie in it.
TEST_F(PagerStressTest, ItsHoleIsHeldBesideOtherCalls) {
  open(8 * kUnit, 64 * kMiB);
  OpMemory memory;
  memory.peak_bytes = 4 * kUnit;
  memory.known = true;
  std::vector<Block*> blocks;
  for (int i = 0; i < 8; ++i) blocks.push_back(filled(kUnit, i));
  const Operand first{blocks[1], Access::kRead};
  const Operand second{blocks[2], Access::kWrite};
  const Operand third{blocks[5], Access::kRead};
  Call beside;
  Call call;
  Call later;
  ASSERT_FALSE(failed(
      pager->begin(beside, kStream, {&first, 1}, nullptr, "beside", true)));
  ASSERT_FALSE(failed(
      pager->begin(call, kStream, {&second, 1}, &memory, "writes", false)));
  ASSERT_FALSE(failed(
      pager->begin(later, kStream, {&third, 1}, nullptr, "later", true)));
  check(2);
  runtime::Result<std::byte*> low = pager->allocate(call, kUnit);
  runtime::Result<std::byte*> high = pager->allocate(call, 3 * kUnit);
  ASSERT_TRUE(low.ok() && high.ok());
  check(2);
  pager->free(&call, *low);
  pager->free(&call, *high);
  for (Call* each : {&beside, &call, &later}) pager->end(*each);
  for (int i = 0; i < 8; ++i) EXPECT_FALSE(failed(expect(blocks[i], i)));
}

// Alone it lets no other call in instead.
TEST_F(PagerStressTest, AnExclusiveCallLetsNobodyIn) {
  for (const bool fast : {true, false}) {
    open(8 * kUnit, 64 * kMiB);
    OpMemory memory;
    memory.peak_bytes = (fast ? 2 : 5) * kUnit;
    memory.known = true;
    Block* const block = filled(kUnit, 1);
    Block* const other = filled(kUnit, 2);
    const Operand operand{block, Access::kWrite};
    Call call;
    ASSERT_FALSE(failed(
        pager->begin(call, kStream, {&operand, 1}, &memory, "op", false)));
    std::atomic<bool> entered{false};
    std::thread thread([&] {
      EXPECT_FALSE(failed(expect(other, 2)));
      entered = true;
    });
    while (pager->stats().host_waits == 0) std::this_thread::yield();
    EXPECT_FALSE(entered);
    pager->end(call);
    thread.join();
  }
}

// A call that needs all of the memory gets its turn among many small ones.
TEST_F(PagerStressTest, NumbersKeepItFair) {
  open(8 * kUnit, 64 * kMiB);
  std::vector<Block*> small;
  for (int i = 0; i < 6; ++i) small.push_back(filled(kUnit, i));
  Block* const big = filled(7 * kUnit, 99);
  std::atomic<bool> stop{false};
  std::thread patient([&] {
    for (int i = 0; i < 5; ++i) EXPECT_FALSE(failed(expect(big, 99)));
    stop = true;
  });
  inThreads(6, [&](int id) {
    while (!stop) {
      Call call;
      EXPECT_FALSE(failed(pin(call, small[id])));
      std::this_thread::sleep_for(std::chrono::microseconds(200));
      pager->end(call);
    }
  });
  patient.join();
}

// A thread that is inside a call fails rather than waits.
TEST_F(PagerStressTest, NestedCallsCannotWaitForEachOther) {
  open(4 * kUnit, 64 * kMiB);
  std::vector<Block*> blocks;
  for (int i = 0; i < 4; ++i) blocks.push_back(filled(3 * kUnit / 2, i));
  std::atomic<int> inside{0};
  std::atomic<int> refused{0};
  inThreads(2, [&](int id) {
    const Operand outer{blocks[id], Access::kRead};
    const Operand inner{blocks[id + 2], Access::kRead};
    Call call;
    EXPECT_FALSE(failed(
        pager->begin(call, kStream, {&outer, 1}, nullptr, "outer", true)));
    ++inside;
    while (inside < 2) std::this_thread::yield();
    Call nested;
    if (pager->begin(nested, kStream, {&inner, 1}, nullptr, "inner", true)) {
      ++refused;
    } else {
      pager->end(nested);
    }
    ++inside;
    while (inside < 4) std::this_thread::yield(); // both have tried
    pager->end(call);
  });
  EXPECT_EQ(refused, 2);
  for (int i = 0; i < 4; ++i) EXPECT_FALSE(failed(expect(blocks[i], i)));
}

TEST_F(PagerStressTest, FreesFromAnotherThread) {
  open(8 * kUnit, 64 * kMiB);
  for (int round = 0; round < 50; ++round) {
    Call call;
    ASSERT_FALSE(failed(pager->begin(call, kStream, {}, nullptr, "op", true)));
    runtime::Result<std::byte*> first = pager->allocate(call, kUnit);
    runtime::Result<std::byte*> second = pager->allocate(call, kUnit);
    ASSERT_TRUE(first.ok() && second.ok());
    std::thread other([&] {
      pager->free(nullptr, *first);
      pager->free(nullptr, *second); // in the call or after it
    });
    pager->end(call);
    other.join();
    check(2);
    EXPECT_EQ(pager->stats().foreign_bytes, 0);
  }
}

// The budget is lowered while a call pins memory above the new border: the
// caller waits for the call.
TEST_F(PagerStressTest, LoweringTheBudgetWaitsForCalls) {
  open(8 * kUnit, 64 * kMiB);
  Block* const low = filled(6 * kUnit, 1);
  Block* const high = filled(kUnit, 2);
  Call call;
  ASSERT_FALSE(failed(pin(call, high)));
  std::thread other(
      [&] { EXPECT_FALSE(failed(pager->budgets().setHbmBudget(2 * kUnit))); });
  while (pager->stats().host_waits == 0) std::this_thread::yield();
  EXPECT_TRUE(holds(high->device_address, kUnit, 2));
  pager->end(call);
  other.join();
  EXPECT_EQ(pager->budgets().limits().hbm_budget_bytes, 2 * kUnit);
  EXPECT_FALSE(failed(expect(high, 2)));
  EXPECT_EQ(low->device, nullptr);
}

} // namespace
} // namespace chameleon::memory
