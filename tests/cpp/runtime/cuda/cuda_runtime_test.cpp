// The cuda runtime on an emulated driver, which reports every misuse.
#include "backend/runtime/cuda/cuda_runtime.h"

#include <cstring>
#include <gtest/gtest.h>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/cpp/runtime/cuda/cuda_runtime_fixture.h"
#include "tests/cpp/support/host_slab.h"

namespace chameleon::runtime {
namespace {

void fill(std::byte* bytes, std::size_t count, unsigned seed) {
  for (std::size_t i = 0; i < count; ++i) {
    bytes[i] = static_cast<std::byte>((i * 31 + i / 251 + seed) & 0xff);
  }
}

std::vector<std::byte> filled(std::size_t count, unsigned seed) {
  std::vector<std::byte> bytes(count);
  fill(bytes.data(), count, seed);
  return bytes;
}

// ---- device memory ---------------------------------------------------------

TEST_F(CudaRuntimeTest, CommitsAndDecommitsUnits) {
  open();
  EXPECT_EQ(cuda->name(), "cuda");
  EXPECT_EQ(cuda->commitGranularity(), kUnit);
  std::byte* const base = cuda->reserve(10 * kUnit).value();
  EXPECT_EQ(driver->usedBytes(0), 0u);
  ASSERT_TRUE(cuda->commit(base, 4 * kUnit).ok());
  EXPECT_EQ(driver->usedBytes(0), 4 * kUnit);
  EXPECT_EQ(cuda->deviceMemory().free_bytes, 256 * kMiB - 4 * kUnit);
  EXPECT_EQ(cuda->deviceMemory().total_bytes, 256 * kMiB);
  // Any whole units, however they were committed.
  ASSERT_TRUE(cuda->decommit(base + kUnit, 3 * kUnit).ok());
  EXPECT_EQ(driver->usedBytes(0), kUnit);
  ASSERT_TRUE(cuda->commit(base + 2 * kUnit, kUnit).ok());
  ASSERT_TRUE(cuda->decommit(base, kUnit).ok());
  ASSERT_TRUE(cuda->decommit(base + 2 * kUnit, kUnit).ok());
  EXPECT_EQ(driver->usedBytes(0), 0u);
  cuda->unreserve(base, 10 * kUnit);
}

TEST_F(CudaRuntimeTest, TheUnitIsAtLeastTheDevices) {
  driver_options.granularity = 2 * kMiB;
  open();
  EXPECT_EQ(cuda->commitGranularity(), 2 * kMiB);
}

TEST_F(CudaRuntimeTest, ACommitIsAllOrNothing) {
  open();
  std::byte* const base = cuda->reserve(8 * kUnit).value();
  for (const DriverCall call : {DriverCall::cuMemCreate, DriverCall::cuMemMap,
                                DriverCall::cuMemSetAccess}) {
    const bool once = call == DriverCall::cuMemSetAccess;
    driver->failCall(call, once ? 1 : 3, CUDA_ERROR_OUT_OF_MEMORY);
    const Error error = cuda->commit(base, 4 * kUnit);
    ASSERT_FALSE(error.ok());
    EXPECT_EQ(error.code(), ErrorCode::kOutOfDeviceMemory);
    EXPECT_NE(error.message().find("CUDA_ERROR_OUT_OF_MEMORY"),
              std::string::npos);
    EXPECT_EQ(driver->usedBytes(0), 0u);
  }
  ASSERT_TRUE(cuda->commit(base, 4 * kUnit).ok());
  ASSERT_TRUE(cuda->decommit(base, 4 * kUnit).ok());
  cuda->unreserve(base, 8 * kUnit);
}

TEST_F(CudaRuntimeTest, MoreThanTheDeviceHas) {
  driver_options.device_bytes = 4 * kMiB;
  open();
  std::byte* const base = cuda->reserve(8 * kMiB).value();
  const Error error = cuda->commit(base, 4 * kMiB + kUnit);
  EXPECT_EQ(error.code(), ErrorCode::kOutOfDeviceMemory);
  EXPECT_EQ(driver->usedBytes(0), 0u);
  EXPECT_TRUE(cuda->commit(base, 4 * kMiB).ok());
  EXPECT_TRUE(cuda->decommit(base, 4 * kMiB).ok());
  cuda->unreserve(base, 8 * kMiB);
}

TEST_F(CudaRuntimeTest, WithoutMappingARangeIsOneAllocation) {
  driver_options.maps_memory = false;
  driver_options.device_bytes = 10 * kMiB;
  open();
  std::byte* const base = cuda->reserve(100 * kMiB).value();
  const std::size_t taken = driver->usedBytes(0);
  EXPECT_EQ(taken, 10 * kMiB / 100 * 90);
  EXPECT_TRUE(cuda->commit(base, 8 * kMiB).ok());
  const Error error = cuda->commit(base + 8 * kMiB, 2 * kMiB);
  EXPECT_EQ(error.code(), ErrorCode::kOutOfDeviceMemory);
  EXPECT_NE(error.message().find("lower hbm_budget"), std::string::npos);
  EXPECT_TRUE(cuda->decommit(base, 8 * kMiB).ok());
  EXPECT_EQ(driver->usedBytes(0), taken);
  cuda->unreserve(base, 100 * kMiB);
  EXPECT_EQ(driver->usedBytes(0), 0u);
}

TEST_F(CudaRuntimeTest, AddressesThatAreNeverCommittedCostTheGpuNothing) {
  // Far more than the GPU has; ThreadSanitizer leaves less than a TiB at times.
  constexpr std::size_t kBytes = std::size_t{1} << 36;
  for (const bool maps : {true, false}) {
    driver_options.maps_memory = maps;
    open();
    std::byte* const base = cuda->reserveAddresses(kBytes).value();
    EXPECT_EQ(driver->calls(DriverCall::cuMemAddressReserve), 0u);
    EXPECT_EQ(driver->usedBytes(0), 0u);
    cuda->unreserve(base, kBytes);
  }
}

TEST_F(CudaRuntimeTest, DevicesAreIndependent) {
  driver_options.devices = 2;
  open();
  auto second = make_cuda_runtime(table, 1, options);
  ASSERT_TRUE(second.ok());
  std::byte* const first_base = device(kUnit);
  std::byte* const base = (*second)->reserve(2 * kUnit).value();
  ASSERT_TRUE((*second)->commit(base, 2 * kUnit).ok());
  EXPECT_EQ(driver->usedBytes(0), kUnit);
  EXPECT_EQ(driver->usedBytes(1), 2 * kUnit);
  // Calls for the two in turn, on their default streams.
  const Copy one{base, base + kUnit, 100};
  EXPECT_TRUE((*second)->copy(kDefaultComputeStream, {&one, 1}).ok());
  EXPECT_TRUE(
      copy(kDefaultComputeStream, first_base, first_base + 1000, 100).ok());
  for (CudaRuntime* runtime : {cuda.get(), second->get()}) {
    const Event event = runtime->record(kDefaultComputeStream).value();
    EXPECT_TRUE(runtime->wait(runtime->copyOutStream(), event).ok());
    EXPECT_TRUE(runtime->synchronize(event).ok());
    runtime->destroy(event);
  }
  EXPECT_TRUE((*second)->decommit(base, 2 * kUnit).ok());
  (*second)->unreserve(base, 2 * kUnit);
  giveBack(first_base, kUnit);
  second->reset();
  const auto third = make_cuda_runtime(table, 2, options);
  ASSERT_FALSE(third.ok());
  EXPECT_EQ(third.error().message(), "there is no GPU 2; the driver sees 2");
}

// ---- copies ----------------------------------------------------------------

TEST_F(CudaRuntimeTest, CopiesThereAndBackWithoutAHostWait) {
  open();
  std::byte* const slab = support::allocate_slab(*cuda, 2 * kMiB).value();
  EXPECT_EQ(cuda->stats().registered_host_bytes, 2 * kMiB);
  std::byte* const there = device(kMiB);
  fill(slab, kMiB, 1);
  ASSERT_TRUE(copy(cuda->copyInStream(), there, slab, kMiB).ok());
  order(cuda->copyInStream(), kDefaultComputeStream);
  order(kDefaultComputeStream, cuda->copyOutStream());
  ASSERT_TRUE(copy(cuda->copyOutStream(), slab + kMiB, there, kMiB).ok());
  const Event done = cuda->record(cuda->copyOutStream()).value();
  EXPECT_FALSE(cuda->query(done));
  EXPECT_EQ(hostWaits(), 0u);
  ASSERT_TRUE(cuda->synchronize(done).ok());
  EXPECT_TRUE(cuda->query(done));
  cuda->destroy(done);
  EXPECT_EQ(std::memcmp(slab, slab + kMiB, kMiB), 0);
  EXPECT_EQ(cuda->transferGaps().pageable_bytes, 0u);
  finish(cuda->copyInStream());
  giveBack(there, kMiB);
  support::free_slab(*cuda, slab, 2 * kMiB);
  EXPECT_EQ(driver->pinnedBytes(), 0u);
}

TEST_F(CudaRuntimeTest, SmallCopiesAreOneCallWhereTheDriverKnowsIt) {
  for (const int how : {0, 1, 2}) { // known, missing, refused
    driver_options.copies_batches = how != 1;
    open();
    if (how == 2) {
      driver->failCall(DriverCall::cuMemcpyBatchAsync, 1,
                       CUDA_ERROR_NOT_SUPPORTED, true);
    }
    std::byte* const slab = support::allocate_slab(*cuda, kMiB).value();
    std::byte* const there = device(kMiB);
    fill(slab, kMiB, 2);
    std::vector<Copy> copies;
    for (std::size_t i = 0; i < 10; ++i) {
      copies.push_back({there + i * 1000, slab + i * 3000, 1000});
    }
    ASSERT_TRUE(cuda->copy(cuda->copyInStream(), copies).ok());
    ASSERT_TRUE(cuda->copy(cuda->copyInStream(), copies).ok());
    const std::uint64_t batches = driver->calls(DriverCall::cuMemcpyBatchAsync);
    EXPECT_EQ(batches, how == 0 ? 2u : how == 1 ? 0u : 1u); // asked once
    EXPECT_EQ(cuda->transferGaps().batch_refusals, how == 2 ? 1u : 0u);
    EXPECT_EQ(driver->calls(DriverCall::cuMemcpyAsync), how == 0 ? 0u : 20u);
    finish(cuda->copyInStream());
    for (const Copy& one : copies) {
      EXPECT_EQ(std::memcmp(one.destination, one.source, one.bytes), 0);
    }
    giveBack(there, kMiB);
    support::free_slab(*cuda, slab, kMiB);
  }
}

TEST_F(CudaRuntimeTest, ACopyIsCutWhereARegistrationEnds) {
  open();
  std::byte* const slab = support::allocate_slab(*cuda, 5 * kMiB).value();
  std::byte* const there = device(4 * kMiB);
  fill(slab, 5 * kMiB, 8);
  // Over three borders, one of them to the byte.
  const std::vector<Copy> copies = {
      {there, slab + kMiB - 1, kMiB + 1},
      {there + 2 * kMiB, slab + 2 * kMiB + 512, 2 * kMiB}};
  ASSERT_TRUE(cuda->copy(cuda->copyInStream(), copies).ok());
  EXPECT_EQ(driver->calls(DriverCall::cuMemcpyBatchAsync), 1u);
  EXPECT_EQ(driver->calls(DriverCall::cuMemcpyAsync), 0u);
  finish(cuda->copyInStream());
  for (const Copy& one : copies) {
    EXPECT_EQ(std::memcmp(one.destination, one.source, one.bytes), 0);
  }
  // One copy of one block is a batch as well.
  ASSERT_TRUE(
      copy(cuda->copyOutStream(), slab + kMiB / 2, there, 3 * kMiB).ok());
  EXPECT_EQ(driver->calls(DriverCall::cuMemcpyBatchAsync), 2u);
  finish(cuda->copyOutStream());
  EXPECT_EQ(std::memcmp(slab + kMiB / 2, there, 3 * kMiB), 0);
  EXPECT_EQ(cuda->transferGaps().pageable_bytes, 0u);
  giveBack(there, 4 * kMiB);
  support::free_slab(*cuda, slab, 5 * kMiB);
}

// A chunk may be registered between the question and the copy.
TEST_F(CudaRuntimeTest, CopiesAreRightWhileTheirMemoryIsPinned) {
  options.register_in_background = true;
  driver_options.register_time_per_mebibyte = std::chrono::microseconds(300);
  driver_options.lateness = Lateness::kRandom;
  open();
  constexpr std::size_t kBytes = 16 * kMiB;
  std::byte* const there = device(kBytes);
  for (unsigned round = 0; round < 3; ++round) {
    std::byte* const slab = support::allocate_slab(*cuda, kBytes).value();
    do {
      fill(slab, 4096, round);
      fill(slab + kBytes - 4096, 4096, round);
      ASSERT_TRUE(copy(cuda->copyInStream(), there, slab, kBytes).ok());
      order(cuda->copyInStream(), cuda->copyOutStream());
      ASSERT_TRUE(copy(cuda->copyOutStream(), slab, there, kBytes).ok());
      finish(cuda->copyOutStream());
    } while (cuda->stats().registered_host_bytes < kBytes);
    EXPECT_EQ(misuse, "");
    const std::vector<std::byte> expected = filled(4096, round);
    EXPECT_EQ(std::memcmp(slab + kBytes - 4096, expected.data(), 4096), 0);
    support::free_slab(*cuda, slab, kBytes);
  }
  EXPECT_GT(cuda->transferGaps().pageable_bytes, 0u);
  EXPECT_EQ(cuda->transferGaps().batch_refusals, 0u);
  giveBack(there, kBytes);
}

TEST_F(CudaRuntimeTest, ARefusedBatchGoesAsSingleCopies) {
  open();
  std::byte* const slab = support::allocate_slab(*cuda, kMiB).value();
  std::byte* const there = device(kMiB);
  fill(slab, kMiB, 9);
  std::vector<Copy> copies;
  for (std::size_t i = 0; i < 10; ++i) {
    copies.push_back({there + i * 1000, slab + i * 3000, 1000});
  }
  for (const CUresult result :
       {CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_OUT_OF_MEMORY}) {
    driver->failCall(DriverCall::cuMemcpyBatchAsync, 1, result);
    const std::uint64_t singles = driver->calls(DriverCall::cuMemcpyAsync);
    ASSERT_TRUE(cuda->copy(cuda->copyInStream(), copies).ok());
    EXPECT_EQ(driver->calls(DriverCall::cuMemcpyAsync), singles + 10);
    ASSERT_TRUE(cuda->copy(cuda->copyInStream(), copies).ok()); // a batch again
    EXPECT_EQ(driver->calls(DriverCall::cuMemcpyAsync), singles + 10);
    finish(cuda->copyInStream());
    for (const Copy& one : copies) {
      EXPECT_EQ(std::memcmp(one.destination, one.source, one.bytes), 0);
    }
  }
  EXPECT_EQ(cuda->transferGaps().batch_refusals, 2u);
  // Where the single copies fail as well, they say why.
  driver->failCall(DriverCall::cuMemcpyBatchAsync, 1, CUDA_ERROR_UNKNOWN);
  driver->failCall(DriverCall::cuMemcpyAsync, 2, CUDA_ERROR_UNKNOWN);
  const Error error = cuda->copy(cuda->copyInStream(), copies);
  EXPECT_EQ(error.message(),
            "cuMemcpyAsync failed: emulated error (CUDA_ERROR)");
  finish(cuda->copyInStream());
  giveBack(there, kMiB);
  support::free_slab(*cuda, slab, kMiB);
}

TEST_F(CudaRuntimeTest, AnyTwoOrdinaryRangesToo) {
  open();
  std::byte* const there = device(kMiB);
  const std::vector<std::byte> from = filled(5000, 3);
  std::vector<std::byte> to(5000);
  ASSERT_TRUE(copy(cuda->copyInStream(), there, from.data(), 5000).ok());
  finish(cuda->copyInStream());
  ASSERT_TRUE(copy(cuda->copyOutStream(), to.data(), there, 5000).ok());
  finish(cuda->copyOutStream());
  EXPECT_EQ(from, to);
  EXPECT_EQ(cuda->transferGaps().pageable_bytes, 0u); // none of our slabs
  giveBack(there, kMiB);
}

TEST_F(CudaRuntimeTest, MovesInsideTheDeviceAreMemmoves) {
  driver_options.lateness = Lateness::kRandom;
  open();
  constexpr std::size_t kBytes = 18 * kMiB;
  std::byte* const base = device(kBytes + 8 * kMiB);
  for (const std::size_t distance :
       {std::size_t{0}, std::size_t{512}, 3 * kMiB, 5 * kMiB}) {
    for (const bool up : {false, true}) {
      for (const std::size_t bytes : {std::size_t{600}, kBytes}) {
        std::byte* const from = up ? base : base + distance;
        std::byte* const to = up ? base + distance : base;
        const std::vector<std::byte> expected =
            filled(bytes, static_cast<unsigned>(distance + bytes));
        std::memcpy(from, expected.data(), bytes); // nothing runs just now
        ASSERT_TRUE(copy(kDefaultComputeStream, to, from, bytes).ok());
        finish(kDefaultComputeStream);
        ASSERT_EQ(std::memcmp(to, expected.data(), bytes), 0)
            << distance << " " << up << " " << bytes;
      }
    }
  }
  giveBack(base, kBytes + 8 * kMiB);
}

TEST_F(CudaRuntimeTest, MovesOnTwoStreamsShareTheBounceBufferInTurn) {
  open();
  std::byte* const base = device(8 * kMiB);
  fill(base, 8 * kMiB, 4);
  const std::vector<std::byte> before(base, base + 8 * kMiB);
  ASSERT_TRUE(copy({1}, base, base + 512, kMiB).ok());
  ASSERT_TRUE(copy({2}, base + 4 * kMiB, base + 4 * kMiB + 512, kMiB).ok());
  ASSERT_TRUE(copy({1}, base + 2 * kMiB, base + 2 * kMiB + 512, kMiB).ok());
  for (const std::uint64_t id : {2, 1}) finish({id});
  for (const std::size_t at : {std::size_t{0}, 2 * kMiB, 4 * kMiB}) {
    EXPECT_EQ(std::memcmp(base + at, before.data() + at + 512, kMiB), 0);
  }
  EXPECT_EQ(driver->calls(DriverCall::cuMemAlloc), 1u);
  giveBack(base, 8 * kMiB);
}

TEST_F(CudaRuntimeTest, MovesNeedNoBounceBuffer) {
  open();
  driver->failCall(DriverCall::cuMemAlloc, 1, CUDA_ERROR_OUT_OF_MEMORY, true);
  std::byte* const base = device(kMiB);
  const std::vector<std::byte> expected = filled(100'000, 5);
  std::memcpy(base + 512, expected.data(), expected.size());
  ASSERT_TRUE(
      copy(kDefaultComputeStream, base, base + 512, expected.size()).ok());
  finish(kDefaultComputeStream);
  EXPECT_EQ(std::memcmp(base, expected.data(), expected.size()), 0);
  giveBack(base, kMiB);
}

TEST_F(CudaRuntimeTest, TheBounceBufferIsThereBeforeMemoryIsFull) {
  open();
  std::byte* const base = device(8 * kMiB);
  std::byte* const host = support::allocate_slab(*cuda, kMiB).value();
  fill(host, kMiB, 7);
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(copy(cuda->copyInStream(), base, host, kMiB).ok());
    finish(cuda->copyInStream());
    EXPECT_EQ(driver->calls(DriverCall::cuMemAlloc), 1u);
  }
  driver->failCall(DriverCall::cuMemAlloc, 1, CUDA_ERROR_OUT_OF_MEMORY, true);
  const std::uint64_t copies = driver->calls(DriverCall::cuMemcpyAsync);
  ASSERT_TRUE(copy(kDefaultComputeStream, base + 512, base, kMiB).ok());
  finish(kDefaultComputeStream);
  EXPECT_EQ(std::memcmp(base + 512, host, kMiB), 0);
  EXPECT_EQ(driver->calls(DriverCall::cuMemcpyAsync), copies + 2);
  support::free_slab(*cuda, host, kMiB);
  giveBack(base, 8 * kMiB);
}

// ---- host memory -----------------------------------------------------------

TEST_F(CudaRuntimeTest, RefusedRegistrationDegradesWithOneWarning) {
  driver_options.register_limit = 3 * kMiB + 1;
  open();
  std::byte* const first = support::allocate_slab(*cuda, 5 * kMiB).value();
  std::byte* const second = support::allocate_slab(*cuda, 2 * kMiB).value();
  EXPECT_EQ(cuda->stats().registered_host_bytes, 3 * kMiB);
  EXPECT_EQ(cuda->transferGaps().pinning_refusals, 2u);
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_NE(warnings[0].find("cannot be pinned"), std::string::npos);
  // A copy over the border is split there.
  fill(first, 5 * kMiB, 6);
  std::byte* const there = device(5 * kMiB);
  ASSERT_TRUE(copy(cuda->copyInStream(), there, first, 5 * kMiB).ok());
  EXPECT_EQ(cuda->transferGaps().pageable_bytes, 2 * kMiB);
  finish(cuda->copyInStream());
  EXPECT_EQ(std::memcmp(there, first, 5 * kMiB), 0);
  ASSERT_TRUE(copy(cuda->copyOutStream(), second, there, 2 * kMiB).ok());
  finish(cuda->copyOutStream());
  EXPECT_EQ(std::memcmp(second, first, 2 * kMiB), 0);
  EXPECT_EQ(cuda->transferGaps().pageable_bytes, 4 * kMiB);
  giveBack(there, 5 * kMiB);
  support::free_slab(*cuda, first, 5 * kMiB);
  EXPECT_EQ(driver->pinnedBytes(), 0u);
  support::free_slab(*cuda, second, 2 * kMiB);
}

TEST_F(CudaRuntimeTest, TheEndOfTheProcessIsNoRefusal) {
  open();
  driver->failCall(DriverCall::cuMemHostRegister, 1, CUDA_ERROR_DEINITIALIZED,
                   true);
  std::byte* const slab = support::allocate_slab(*cuda, 2 * kMiB).value();
  EXPECT_EQ(cuda->transferGaps().pinning_refusals, 0u);
  EXPECT_EQ(warnings, std::vector<std::string>{});
  support::free_slab(*cuda, slab, 2 * kMiB);
}

TEST_F(CudaRuntimeTest, RegistersInTheBackground) {
  options.register_in_background = true;
  open();
  std::byte* const slab =
      support::allocate_slab(*cuda, 20 * kMiB + 4096).value();
  fill(slab, 4096, 1); // usable at once
  cuda->awaitPinning();
  EXPECT_EQ(cuda->stats().registered_host_bytes, 20 * kMiB + 4096);
  EXPECT_EQ(driver->calls(DriverCall::cuMemHostRegister), 21u);
  support::free_slab(*cuda, slab, 20 * kMiB + 4096);
  EXPECT_EQ(cuda->stats().registered_host_bytes, 0u);
}

TEST_F(CudaRuntimeTest, ACopyMayLieInSlabsSideBySide) {
  open();
  constexpr std::size_t kSlab = 2 * kMiB + 4096; // ends with a small chunk
  std::byte* const base = cuda->reserveAddresses(3 * kSlab).value();
  for (std::size_t i : {1, 0, 2}) {
    ASSERT_TRUE(cuda->allocateHost(base + i * kSlab, kSlab).ok());
  }
  std::byte* const there = device(8 * kMiB);
  constexpr std::size_t kBytes = 3 * kSlab - 1000;
  fill(base + 500, kBytes, 7);
  ASSERT_TRUE(copy(cuda->copyInStream(), there, base + 500, kBytes).ok());
  finish(cuda->copyInStream());
  EXPECT_EQ(std::memcmp(there, base + 500, kBytes), 0);
  ASSERT_TRUE(copy(cuda->copyOutStream(), base + 400, there, kBytes).ok());
  finish(cuda->copyOutStream());
  EXPECT_EQ(std::memcmp(there, base + 400, kBytes), 0);
  EXPECT_EQ(cuda->transferGaps().pageable_bytes, 0u);
  for (std::size_t i : {2, 0, 1}) cuda->freeHost(base + i * kSlab, kSlab);
  EXPECT_EQ(driver->pinnedBytes(), 0u);
  cuda->unreserve(base, 3 * kSlab);
  giveBack(there, 8 * kMiB);
}

TEST_F(CudaRuntimeTest, SlabsMayGoWhileTheyAreRegistered) {
  options.register_in_background = true;
  open();
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([this] {
      for (std::size_t round = 0; round < 20; ++round) {
        const std::size_t bytes = (1 + round % 4) * kMiB;
        std::byte* const slab = support::allocate_slab(*cuda, bytes).value();
        slab[bytes - 1] = std::byte{1};
        support::free_slab(*cuda, slab, bytes);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  cuda->awaitPinning();
  EXPECT_EQ(driver->pinnedBytes(), 0u);
  (void)support::allocate_slab(*cuda, 8 * kMiB)
      .value(); // the destructor's to give back
}

// It may be another one than the thread that pins, or frees, that captures.
TEST_F(CudaRuntimeTest, PinningLeavesCapturesOfOtherThreadsAlone) {
  for (const bool in_background : {true, false}) {
    options.register_in_background = in_background;
    open();
    driver->capture(true);
    std::byte* const slab = support::allocate_slab(*cuda, 3 * kMiB).value();
    cuda->awaitPinning();
    EXPECT_EQ(cuda->stats().registered_host_bytes, 3 * kMiB);
    support::free_slab(*cuda, slab, 3 * kMiB);
    EXPECT_EQ(driver->pinnedBytes(), 0u);
    driver->capture(false);
  }
}

TEST_F(CudaRuntimeTest, WhoWaitsForPinningIsToldOfSlabsThatGo) {
  options.register_in_background = true;
  driver_options.register_time_per_mebibyte = std::chrono::microseconds(2000);
  open();
  std::byte* const first = support::allocate_slab(*cuda, 2 * kMiB).value();
  std::byte* const second = support::allocate_slab(*cuda, 8 * kMiB).value();
  std::thread waiter([this] { cuda->awaitPinning(); });
  support::free_slab(*cuda, second, 8 * kMiB);
  support::free_slab(*cuda, first, 2 * kMiB);
  waiter.join();
  EXPECT_EQ(driver->pinnedBytes(), 0u);
}

// ---- events ----------------------------------------------------------------

TEST_F(CudaRuntimeTest, EventsArePooledAndUntimed) {
  open();
  for (int i = 0; i < 100; ++i) {
    const Event a = cuda->record(kDefaultComputeStream).value();
    const Event b = cuda->record(cuda->copyInStream()).value();
    EXPECT_EQ(cuda->elapsed_ns(a, b), std::nullopt);
    cuda->destroy(a);
    cuda->destroy(b);
  }
  EXPECT_EQ(cuda->stats().events, 2u);
  EXPECT_EQ(driver->calls(DriverCall::cuEventElapsedTime), 0u);
}

TEST_F(CudaRuntimeTest, TimedEventsTellTheTimeBetweenThem) {
  open();
  std::byte* const slab = support::allocate_slab(*cuda, kMiB).value();
  std::byte* const there = device(kMiB);
  const Event start = cuda->recordTimed(cuda->copyInStream()).value();
  ASSERT_TRUE(copy(cuda->copyInStream(), there, slab, 500'000).ok());
  const Event end = cuda->recordTimed(cuda->copyInStream()).value();
  EXPECT_EQ(cuda->elapsed_ns(start, end), std::nullopt); // not over yet
  ASSERT_TRUE(cuda->synchronize(end).ok());
  // A microsecond, and 25 bytes a nanosecond: float milliseconds.
  EXPECT_NEAR(static_cast<double>(*cuda->elapsed_ns(start, end)), 21'000, 2);
  const std::optional<Moment> first = cuda->momentOf(start);
  const std::optional<Moment> last = cuda->momentOf(end);
  ASSERT_TRUE(first && last);
  EXPECT_NEAR(static_cast<double>(last->time_ns - first->time_ns), 21'000, 2);
  cuda->destroy(start);
  cuda->destroy(end);
  giveBack(there, kMiB);
  support::free_slab(*cuda, slab, kMiB);
}

TEST_F(CudaRuntimeTest, TheCompleteEventIsNoEvent) {
  open();
  EXPECT_TRUE(cuda->query(Event{}));
  EXPECT_TRUE(cuda->wait(kDefaultComputeStream, Event{}).ok());
  EXPECT_TRUE(cuda->synchronize(Event{}).ok());
  cuda->destroy(Event{});
  EXPECT_EQ(driver->calls(DriverCall::cuStreamWaitEvent), 0u);
}

// ---- link ------------------------------------------------------------------

TEST_F(CudaRuntimeTest, TheLinkIsMeasuredOnce) {
  open();
  const std::optional<LinkSpeeds> link = cuda->link();
  ASSERT_TRUE(link.has_value());
  // What the emulated driver's clock says.
  EXPECT_NEAR(link->in_bytes_per_s, 25e9, 1e8);
  EXPECT_NEAR(link->out_bytes_per_s, 25e9, 1e8);
  EXPECT_NEAR(link->both_bytes_per_s, 50e9, 2e8);
  const std::uint64_t copies = driver->calls(DriverCall::cuMemcpyAsync);
  EXPECT_EQ(copies, 6u);
  EXPECT_TRUE(cuda->link().has_value());
  EXPECT_EQ(driver->calls(DriverCall::cuMemcpyAsync), copies);
  EXPECT_EQ(driver->usedBytes(0), 0u);
  EXPECT_EQ(driver->pinnedBytes(), 0u);
}

TEST_F(CudaRuntimeTest, AFailedMeasurementIsNoMeasurement) {
  for (const DriverCall call :
       {DriverCall::cuMemHostRegister, DriverCall::cuMemAlloc,
        DriverCall::cuMemcpyAsync, DriverCall::cuEventRecord,
        DriverCall::cuEventElapsedTime, DriverCall::cuEventCreate}) {
    open();
    driver->failCall(call, 1, CUDA_ERROR_UNKNOWN);
    EXPECT_EQ(cuda->link().has_value(), false);
    EXPECT_EQ(driver->usedBytes(0), 0u);
    EXPECT_EQ(driver->pinnedBytes(), 0u);
  }
}

} // namespace
} // namespace chameleon::runtime
