// The cuda runtime when the driver fails, or is not to be used.
#include <chrono>
#include <gtest/gtest.h>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#include "tests/cpp/runtime/cuda/cuda_runtime_fixture.h"
#include "tests/cpp/support/host_slab.h"

namespace chameleon::runtime {
namespace {

using CudaFailures = CudaRuntimeTest;

TEST_F(CudaFailures, EveryCallThatMakesARuntimeMayFail) {
  open();
  cuda.reset();
  int failures = 0;
  for (std::size_t call = 0;
       call < static_cast<std::size_t>(DriverCall::kCount); ++call) {
    for (std::uint64_t nth = 1; nth <= 2; ++nth) {
      const auto which = static_cast<DriverCall>(call);
      if (which == DriverCall::cuDevicePrimaryCtxRelease ||
          which == DriverCall::cuStreamDestroy ||
          which == DriverCall::cuCtxPushCurrent) {
        continue; // nothing can be done about these
      }
      driver->failCall(which, nth, CUDA_ERROR_UNKNOWN);
      const auto made = make_cuda_runtime(table, 0, options);
      failures += made.ok() ? 0 : 1;
      driver->failCall(which, 0, CUDA_SUCCESS);
    }
  }
  EXPECT_GE(failures, 6);
  EXPECT_EQ(driver->leaks(), std::vector<std::string>{});
}

TEST_F(CudaFailures, DriverErrorsAreValues) {
  open();
  std::byte* const slab = support::allocate_slab(*cuda, kMiB).value();
  std::byte* const there = device(kMiB);
  driver->failCall(DriverCall::cuMemcpyAsync, 1, CUDA_ERROR_UNKNOWN);
  const Error error = copy(cuda->copyInStream(), there, slab, 100);
  EXPECT_EQ(error.code(), ErrorCode::kDevice);
  EXPECT_EQ(error.message(),
            "cuMemcpyAsync failed: emulated error (CUDA_ERROR)");
  driver->failCall(DriverCall::cuEventRecord, 1, CUDA_ERROR_UNKNOWN);
  EXPECT_FALSE(cuda->record(kDefaultComputeStream).ok());
  const Event event = cuda->record(kDefaultComputeStream).value();
  EXPECT_EQ(cuda->stats().events, 1u); // the failed one came back
  driver->failCall(DriverCall::cuStreamWaitEvent, 1, CUDA_ERROR_UNKNOWN);
  EXPECT_FALSE(cuda->wait(cuda->copyInStream(), event).ok());
  driver->failCall(DriverCall::cuEventSynchronize, 1, CUDA_ERROR_UNKNOWN);
  EXPECT_FALSE(cuda->synchronize(event).ok());
  cuda->destroy(event);
  giveBack(there, kMiB);
  support::free_slab(*cuda, slab, kMiB);
}

// The whole story once; then that it was told. Nothing hangs.
TEST_F(CudaFailures, ALostGpuIsLostForGood) {
  open();
  const Event event = cuda->record(kDefaultComputeStream).value();
  driver->loseContext(CUDA_ERROR_ILLEGAL_ADDRESS);
  const Error first = cuda->wait(cuda->copyInStream(), event);
  EXPECT_EQ(first.code(), ErrorCode::kDevice);
  EXPECT_EQ(first.message(),
            "cuStreamWaitEvent failed: emulated error (CUDA_ERROR). A kernel "
            "before it is at fault (CUDA_LAUNCH_BLOCKING=1 shows which), and "
            "this process can use the GPU no longer");
  // Even if the driver recovered: some bytes may be wrong.
  driver->loseContext(CUDA_SUCCESS);
  for (const Error& later :
       {cuda->wait(cuda->copyInStream(), event), cuda->synchronize(event),
        cuda->record(kDefaultComputeStream).takeError(),
        cuda->allocateHost(nullptr, kMiB)}) {
    EXPECT_EQ(later.code(), ErrorCode::kDevice);
    EXPECT_EQ(later.message(),
              "the GPU is lost to this process: cuStreamWaitEvent failed: "
              "emulated error (CUDA_ERROR) earlier; train on in a new process, "
              "from a checkpoint");
  }
  EXPECT_FALSE(cuda->query(event));
  EXPECT_FALSE(cuda->drain(kDefaultComputeStream));
  cuda->destroy(event);
}

TEST_F(CudaFailures, NotEveryLostGpuIsAKernelsFault) {
  open();
  driver->loseContext(CUDA_ERROR_ECC_UNCORRECTABLE);
  EXPECT_EQ(cuda->record(kDefaultComputeStream).error().message(),
            "cuEventCreate failed: emulated error (CUDA_ERROR). This process "
            "can use the GPU no longer");
  driver->loseContext(CUDA_SUCCESS);
}

TEST_F(CudaFailures, ALostGpuTakesNoSingleCopiesForABatch) {
  open();
  std::byte* const slab = support::allocate_slab(*cuda, 2 * kMiB).value();
  driver->failCall(DriverCall::cuMemcpyBatchAsync, 1,
                   CUDA_ERROR_ILLEGAL_ADDRESS);
  const Copy both[] = {{slab, slab + kMiB, 100}, {slab + 100, slab + kMiB, 9}};
  const Error error = cuda->copy(cuda->copyInStream(), both);
  EXPECT_TRUE(error.message().starts_with("cuMemcpyBatchAsync failed"));
  EXPECT_EQ(driver->calls(DriverCall::cuMemcpyAsync), 0u);
  EXPECT_EQ(cuda->transferGaps().batch_refusals, 0u);
  driver->runAll();
  EXPECT_FALSE(cuda->drain(cuda->copyInStream()));
  support::free_slab(*cuda, slab, 2 * kMiB);
}

// Whoever only asks finds out, too.
TEST_F(CudaFailures, AQueryFindsOutThatTheGpuIsLost) {
  open();
  const Event event = cuda->record(kDefaultComputeStream).value();
  driver->loseContext(CUDA_ERROR_LAUNCH_FAILED);
  EXPECT_FALSE(cuda->query(event));
  driver->loseContext(CUDA_SUCCESS);
  const Error error = cuda->wait(cuda->copyInStream(), event);
  EXPECT_TRUE(error.message().starts_with(
      "the GPU is lost to this process: cuEventQuery failed"))
      << error.message();
  cuda->destroy(event);
}

TEST_F(CudaFailures, InjectedFailuresHaveNoEffect) {
  open();
  FaultInjection& faults = FaultInjection::instance();
  for (const FaultPoint point :
       {FaultPoint::kReserve, FaultPoint::kCommit, FaultPoint::kAllocateHost,
        FaultPoint::kCopy, FaultPoint::kEvent}) {
    faults.arm(point, 1, /*for_ever=*/true);
  }
  EXPECT_FALSE(cuda->reserve(kUnit).ok());
  EXPECT_FALSE(cuda->reserveAddresses(kUnit).ok());
  EXPECT_FALSE(cuda->commit(nullptr, kUnit).ok());
  EXPECT_FALSE(cuda->decommit(nullptr, kUnit).ok());
  EXPECT_FALSE(cuda->allocateHost(nullptr, kUnit).ok());
  EXPECT_FALSE(cuda->copy(kDefaultComputeStream, {}).ok());
  EXPECT_FALSE(cuda->record(kDefaultComputeStream).ok());
  EXPECT_FALSE(cuda->recordTimed(kDefaultComputeStream).ok());
  EXPECT_FALSE(cuda->wait(kDefaultComputeStream, Event{}).ok());
  EXPECT_FALSE(cuda->synchronize(Event{}).ok());
  EXPECT_EQ(driver->leaks().size(), 3u); // streams, context, one event
}

TEST_F(CudaFailures, AForkedChildGetsErrors) {
  open();
  std::byte* const there = device(kUnit);
  const Event event = cuda->record(kDefaultComputeStream).value();
  const pid_t child = fork();
  ASSERT_NE(child, -1);
  if (child == 0) {
    const bool good =
        cuda->reserve(kUnit).error().code() == ErrorCode::kUnavailable &&
        cuda->synchronize(event).code() == ErrorCode::kUnavailable &&
        !cuda->query(event) && cuda->deviceMemory().total_bytes == 0 &&
        !cuda->link().has_value();
    cuda->destroy(event);
    cuda.reset(); // touches no driver
    _exit(good ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  cuda->destroy(event);
  giveBack(there, kUnit);
}

TEST_F(CudaFailures, AChildForkedWhileMemoryIsPinnedGetsErrors) {
  options.register_in_background = true;
  driver_options.register_time_per_mebibyte = std::chrono::microseconds(500);
  open();
  std::byte* const slab = support::allocate_slab(*cuda, 32 * kMiB).value();
  const pid_t child = fork(); // threads populate and register
  ASSERT_NE(child, -1);
  if (child == 0) {
    const bool good =
        cuda->allocateHost(slab, kMiB).code() == ErrorCode::kUnavailable;
    cuda->awaitPinning();
    support::free_slab(*cuda, slab, 32 * kMiB);
    cuda.reset(); // waits for no thread, takes no lock
    _exit(good ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  cuda->awaitPinning();
  EXPECT_EQ(cuda->stats().registered_host_bytes, 32 * kMiB);
  support::free_slab(*cuda, slab, 32 * kMiB);
}

TEST(CudaDriverFailures, AMachineWithoutADriverGetsASentence) {
  const Result<const CudaDriver*> driver = cuda_driver();
  if (driver.ok()) GTEST_SKIP() << "this machine has an NVIDIA driver";
  EXPECT_EQ(driver.error().code(), ErrorCode::kUnavailable);
  EXPECT_NE(driver.error().message().find(
                "physical_device = \"cuda\" needs an NVIDIA driver"),
            std::string::npos);
}

} // namespace
} // namespace chameleon::runtime
