// Spare blocks in the pager: what they spare, and that nobody can tell.
#include <atomic>
#include <random>
#include <thread>

#include "memory/pager.h"
#include "tests/cpp/memory/fake_runtime.h"
#include "tests/cpp/memory/pager_fixture.h"

namespace chameleon::memory {
namespace {

using runtime::Error;
using runtime::ErrorCode;
using runtime::Stream;

class PagerSparesTest : public PagerTest {
 protected:
  // An op that makes a tensor, as often as it takes.
  Block* make(std::size_t bytes, std::uint64_t seed, Stream stream = kStream) {
    Call call;
    do {
      EXPECT_FALSE(
          failed(pager->begin(call, stream, {}, &make_memory, "make", true)));
      runtime::Result<std::byte*> output = pager->allocate(call, bytes);
      Block* block = nullptr;
      if (output.ok()) {
        fill_pattern(*output, bytes, seed);
        runtime::Result<Block*> result = pager->adopt(call, *output, bytes);
        EXPECT_TRUE(result.ok());
        block = *result;
      }
      pager->end(call);
      if (block != nullptr) return block;
    } while (call.worthRetrying());
    ADD_FAILURE() << "no room for " << bytes << " bytes";
    return nullptr;
  }

  std::int64_t resident() const { return pager->stats().resident_bytes; }

  OpMemory make_memory;
};

TEST_F(PagerSparesTest, TheNextOneOfItsSizeTakesItsPlace) {
  open(kMiB);
  Block* const first = make(1000, 1);
  std::byte* const place = first->device_address;
  std::byte* const logical = first->logical_address;
  const std::uint64_t identity = first->identity;
  pager->release(first);
  check();
  EXPECT_EQ(resident(), 0);
  EXPECT_EQ(pager->stats().logical_bytes, 0);
  EXPECT_EQ(pager->levels().resident_bytes, 0u);
  Block* const second = make(700, 2);
  EXPECT_EQ(second, first);
  EXPECT_EQ(second->device_address, place);
  EXPECT_EQ(second->logical_address, logical);
  EXPECT_EQ(second->bytes, 700u);
  EXPECT_GT(second->identity, identity);
  EXPECT_EQ(resident(), 1024);
  EXPECT_EQ(pager->stats().logical_bytes, 700);
  EXPECT_EQ(pager->stats().peak_resident_bytes, 1024);
  EXPECT_EQ(pager->stats().pinned_bytes, 0);
  check();
  EXPECT_FALSE(failed(pager->evict(*second)));
  EXPECT_EQ(pager->stats().bytes_out, 700);
  EXPECT_FALSE(failed(expect(second, 2)));
  Block* const third = make(1000, 3); // the place is taken
  EXPECT_NE(third, second);
  EXPECT_FALSE(failed(expect(second, 2)));
  EXPECT_FALSE(failed(expect(third, 3)));
}

TEST_F(PagerSparesTest, FreeMemoryInEveryFigure) {
  open(kMiB);
  for (int i = 0; i < 3; ++i) pager->release(make(4 * kKiB, i));
  pager->resetStats();
  EXPECT_EQ(pager->stats().peak_resident_bytes, 0);
  Block* const block = filled(2 * kKiB, 5);
  EXPECT_EQ(resident(), 2 * kKiB);
  EXPECT_EQ(pager->levels().resident_bytes, 2 * kKiB);
  EXPECT_EQ(pager->stats().peak_resident_bytes, 2 * kKiB);
  Block* const again = make(4 * kKiB, 6);
  EXPECT_EQ(pager->stats().peak_resident_bytes, 6 * kKiB);
  pager->release(again);
  pager->trim();
  EXPECT_EQ(resident(), 2 * kKiB);
  EXPECT_FALSE(failed(expect(block, 5)));
}

TEST_F(PagerSparesTest, NothingIsEvictedWhileThereAreSpares) {
  open(256 * kKiB);
  Block* const kept = filled(240 * kKiB, 1);
  // In pieces, and more than one op's worth.
  std::vector<Block*> small;
  for (int i = 0; i < 4; ++i) small.push_back(make(2 * kKiB, i));
  for (Block* block : small) pager->release(block);
  check();
  Block* const other = filled(16 * kKiB, 2);
  EXPECT_EQ(pager->stats().evictions, 0);
  EXPECT_EQ(pager->stats().compactions, 0);
  EXPECT_EQ(resident(), 256 * kKiB);
  EXPECT_FALSE(failed(expect(kept, 1)));
  EXPECT_FALSE(failed(expect(other, 2)));
}

TEST_F(PagerSparesTest, NothingIsMovedWhileThereAreSpares) {
  open(256 * kKiB);
  filled(100 * kKiB, 1);
  Block* const hole = filled(8 * kKiB, 2);
  filled(136 * kKiB, 3);
  Block* const spare = make(4 * kKiB, 4); // at the top, above 8 KiB
  pager->release(hole);
  pager->trim();
  pager->release(spare);
  EXPECT_FALSE(failed(fill(create(12 * kKiB), 5)));
  EXPECT_EQ(pager->stats().compactions, 0);
  EXPECT_EQ(pager->stats().evictions, 0);
  EXPECT_EQ(resident(), 248 * kKiB);
}

TEST_F(PagerSparesTest, NothingIsRefusedWhileThereAreSpares) {
  open(256 * kKiB);
  pager->release(make(4 * kKiB, 1));
  pager->release(make(512, 1));
  Block* const all = create(256 * kKiB);
  EXPECT_FALSE(failed(fill(all, 2)));
  EXPECT_EQ(pager->stats().evictions, 0);
  pager->release(all);
  pager->release(make(4 * kKiB, 1));
  const std::vector<std::byte> bytes = pattern(256 * kKiB, 3);
  Block* const written = create(256 * kKiB); // does not go to the host
  EXPECT_FALSE(
      failed(pager->write(*written, 0, bytes.data(), bytes.size(), kStream)));
  EXPECT_EQ(written->state(), BlockState::kResident);
  EXPECT_EQ(pager->stats().host_bytes, 0);
}

TEST_F(PagerSparesTest, TheBudgetShrinksBelowThem) {
  open(kMiB);
  std::vector<Block*> blocks;
  for (int i = 0; i < 8; ++i) blocks.push_back(make(4 * kKiB, i));
  for (Block* block : blocks) pager->release(block);
  EXPECT_FALSE(failed(pager->budgets().setHbmBudget(4 * kKiB)));
  check();
  EXPECT_EQ(pager->stats().evictions, 0);
  EXPECT_FALSE(failed(expect(filled(4 * kKiB, 1), 1)));
  // A share of so small a budget keeps none.
  pager->release(make(512, 1));
  Block* const other = make(512, 2);
  pager->release(other);
  check();
}

TEST_F(PagerSparesTest, EvictionsByForceSeeNone) {
  open(kMiB);
  pager->release(make(1024, 1));
  EXPECT_FALSE(failed(pager->evictAll()));
  EXPECT_EQ(pager->stats().evictions, 0);
  for (const Stress stress : {Stress::kAll, Stress::kRandom}) {
    pager->stress().setStress(stress, 1);
    for (int i = 0; i < 4; ++i) pager->release(make(1024, i));
    EXPECT_EQ(pager->stats().evictions, 0);
    check();
  }
}

TEST_F(PagerSparesTest, HostCopiesAreNotKept) {
  open(kMiB);
  Block* const clean = make(1024, 1);
  EXPECT_FALSE(failed(pager->evict(*clean)));
  EXPECT_FALSE(failed(expect(clean, 1)));
  ASSERT_TRUE(clean->hasHostCopy());
  pager->release(clean);
  EXPECT_EQ(pager->stats().host_bytes, 0);
  check();
  Block* const evicted = make(1024, 2);
  EXPECT_FALSE(failed(pager->evict(*evicted)));
  pager->release(evicted);
  EXPECT_EQ(pager->stats().host_bytes, 0);
  EXPECT_FALSE(failed(expect(make(1024, 3), 3)));
}

// A block that was taken from among others takes none of them along.
TEST_F(PagerSparesTest, OneOfSeveralIsEvictedAndDies) {
  open(kMiB);
  Block* const first = make(1024, 1);
  Block* const second = make(1024, 2);
  pager->release(first);
  pager->release(second);
  Block* const taken = make(1024, 3);
  EXPECT_EQ(taken, second);
  EXPECT_FALSE(failed(pager->evict(*taken)));
  pager->release(taken);
  Block* const other = make(1024, 4);
  EXPECT_EQ(other, first);
  pager->trim();
  check();
  EXPECT_FALSE(failed(expect(other, 4)));
  EXPECT_EQ(resident(), 1024);
}

// Both are the calls' in-call memory all the same.
TEST_F(PagerSparesTest, WorkspacesComeAndGo) {
  open(kMiB);
  pager->release(make(1024, 1));
  pager->release(make(2048, 1));
  OpMemory memory;
  memory.peak_bytes = 8 * kKiB;
  memory.known = true;
  for (int round = 0; round < 3; ++round) {
    Call call;
    ASSERT_FALSE(failed(pager->begin(call, kStream, {}, &memory, "op", true)));
    runtime::Result<std::byte*> work = pager->allocate(call, 1024);
    runtime::Result<std::byte*> output = pager->allocate(call, 2048);
    runtime::Result<std::byte*> more = pager->allocate(call, 1024);
    ASSERT_TRUE(work.ok() && output.ok() && more.ok());
    EXPECT_EQ(pager->stats().pinned_bytes, 4 * kKiB);
    EXPECT_EQ(resident(), 4 * kKiB);
    check(2);
    EXPECT_FALSE(failed(pager->evictAll())); // not these
    pager->free(&call, *work);
    EXPECT_FALSE(pager->adopt(call, *output, 2049).ok());
    EXPECT_FALSE(pager->adopt(call, *output, 0).ok());
    runtime::Result<Block*> block = pager->adopt(call, *output, 2000);
    ASSERT_TRUE(block.ok());
    EXPECT_EQ((*block)->pins(), 1u);
    pager->free(&call, *more);
    pager->end(call);
    check();
    EXPECT_EQ(resident(), 2 * kKiB);
    EXPECT_EQ(pager->stats().logical_bytes, 2000);
    EXPECT_EQ(memory.peak_bytes.load(), 8 * kKiB);
    pager->release(*block);
  }
  EXPECT_EQ(pager->stats().peak_resident_bytes, 4 * kKiB);
}

TEST_F(PagerSparesTest, WhatOutlivesItsCallIsForeign) {
  open(256 * kKiB);
  pager->release(make(4 * kKiB, 1));
  Call call;
  ASSERT_FALSE(
      failed(pager->begin(call, kStream, {}, &make_memory, "op", true)));
  runtime::Result<std::byte*> kept = pager->allocate(call, 4 * kKiB);
  ASSERT_TRUE(kept.ok());
  fill_pattern(*kept, 4 * kKiB, 9);
  pager->end(call);
  check();
  EXPECT_EQ(pager->stats().foreign_bytes, 4 * kKiB);
  EXPECT_EQ(pager->stats().pinned_bytes, 4 * kKiB);
  EXPECT_EQ(resident(), 4 * kKiB);
  Block* const big = create(256 * kKiB);
  const Error error = fill(big, 1);
  ASSERT_TRUE(failed(error));
  EXPECT_EQ(error.code(), ErrorCode::kOutOfDeviceMemory);
  EXPECT_TRUE(holds(*kept, 4 * kKiB, 9));
  pager->free(nullptr, *kept);
  EXPECT_EQ(pager->stats().foreign_bytes, 0);
  EXPECT_FALSE(failed(fill(big, 1)));
}

TEST_F(PagerSparesTest, FreesFromAnotherThread) {
  open(kMiB);
  for (int round = 0; round < 50; ++round) {
    pager->release(make(1024, 1));
    Call call;
    ASSERT_FALSE(
        failed(pager->begin(call, kStream, {}, &make_memory, "op", true)));
    runtime::Result<std::byte*> bytes = pager->allocate(call, 1024);
    ASSERT_TRUE(bytes.ok());
    std::thread other([&] { pager->free(nullptr, *bytes); }); // or after it
    if (round % 2 == 0) other.join();
    pager->end(call);
    if (round % 2 != 0) other.join();
    check(2);
    EXPECT_EQ(pager->stats().foreign_bytes, 0);
    EXPECT_EQ(resident(), 0);
  }
}

// A kernel that must not fail gets its room in one piece, whatever of it lies
// where a spare block did; with the lock and without it.
TEST_F(PagerSparesTest, AKernelThatMustNotFailKeepsItsRoomInOnePiece) {
  for (const bool locked : {false, true}) {
    for (std::size_t pieces = 1; pieces < 8; ++pieces) {
      open(64 * kKiB);
      // A spare block in the middle of what is free.
      Block* const low = make(31 * kKiB, 1);
      Block* const middle = make(kKiB, 2);
      pager->release(low);
      if (!locked) pager->stats(); // frees it: nothing else asks for the lock
      pager->release(middle);
      OpMemory memory;
      memory.peak_bytes = 64 * kKiB / pieces / 512 * 512;
      memory.known = true;
      Call call;
      ASSERT_FALSE(
          failed(pager->begin(call, kStream, {}, &memory, "op_", false)));
      runtime::Result<std::byte*> first = pager->allocate(call, kKiB);
      runtime::Result<std::byte*> rest =
          pager->allocate(call, memory.peak_bytes - kKiB);
      EXPECT_TRUE(first.ok() && rest.ok()) << pieces << " pieces";
      check(2);
      if (first.ok()) pager->free(&call, *first);
      if (rest.ok()) pager->free(&call, *rest);
      pager->end(call);
    }
  }
}

// What was not committed for a call is not pinned by it behind others' backs.
TEST_F(PagerSparesTest, NoneIsTakenBeyondTheRoom) {
  open(kMiB);
  Block* const spare = make(1024, 1);
  std::byte* const place = spare->device_address;
  pager->release(spare);
  OpMemory memory;
  memory.known = true; // needs nothing, so far
  Call call;
  ASSERT_FALSE(failed(pager->begin(call, kStream, {}, &memory, "op", true)));
  runtime::Result<std::byte*> bytes = pager->allocate(call, 1024);
  ASSERT_TRUE(bytes.ok());
  EXPECT_NE(*bytes, place);
  pager->free(&call, *bytes);
  pager->end(call);
  EXPECT_EQ(memory.peak_bytes.load(), 1024u);
}

TEST_F(PagerSparesTest, ARunOfOneThreadRepeats) {
  std::vector<std::vector<std::ptrdiff_t>> runs;
  for (int run = 0; run < 2; ++run) {
    open(256 * kKiB);
    std::mt19937_64 random(7);
    std::vector<Block*> blocks;
    std::vector<std::ptrdiff_t>& places = runs.emplace_back();
    std::byte* base = nullptr;
    for (int i = 0; i < 400; ++i) {
      blocks.push_back(make(512 * (1 + random() % 16), 1));
      if (base == nullptr) base = blocks[0]->device_address;
      places.push_back(blocks.back()->device_address - base);
      if (blocks.size() > 20) {
        const std::size_t index = random() % blocks.size();
        pager->release(blocks[index]);
        blocks.erase(blocks.begin() + static_cast<std::ptrdiff_t>(index));
      }
    }
    for (Block* block : blocks) pager->release(block);
  }
  EXPECT_EQ(runs[0], runs[1]);
}

// The lru order of blocks that were born again is that of their last use.
TEST_F(PagerSparesTest, BornAgainIsMostRecentlyUsed) {
  open(64 * kKiB);
  Block* const spare = make(kKiB, 1);
  Block* const old = make(kKiB, 2);
  pager->release(spare);
  Block* const born = make(kKiB, 3);
  ASSERT_EQ(born, spare);
  EXPECT_FALSE(failed(fill(create(62 * kKiB + 512), 4)));
  EXPECT_EQ(old->device, nullptr);
  EXPECT_EQ(born->state(), BlockState::kResident);
  EXPECT_FALSE(failed(expect(born, 3)));
}

// Threads that make, use and drop tensors of few sizes, while others evict,
// walk and change the budget.
TEST_F(PagerSparesTest, Threads) {
  runtime::CpuAdversary adversary;
  adversary.copies = runtime::CopyTiming::kReordered;
  adversary.compute_delay_ops = 3;
  adversary.poison = true;
  for (const bool adversarial : {false, true}) {
    open(512 * kKiB, 64 * kMiB, 64,
         adversarial ? adversary : runtime::CpuAdversary{});
    std::atomic<int> running{4};
    std::vector<std::thread> threads;
    for (int id = 0; id < 6; ++id) {
      threads.emplace_back([&, id] {
        std::mt19937_64 random(static_cast<std::uint64_t>(id));
        if (id >= 4) {
          while (running > 0) {
            switch (random() % 4) {
              case 0:
                EXPECT_FALSE(failed(pager->evictAll()));
                break;
              case 1:
                (void)pager->budgets()
                    .setHbmBudget((256 + random() % 512) * kKiB)
                    .ok();
                break;
              case 2:
                pager->trim();
                break;
              default:
                pager->invariants().check(2);
            }
            std::this_thread::yield();
          }
          return;
        }
        const Stream stream{static_cast<std::uint64_t>(id % 2)};
        const int rounds = adversarial ? 60 : 300;
        for (int round = 0; round < rounds; ++round) {
          const std::size_t bytes = kKiB << random() % 3;
          const std::uint64_t seed = random();
          Block* const block = make(bytes - random() % 512, seed, stream);
          if (round % 2 == 0) {
            EXPECT_FALSE(failed(expect(block, seed, stream)));
          }
          pager->release(block);
        }
        --running;
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(pager->stats().pinned_bytes, 0);
    EXPECT_EQ(resident(), 0);
    EXPECT_LE(pager->stats().peak_resident_bytes, 768 * kKiB);
  }
}

// Nobody waits but the pager: a block goes from stream to stream with all the
// work on it in order.
class AsyncSparesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto result = Pager::create(device, {256 * kKiB, 64 * kMiB, 64}, "lru");
    ASSERT_TRUE(result.ok()) << result.error().message();
    pager = std::move(*result);
  }
  void TearDown() override {
    pager->invariants().check(3);
    ASSERT_TRUE(pager->synchronize().ok());
    pager.reset();
  }
  // A tensor made on `stream`, as a copy of `bytes` host bytes.
  Block* make(std::size_t stream, std::size_t bytes, const std::byte* from) {
    Call call;
    EXPECT_TRUE(pager
                    ->begin(call, FakeRuntime::compute(stream), {}, &memory,
                            "make", true)
                    .ok());
    runtime::Result<std::byte*> output = pager->allocate(call, bytes);
    EXPECT_TRUE(output.ok());
    const runtime::Copy copy{*output, from, bytes};
    EXPECT_TRUE(device.copy(FakeRuntime::compute(stream), {&copy, 1}).ok());
    runtime::Result<Block*> block = pager->adopt(call, *output, bytes);
    EXPECT_TRUE(block.ok());
    pager->end(call);
    return *block;
  }

  FakeRuntime device;
  std::unique_ptr<Pager> pager;
  OpMemory memory;
};

TEST_F(AsyncSparesTest, AnotherStreamWaitsForTheEarlierUser) {
  constexpr std::size_t kBytes = 4 * kKiB;
  std::vector<std::vector<std::byte>> sources;
  for (std::uint64_t i = 0; i < 9; ++i) sources.push_back(pattern(kBytes, i));
  for (const bool reverse : {false, true}) {
    Block* block = make(0, kBytes, sources[0].data());
    std::byte* const place = block->device_address;
    for (std::size_t i = 1; i < sources.size(); ++i) {
      pager->release(block);
      block = make(i % 3, kBytes, sources[i].data());
      ASSERT_EQ(block->device_address, place);
    }
    EXPECT_EQ(device.synchronizes, 0u);
    // The queues run in the order that does most harm.
    for (std::size_t i = 0; i < 3; ++i) {
      device.run(FakeRuntime::compute(reverse ? 2 - i : i), 100);
    }
    device.runAll();
    std::vector<std::byte> bytes(kBytes);
    ASSERT_TRUE(
        pager->read(*block, 0, bytes.data(), kBytes, FakeRuntime::compute(2))
            .ok());
    EXPECT_EQ(bytes, sources.back());
    device.synchronizes = 0;
    pager->release(block);
    pager->trim();
  }
}

} // namespace
} // namespace chameleon::memory
