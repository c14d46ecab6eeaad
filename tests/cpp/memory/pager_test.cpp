// One thread: states, clean copies, in-call memory, host access.
#include "memory/pager.h"

#include <thread>

#include "tests/cpp/memory/pager_fixture.h"

namespace chameleon::memory {
namespace {

using runtime::Error;
using runtime::ErrorCode;

TEST_F(PagerTest, BlockIsUnbackedUntilFirstUse) {
  open(kMiB);
  Block* const block = create(1000);
  EXPECT_EQ(block->state(), BlockState::kUnbacked);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block->logical_address) % 512, 0u);
  EXPECT_EQ(pager->stats().logical_bytes, 1000);
  EXPECT_EQ(pager->stats().resident_bytes, 0);
  EXPECT_FALSE(failed(fill(block, 1)));
  EXPECT_EQ(block->state(), BlockState::kResident);
  EXPECT_EQ(block->pins(), 0u);
  EXPECT_EQ(pager->stats().resident_bytes, 1024);
  EXPECT_FALSE(failed(expect(block, 1)));
  check();
  pager->release(block);
  EXPECT_EQ(pager->stats().logical_bytes, 0);
  pager->trim();
  EXPECT_EQ(pager->stats().resident_bytes, 0);
}

TEST_F(PagerTest, EvictedBytesComeBack) {
  open(kMiB);
  Block* const block = filled(100 * kKiB + 7, 5);
  EXPECT_FALSE(failed(pager->evict(*block)));
  EXPECT_EQ(block->device, nullptr);
  EXPECT_FALSE(failed(pager->synchronize()));
  EXPECT_EQ(block->state(), BlockState::kHost);
  check();
  EXPECT_FALSE(failed(expect(block, 5)));
  const Stats stats = pager->stats();
  EXPECT_EQ(stats.faults, 1);
  EXPECT_EQ(stats.evictions, 1);
  EXPECT_EQ(stats.clean_evictions, 0);
  EXPECT_EQ(stats.bytes_out, 100 * kKiB + 7);
  EXPECT_EQ(stats.bytes_in, 100 * kKiB + 7);
  EXPECT_EQ(stats.ops, 2);
}

TEST_F(PagerTest, CleanEvictionMovesNoByte) {
  open(kMiB);
  Block* const block = filled(64 * kKiB, 5);
  EXPECT_FALSE(failed(pager->evict(*block)));
  EXPECT_FALSE(failed(expect(block, 5)));
  EXPECT_TRUE(block->hasHostCopy());
  for (int i = 0; i < 3; ++i) {
    EXPECT_FALSE(failed(pager->evict(*block)));
    EXPECT_FALSE(failed(expect(block, 5)));
    check();
  }
  EXPECT_EQ(pager->stats().bytes_out, 64 * kKiB);
  EXPECT_EQ(pager->stats().clean_evictions, 3);
  // A write ends that: the copy is dropped, the next eviction moves bytes.
  EXPECT_FALSE(failed(fill(block, 6)));
  EXPECT_FALSE(block->hasHostCopy());
  EXPECT_EQ(pager->stats().host_bytes, 0);
  EXPECT_FALSE(failed(pager->evict(*block)));
  EXPECT_EQ(pager->stats().bytes_out, 2 * 64 * kKiB);
  EXPECT_FALSE(failed(expect(block, 6)));
}

TEST_F(PagerTest, UnbackedBlocksAreNotFetched) {
  open(kMiB);
  Block* const block = create(64 * kKiB);
  EXPECT_FALSE(failed(pager->evict(*block)));
  EXPECT_FALSE(failed(pager->evictAll()));
  EXPECT_EQ(block->state(), BlockState::kUnbacked);
  EXPECT_EQ(pager->stats().evictions, 0);
}

TEST_F(PagerTest, LeastRecentlyUsedGoesFirst) {
  open(4 * 64 * kKiB);
  std::vector<Block*> blocks;
  for (int i = 0; i < 4; ++i) blocks.push_back(filled(64 * kKiB, i));
  EXPECT_FALSE(failed(expect(blocks[0], 0)));
  Block* const more = filled(64 * kKiB, 9);
  EXPECT_EQ(blocks[0]->state(), BlockState::kResident);
  EXPECT_EQ(blocks[1]->device, nullptr);
  EXPECT_EQ(blocks[2]->state(), BlockState::kResident);
  check();
  for (int i = 0; i < 4; ++i) EXPECT_FALSE(failed(expect(blocks[i], i)));
  EXPECT_FALSE(failed(expect(more, 9)));
  EXPECT_LE(pager->stats().peak_resident_bytes, pager->stats().hbm_budget);
}

TEST_F(PagerTest, OneBlockTwiceInACall) {
  open(64 * kKiB); // no room for it twice
  Block* const block = filled(64 * kKiB, 3);
  for (bool evicted : {false, true}) {
    if (evicted) {
      EXPECT_FALSE(failed(pager->evict(*block)));
    }
    const Operand operands[] = {{block, Access::kRead},
                                {block, Access::kWrite},
                                {block, Access::kRead}};
    Call call;
    ASSERT_FALSE(
        failed(pager->begin(call, kStream, operands, nullptr, "mul_", false)));
    EXPECT_EQ(block->pins(), 3u);
    EXPECT_EQ(pager->stats().pinned_bytes, 64 * kKiB);
    EXPECT_FALSE(block->hasHostCopy());
    EXPECT_TRUE(holds(block->device_address, block->bytes, 3));
    check(2);
    pager->end(call);
    EXPECT_EQ(block->pins(), 0u);
    check();
  }
}

TEST_F(PagerTest, ReadAndWriteOfOneCleanBlockInACall) {
  open(kMiB);
  Block* const block = filled(64 * kKiB, 3);
  EXPECT_FALSE(failed(pager->evict(*block)));
  EXPECT_FALSE(failed(expect(block, 3)));
  ASSERT_TRUE(block->hasHostCopy());
  const Operand operands[] = {{block, Access::kRead}, {block, Access::kWrite}};
  Call call;
  ASSERT_FALSE(
      failed(pager->begin(call, kStream, operands, nullptr, "mul_", false)));
  EXPECT_FALSE(block->hasHostCopy());
  pager->end(call);
}

TEST_F(PagerTest, LogicalLimit) {
  open(kMiB, 256 * kMiB, 2.0);
  Block* const block = create(kMiB + 1);
  runtime::Result<Block*> more = pager->createBlock(kMiB);
  ASSERT_FALSE(more.ok());
  EXPECT_EQ(more.error().code(), ErrorCode::kOutOfLogicalMemory);
  EXPECT_NE(more.error().message().find("oversubscription"), std::string::npos);
  EXPECT_NE(more.error().message().find("2.00 MiB"), std::string::npos)
      << more.error().message();
  create(kMiB - 1);
  pager->release(block);
  create(kMiB);
}

// ---- memory inside a call -------------------------------------------------

TEST_F(PagerTest, AdoptedMemoryIsABlock) {
  open(kMiB);
  Block* const input = filled(64 * kKiB, 1);
  const Operand operand{input, Access::kRead};
  OpMemory memory;
  Call call;
  ASSERT_FALSE(failed(
      pager->begin(call, kStream, {&operand, 1}, &memory, "clone", true)));
  runtime::Result<std::byte*> output = pager->allocate(call, 100);
  ASSERT_TRUE(output.ok());
  EXPECT_TRUE(pager->contains(*output));
  fill_pattern(*output, 100, 7);
  runtime::Result<std::byte*> workspace = pager->allocate(call, 10 * kKiB);
  ASSERT_TRUE(workspace.ok());
  std::memset(*workspace, 1, 10 * kKiB);
  check(2);
  pager->free(&call, *workspace);
  runtime::Result<Block*> block = pager->adopt(call, *output, 100);
  ASSERT_TRUE(block.ok());
  EXPECT_EQ((*block)->state(), BlockState::kResident);
  EXPECT_EQ((*block)->pins(), 1u);
  EXPECT_EQ((*block)->device_address, *output);
  check(2);
  pager->end(call);
  EXPECT_EQ((*block)->pins(), 0u);
  EXPECT_TRUE(memory.known.load());
  EXPECT_EQ(memory.peak_bytes.load(), 10 * kKiB + 512);
  EXPECT_EQ(pager->stats().foreign_bytes, 0);
  EXPECT_EQ(pager->stats().logical_bytes, 64 * kKiB + 100);
  EXPECT_FALSE(failed(pager->evictAll()));
  EXPECT_FALSE(failed(expect(*block, 7)));
}

TEST_F(PagerTest, AdoptChecksItsAddress) {
  open(kMiB);
  Call call;
  ASSERT_FALSE(failed(pager->begin(call, kStream, {}, nullptr, "op", true)));
  runtime::Result<std::byte*> bytes = pager->allocate(call, 1024);
  ASSERT_TRUE(bytes.ok());
  for (const auto& [address, size] :
       {std::pair<std::byte*, std::size_t>{*bytes + 512, 512},
        {*bytes, 1025},
        {nullptr, 1}}) {
    runtime::Result<Block*> block = pager->adopt(call, address, size);
    ASSERT_FALSE(block.ok());
    EXPECT_EQ(block.error().code(), ErrorCode::kInvalidArgument);
  }
  pager->free(&call, *bytes);
  pager->end(call);
}

TEST_F(PagerTest, WhatOutlivesItsCallIsForeign) {
  open(256 * kKiB);
  Call call;
  ASSERT_FALSE(failed(pager->begin(call, kStream, {}, nullptr, "op", true)));
  runtime::Result<std::byte*> kept = pager->allocate(call, 64 * kKiB);
  ASSERT_TRUE(kept.ok());
  pager->end(call);
  EXPECT_EQ(pager->stats().foreign_bytes, 64 * kKiB);
  EXPECT_EQ(pager->stats().pinned_bytes, 64 * kKiB);
  check();
  // It takes from the budget, never moves, and is not evicted.
  Block* const big = create(256 * kKiB);
  const Error error = fill(big, 1);
  ASSERT_TRUE(failed(error));
  EXPECT_EQ(error.code(), ErrorCode::kOutOfDeviceMemory);
  check();
  pager->free(nullptr, *kept);
  EXPECT_EQ(pager->stats().foreign_bytes, 0);
  EXPECT_FALSE(failed(fill(big, 1)));
}

TEST_F(PagerTest, InCallAllocationEvictsAndFails) {
  open(256 * kKiB);
  Block* const input = filled(64 * kKiB, 2);
  Block* const cold = filled(128 * kKiB, 1);
  const Operand operand{input, Access::kRead};
  OpMemory memory;
  Call call;
  ASSERT_FALSE(
      failed(pager->begin(call, kStream, {&operand, 1}, &memory, "mm", true)));
  runtime::Result<std::byte*> output =
      pager->allocate(call, 192 * kKiB); // all that is not pinned
  ASSERT_TRUE(output.ok());
  EXPECT_EQ(cold->device, nullptr);
  runtime::Result<std::byte*> more = pager->allocate(call, 1);
  ASSERT_FALSE(more.ok());
  const std::string& text = more.error().message();
  EXPECT_EQ(more.error().code(), ErrorCode::kOutOfDeviceMemory);
  for (const char* part :
       {"chameleon:0 out of memory. mm needs 256.50 KiB of HBM",
        "operands 64.00 KiB", "inside the kernel 192.50 KiB",
        "budget 256.00 KiB", "pinned 0 B", "host use 128.00 KiB of",
        "torch_chameleon.config.hbm_budget"}) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  }
  pager->free(&call, *output);
  pager->end(call);
  EXPECT_TRUE(call.worthRetrying());
  EXPECT_GE(memory.peak_bytes.load(), 192 * kKiB + 512);
  EXPECT_FALSE(memory.known.load());
  EXPECT_FALSE(failed(expect(cold, 1)));
  EXPECT_FALSE(failed(expect(input, 2)));
}

TEST_F(PagerTest, ARetryFindsOneHole) {
  open(256 * kKiB);
  filled(64 * kKiB, 1);
  Block* const input = filled(64 * kKiB, 2); // splits what is free
  const Operand operand{input, Access::kRead};
  OpMemory memory;
  Call call;
  for (bool good : {false, true}) {
    ASSERT_FALSE(failed(
        pager->begin(call, kStream, {&operand, 1}, &memory, "mm", true)));
    runtime::Result<std::byte*> output = pager->allocate(call, 192 * kKiB);
    EXPECT_EQ(output.ok(), good);
    if (good) pager->free(&call, *output);
    EXPECT_EQ(call.worthRetrying(), !good);
    check(2);
    pager->end(call);
  }
  EXPECT_FALSE(call.worthRetrying());
  EXPECT_EQ(memory.peak_bytes.load(), 192 * kKiB);
  EXPECT_FALSE(failed(expect(input, 2)));
}

TEST_F(PagerTest, RetriesEndInAnExclusiveCallAndThenForGood) {
  open(256 * kKiB);
  OpMemory memory;
  Call call;
  for (int attempt = 0; attempt < 3; ++attempt) {
    EXPECT_EQ(call.worthRetrying(), attempt > 0);
    ASSERT_FALSE(failed(pager->begin(call, kStream, {}, &memory, "op", true)));
    EXPECT_FALSE(pager->allocate(call, 512 * kKiB).ok());
    EXPECT_FALSE(pager->allocate(call, 512 * kKiB).ok());
    pager->end(call);
  }
  EXPECT_FALSE(call.worthRetrying());
  // What was learned is more than there is; ops run all the same.
  Block* const block = create(256 * kKiB);
  const Operand operand{block, Access::kWrite};
  for (bool may_retry : {true, false}) {
    Call next;
    ASSERT_FALSE(failed(
        pager->begin(next, kStream, {&operand, 1}, &memory, "op", may_retry)));
    pager->end(next);
  }
}

TEST_F(PagerTest, HeldPinsAreNoCallInFlight) {
  open(256 * kKiB);
  Block* const held = filled(128 * kKiB, 1);
  Block* const other = create(128 * kKiB);
  Block* const big = create(192 * kKiB);
  Call resident;
  ASSERT_FALSE(failed(pin(resident, held)));
  pager->keepPins(resident);
  EXPECT_FALSE(failed(fill(other, 2)));
  const Error error = fill(big, 3); // must not wait for the holder
  ASSERT_TRUE(failed(error));
  EXPECT_EQ(error.code(), ErrorCode::kOutOfDeviceMemory);
  EXPECT_TRUE(holds(held->device_address, held->bytes, 1));
  check();
  pager->end(resident);
  EXPECT_FALSE(failed(fill(big, 3)));
  EXPECT_FALSE(failed(expect(held, 1)));
}

TEST_F(PagerTest, PinsOfWorkUnderWayAreWaitedFor) {
  open(256 * kKiB);
  Block* const sent = filled(128 * kKiB, 1);
  Block* const big = create(192 * kKiB);
  Call collective;
  ASSERT_FALSE(failed(pin(collective, sent)));
  pager->keepPins(collective);
  pager->endsByItself(collective);
  std::thread peer([&] {
    while (pager->stats().host_waits == 0) std::this_thread::yield();
    pager->end(collective);
  });
  EXPECT_FALSE(failed(fill(big, 3)));
  peer.join();
  EXPECT_FALSE(failed(expect(sent, 1)));
  const Error error = fill(create(512 * kKiB), 4); // nobody left to wait for
  EXPECT_EQ(error.code(), ErrorCode::kOutOfDeviceMemory);
}

TEST_F(PagerTest, ReleaseOfAPinnedBlockWaitsForItsUnpin) {
  open(kMiB);
  Block* const block = filled(64 * kKiB, 1);
  Call call;
  ASSERT_FALSE(failed(pin(call, block)));
  pager->release(block);
  EXPECT_EQ(pager->stats().logical_bytes, 0);
  pager->trim();
  EXPECT_EQ(pager->stats().resident_bytes, 64 * kKiB);
  EXPECT_TRUE(holds(block->device_address, block->bytes, 1));
  runtime::Result<std::byte*> output = pager->allocate(call, 512);
  ASSERT_TRUE(output.ok());
  runtime::Result<Block*> adopted = pager->adopt(call, *output, 512);
  ASSERT_TRUE(adopted.ok());
  pager->release(*adopted);
  pager->end(call);
  pager->trim();
  EXPECT_EQ(pager->stats().resident_bytes, 0);
  EXPECT_EQ(pager->levels().resident_bytes, 0u);
}

TEST_F(PagerTest, ReleaseInEveryState) {
  open(kMiB);
  create(1);                                            // Unbacked
  filled(1024, 1);                                      // Resident
  EXPECT_FALSE(failed(pager->evict(*filled(1024, 2)))); // Evicting or Host
  Block* const clean = filled(1024, 3);
  EXPECT_FALSE(failed(pager->evict(*clean)));
  EXPECT_FALSE(failed(expect(clean, 3)));
  check();
  // The fixture destroys the pager with all of them alive; here one by one.
  std::vector<Block*> blocks{create(1), filled(1024, 1), filled(1024, 2),
                             filled(1024, 3)};
  EXPECT_FALSE(failed(pager->evict(*blocks[2])));
  EXPECT_FALSE(failed(pager->evict(*blocks[3])));
  EXPECT_FALSE(failed(expect(blocks[3], 3)));
  for (Block* block : blocks) {
    pager->release(block);
    create(1); // drains
    check();
  }
}

// ---- host access ------------------------------------------------------------

TEST_F(PagerTest, ReadInEveryState) {
  open(kMiB);
  Block* const block = create(100 * kKiB);
  std::vector<std::byte> bytes(100 * kKiB, std::byte{1});
  const auto read = [&](std::size_t offset, std::size_t count) {
    EXPECT_FALSE(
        failed(pager->read(*block, offset, bytes.data(), count, kStream)));
    check();
  };
  read(0, 100 * kKiB);
  EXPECT_EQ(bytes[0], std::byte{0});
  EXPECT_EQ(block->state(), BlockState::kUnbacked);
  EXPECT_FALSE(failed(fill(block, 4)));
  const std::vector<std::byte> expected = pattern(100 * kKiB, 4);
  const auto expect_part = [&] {
    std::fill(bytes.begin(), bytes.end(), std::byte{1});
    read(1000, 5000);
    EXPECT_EQ(std::memcmp(bytes.data(), expected.data() + 1000, 5000), 0);
    EXPECT_EQ(bytes[5000], std::byte{1});
  };
  expect_part(); // Resident, dirty
  EXPECT_FALSE(failed(pager->evict(*block)));
  expect_part(); // Evicting
  EXPECT_FALSE(failed(pager->synchronize()));
  expect_part(); // Host
  EXPECT_EQ(pager->stats().faults, 0);
  EXPECT_FALSE(failed(expect(block, 4)));
  expect_part(); // Resident, clean
  EXPECT_TRUE(block->hasHostCopy());
  EXPECT_EQ(pager->stats().bytes_out, 100 * kKiB);
  EXPECT_EQ(pager->stats().ops, 2);
}

TEST_F(PagerTest, WriteInEveryState) {
  open(kMiB);
  Block* const block = create(100 * kKiB);
  std::vector<std::byte> model(100 * kKiB);
  const auto write = [&](std::size_t offset, std::size_t count,
                         std::uint64_t seed) {
    const std::vector<std::byte> bytes = pattern(count, seed);
    EXPECT_FALSE(
        failed(pager->write(*block, offset, bytes.data(), count, kStream)));
    std::copy(bytes.begin(), bytes.end(),
              model.begin() + static_cast<std::ptrdiff_t>(offset));
    std::vector<std::byte> now(model.size());
    check();
    EXPECT_FALSE(
        failed(pager->read(*block, 0, now.data(), now.size(), kStream)));
    EXPECT_EQ(now, model);
  };
  write(0, 100 * kKiB, 1); // Unbacked, room in HBM
  EXPECT_EQ(block->state(), BlockState::kResident);
  write(10, 100, 2); // Resident
  EXPECT_FALSE(failed(pager->evict(*block)));
  write(20, 100, 3); // Evicting or Host: there, without a fault
  EXPECT_EQ(block->device, nullptr);
  EXPECT_EQ(pager->stats().faults, 0);
  EXPECT_FALSE(failed(fill(block, 4)));
  model = pattern(100 * kKiB, 4);
  write(30, 100, 5);
  EXPECT_FALSE(failed(pager->evict(*block)));
  std::vector<std::byte> now(model.size());
  EXPECT_FALSE(failed(pager->read(*block, 0, now.data(), now.size(), kStream)));
  write(40, 100, 6);
}

TEST_F(PagerTest, WritesToNewBlocksDoNotFloodHbm) {
  open(256 * kKiB);
  Block* const working = filled(192 * kKiB, 1);
  std::vector<Block*> blocks;
  for (int i = 0; i < 4; ++i) {
    blocks.push_back(create(100 * kKiB));
    const std::vector<std::byte> bytes = pattern(100 * kKiB, 10 + i);
    EXPECT_FALSE(failed(
        pager->write(*blocks.back(), 0, bytes.data(), bytes.size(), kStream)));
    EXPECT_EQ(blocks.back()->state(), BlockState::kHost);
    check();
  }
  EXPECT_EQ(working->state(), BlockState::kResident);
  EXPECT_EQ(pager->stats().evictions, 0);
  for (int i = 0; i < 4; ++i) EXPECT_FALSE(failed(expect(blocks[i], 10 + i)));
  EXPECT_FALSE(failed(expect(working, 1)));
}

// ---- several streams -------------------------------------------------------

TEST_F(PagerTest, MoreStreamsThanUseSlots) {
  runtime::CpuAdversary adversary;
  adversary.copies = runtime::CopyTiming::kOnAwait;
  adversary.compute_delay_ops = 4;
  adversary.poison = true;
  open(256 * kKiB, 256 * kMiB, 64, adversary);
  Block* const block = filled(128 * kKiB, 1);
  Block* const other = filled(128 * kKiB, 2);
  for (std::uint64_t round = 0; round < 4; ++round) {
    for (std::uint64_t id = 0; id < 6; ++id) {
      EXPECT_FALSE(failed(expect(block, 1, {id})));
      if (id % 2 == 0) pager->recordUse(*block, {10 + id});
    }
    EXPECT_FALSE(failed(pager->evict(*block)));
    EXPECT_FALSE(failed(expect(other, 2, {round})));
    check();
  }
}

TEST_F(PagerTest, SetPolicyKeepsBlocks) {
  open(128 * kKiB);
  Block* const first = filled(64 * kKiB, 1);
  filled(64 * kKiB, 2);
  const Error error = pager->policy().set("clock");
  ASSERT_TRUE(failed(error));
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  EXPECT_NE(error.message().find("lru"), std::string::npos);
  EXPECT_FALSE(failed(pager->policy().set("lru")));
  check();
  filled(64 * kKiB, 3);
  EXPECT_EQ(first->device, nullptr);
}

TEST_F(PagerTest, UnknownPolicyIsRefusedAtCreation) {
  runtime_ = runtime::make_cpu_runtime();
  const auto result = Pager::create(*runtime_, {kMiB, kMiB, 4.0}, "belady");
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code(), ErrorCode::kInvalidArgument);
}

TEST_F(PagerTest, StressEvictsBeforeEveryCall) {
  open(kMiB);
  Block* const block = filled(1024, 1);
  pager->stress().setStress(Stress::kAll);
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(failed(expect(block, 1)));
  EXPECT_EQ(pager->stats().faults, 3);
  pager->stress().setStress(Stress::kRandom, 7);
  for (int i = 0; i < 20; ++i) EXPECT_FALSE(failed(expect(block, 1)));
  EXPECT_GT(pager->stats().faults, 6);
  EXPECT_LT(pager->stats().faults, 20);
  pager->stress().setStress(Stress::kNever);
  const std::int64_t faults = pager->stats().faults;
  EXPECT_FALSE(failed(expect(block, 1)));
  EXPECT_EQ(pager->stats().faults, faults);
}

TEST_F(PagerTest, ResetStats) {
  open(kMiB);
  Block* const block = filled(1024, 1);
  EXPECT_FALSE(failed(pager->evict(*block)));
  EXPECT_FALSE(failed(expect(block, 1)));
  pager->resetStats();
  const Stats stats = pager->stats();
  EXPECT_EQ(stats.ops, 0);
  EXPECT_EQ(stats.faults, 0);
  EXPECT_EQ(stats.bytes_in, 0);
  EXPECT_EQ(stats.peak_resident_bytes, 1024);
  EXPECT_EQ(stats.peak_logical_bytes, 1024);
}

TEST_F(PagerTest, MetadataOfABlockIsSmall) {
  // Beside it: two extents at most, 96 bytes each.
  EXPECT_LE(sizeof(Block) + 2 * sizeof(Extent), 512u);
}

} // namespace
} // namespace chameleon::memory
