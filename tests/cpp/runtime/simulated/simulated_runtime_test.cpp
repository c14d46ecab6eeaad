#include "backend/runtime/simulated/simulated_runtime.h"

#include <functional>
#include <gtest/gtest.h>
#include <memory>
#include <string>
#include <sys/resource.h>
#include <vector>

#include "backend/runtime/fault_injection.h"
#include "tests/cpp/support/host_slab.h"

namespace chameleon::runtime {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::size_t kGiB = std::size_t{1} << 30;

std::unique_ptr<DeviceRuntime> make(const char* gpu) {
  return make_simulated_runtime(parse_gpu_profile(gpu).value());
}

std::int64_t synchronized_ns(DeviceRuntime& runtime, Stream stream) {
  const Event event = runtime.record(stream).value();
  EXPECT_TRUE(runtime.synchronize(event).ok());
  EXPECT_TRUE(runtime.query(event));
  runtime.destroy(event);
  return runtime.now_ns();
}

TEST(SimulatedRuntime, MemoryIsTheProfiles) {
  const auto runtime = make("h200");
  EXPECT_EQ(runtime->name(), "simulated");
  EXPECT_FALSE(runtime->holdsData());
  EXPECT_EQ(runtime->deviceMemory().total_bytes, 141 * kGiB);
  std::byte* const range = runtime->reserve(512 * kGiB).value();
  EXPECT_EQ(
      reinterpret_cast<std::uintptr_t>(range) % runtime->commitGranularity(),
      0U);
  EXPECT_TRUE(runtime->commit(range, 140 * kGiB).ok());
  EXPECT_EQ(runtime->deviceMemory().free_bytes, kGiB);
  const Error error = runtime->commit(range + 140 * kGiB, 2 * kGiB);
  ASSERT_FALSE(error.ok());
  EXPECT_EQ(error.code(), ErrorCode::kOutOfDeviceMemory);
  EXPECT_EQ(error.message(),
            "the simulated h200 has 141.00 GiB of device memory, 1.00 GiB of "
            "it free; 2.00 GiB more are too much");
  EXPECT_TRUE(runtime->decommit(range, 140 * kGiB).ok());
  EXPECT_EQ(runtime->deviceMemory().free_bytes, 141 * kGiB);
  runtime->unreserve(range, 512 * kGiB);
}

TEST(SimulatedRuntime, HostMemoryIsTheProfilesAndCostsNothing) {
  const auto runtime = make("h200");
  std::byte* const slab = support::allocate_slab(*runtime, 200 * kGiB).value();
  EXPECT_EQ(runtime->hostMemory().free_bytes, 56 * kGiB);
  const auto more = support::allocate_slab(*runtime, 57 * kGiB);
  ASSERT_FALSE(more.ok());
  EXPECT_EQ(more.error().code(), ErrorCode::kOutOfHostMemory);
  runtime->freeHost(slab + 150 * kGiB, 50 * kGiB); // its upper part
  EXPECT_EQ(runtime->hostMemory().free_bytes, 106 * kGiB);
  support::free_slab(*runtime, slab, 150 * kGiB);
  EXPECT_EQ(runtime->hostMemory().free_bytes, 256 * kGiB);
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  EXPECT_LT(usage.ru_maxrss, 512 * 1024); // KiB
}

TEST(SimulatedRuntime, NothingIsReadByACopy) {
  const auto runtime = make("h200");
  std::byte* const range = runtime->reserve(kGiB).value();
  const Copy copies[] = {{range, range + 500 * kMiB, 55'000'000},
                         {range, nullptr, 55'000'000}};
  ASSERT_TRUE(runtime->copy(runtime->copyInStream(), copies).ok());
  EXPECT_EQ(runtime->now_ns(), 0);
  // One batch: 7 us of latency, then each 1 ms at 55 GB/s.
  EXPECT_EQ(synchronized_ns(*runtime, runtime->copyInStream()), 2'007'000);
  for (const Copy& copy : copies) {
    ASSERT_TRUE(runtime->copy(runtime->copyInStream(), {&copy, 1}).ok());
  }
  EXPECT_EQ(synchronized_ns(*runtime, runtime->copyInStream()), 4'021'000);
  runtime->unreserve(range, kGiB);
}

TEST(SimulatedRuntime, OpsTakeLaunchAndRoofline) {
  const auto runtime = make("h200");
  const Stream stream = kDefaultComputeStream;
  // 7e11 FLOP at 700e12: 1 ms. Memory would take 0.5 ms.
  ASSERT_TRUE(runtime->computed(stream, {7e11, MathType::kBf16, 2e9}).ok());
  EXPECT_EQ(synchronized_ns(*runtime, stream), 1'003'000);
  // 8e9 bytes at 4e12: 2 ms.
  ASSERT_TRUE(runtime->computed(stream, {7e11, MathType::kBf16, 8e9}).ok());
  EXPECT_EQ(synchronized_ns(*runtime, stream), 3'006'000);
  ASSERT_TRUE(runtime->computed(stream, {}).ok());
  EXPECT_EQ(synchronized_ns(*runtime, stream), 3'009'000);
  EXPECT_EQ(runtime->computeTimes().busy_ns, 3'009'000);
  EXPECT_EQ(runtime->computeTimes().stalled_ns, 0);
}

TEST(SimulatedRuntime, ComputeWaitsForACopyAndThatIsAStall) {
  const auto runtime = make("h200");
  const Copy copy{nullptr, nullptr, 55'000'000};
  ASSERT_TRUE(runtime->copy(runtime->copyInStream(), {&copy, 1}).ok());
  const Event fetched = runtime->record(runtime->copyInStream()).value();
  ASSERT_TRUE(runtime->wait(kDefaultComputeStream, fetched).ok());
  EXPECT_FALSE(runtime->query(fetched));
  runtime->destroy(fetched); // the wait keeps it
  ASSERT_TRUE(runtime->computed(kDefaultComputeStream, {}).ok());
  EXPECT_EQ(synchronized_ns(*runtime, kDefaultComputeStream), 1'010'000);
  EXPECT_EQ(runtime->computeTimes().stalled_ns, 1'007'000);
}

TEST(SimulatedRuntime, CollectivesRunOnStreamsOfTheirOwn) {
  const auto runtime = make("h100");
  const Stream group{7};
  const Exchange gather{ExchangePattern::kAllGather, 3.708e9, 8, 1};
  ASSERT_TRUE(runtime->exchanged(group, gather).ok());
  const Event done = runtime->record(group).value();
  ASSERT_TRUE(runtime->wait(kDefaultComputeStream, done).ok());
  runtime->destroy(done);
  // Seven eighths at 370.8 GB/s, and a ring's latency.
  const std::int64_t end_ns = synchronized_ns(*runtime, kDefaultComputeStream);
  EXPECT_NEAR(static_cast<double>(end_ns), 8.75e6 + 8.4e3 + 7 * 3.4e3, 1);
  const ComputeTimes times = runtime->computeTimes();
  EXPECT_EQ(times.busy_ns, 0);
  EXPECT_EQ(times.stalled_ns, 0);
}

TEST(SimulatedRuntime, WithoutPeerAccessCollectivesSlowCopies) {
  const auto time_of = [](const char* gpu) {
    const auto runtime = make(gpu);
    const Exchange sum{ExchangePattern::kAllReduce, 1e9, 8, 1};
    EXPECT_TRUE(runtime->exchanged(Stream{7}, sum).ok());
    const Copy copy{nullptr, nullptr, 500'000'000};
    EXPECT_TRUE(runtime->copy(runtime->copyInStream(), {&copy, 1}).ok());
    return synchronized_ns(*runtime, runtime->copyInStream());
  };
  const std::int64_t alone_ns = 500'000'000 / 25 + 7'000;
  EXPECT_GT(time_of("rtx4090"), alone_ns * 3 / 2);
  EXPECT_EQ(time_of("base=rtx4090, nvlink=200GB/s"), alone_ns);
}

TEST(SimulatedRuntime, MovesRunBesideOpsAndShareTheMemory) {
  const auto runtime = make("h200");
  std::byte* const there = runtime->reserve(4 * kGiB).value();
  const Copy copy{there, there + 2 * kGiB, 2'000'000'000}; // 1 ms, alone
  // Of its 1 ms it needs the memory for half.
  ASSERT_TRUE(
      runtime->computed(kDefaultComputeStream, {7e11, MathType::kBf16, 2e9})
          .ok());
  ASSERT_TRUE(runtime->copy(runtime->moveStream(), {&copy, 1}).ok());
  EXPECT_EQ(synchronized_ns(*runtime, kDefaultComputeStream), 1'003'000);
  EXPECT_NEAR(synchronized_ns(*runtime, runtime->moveStream()), 1'503'000,
              2'000);
  EXPECT_EQ(runtime->computeTimes().stalled_ns, 0);
  // An op that needs nothing but the memory takes twice its time.
  ASSERT_TRUE(runtime->copy(runtime->moveStream(), {&copy, 1}).ok());
  const std::int64_t begin_ns = runtime->now_ns();
  ASSERT_TRUE(
      runtime->computed(kDefaultComputeStream, {0, MathType::kFp32, 2e9}).ok());
  EXPECT_NEAR(synchronized_ns(*runtime, kDefaultComputeStream) - begin_ns,
              1'003'000, 4'000);
  EXPECT_NEAR(runtime->computeTimes().stalled_ns, 500'000, 4'000);
}

// As a GPU does it: in pieces of the distance, or twice by way of a buffer.
TEST(SimulatedRuntime, MovesOntoThemselvesTakeLonger) {
  const auto runtime = make("h200");
  std::byte* const there = runtime->reserve(kGiB).value();
  const auto moved_ns = [&](std::size_t distance, std::size_t bytes) {
    const std::int64_t begin_ns = runtime->now_ns();
    const Copy copy{there, there + distance, bytes};
    EXPECT_TRUE(runtime->copy(runtime->moveStream(), {&copy, 1}).ok());
    return synchronized_ns(*runtime, runtime->moveStream()) - begin_ns;
  };
  EXPECT_EQ(moved_ns(0, 240 * kMiB), 0);
  const std::int64_t apart_ns = moved_ns(240 * kMiB, 240 * kMiB);
  EXPECT_NEAR(apart_ns, 3'000 + 240 * kMiB / 2'000, 1);
  EXPECT_EQ(moved_ns(60 * kMiB, 240 * kMiB), apart_ns + 3 * 3'000);
  EXPECT_NEAR(moved_ns(kMiB, 240 * kMiB), 2 * apart_ns + 28 * 3'000, 2);
}

TEST(SimulatedRuntime, ElapsedIsTheDevicesTime) {
  const auto runtime = make("h200");
  const Event start = runtime->record(kDefaultComputeStream).value();
  ASSERT_TRUE(
      runtime->computed(kDefaultComputeStream, {0, MathType::kFp32, 4e9}).ok());
  const Event end = runtime->record(kDefaultComputeStream).value();
  EXPECT_EQ(runtime->elapsed_ns(start, end), std::nullopt);
  ASSERT_TRUE(runtime->synchronize(end).ok());
  EXPECT_EQ(runtime->elapsed_ns(start, end), 1'003'000);
  EXPECT_EQ(runtime->elapsed_ns(end, start), -1'003'000);
  EXPECT_EQ(runtime->elapsed_ns(Event{}, end), std::nullopt);
  runtime->destroy(start);
  runtime->destroy(end);
}

TEST(SimulatedRuntime, AskingOverAndOverComesToAnEnd) {
  const auto runtime = make("h200");
  ASSERT_TRUE(
      runtime->computed(kDefaultComputeStream, {0, MathType::kFp32, 4e6}).ok());
  const Event end = runtime->record(kDefaultComputeStream).value();
  int questions = 1;
  while (!runtime->query(end)) ++questions;
  EXPECT_EQ(questions, 5); // the first is free, then 1 us each, for 4 us
  EXPECT_EQ(runtime->now_ns(), 4000);
  runtime->destroy(end);
}

TEST(SimulatedRuntime, MovesInsideTheDeviceReadAndWrite) {
  const auto runtime = make("h200");
  std::byte* const there = runtime->reserve(4 * kGiB).value();
  const Copy copy{there, there + 2 * kGiB, 2'000'000'000};
  ASSERT_TRUE(runtime->copy(kDefaultComputeStream, {&copy, 1}).ok());
  EXPECT_EQ(synchronized_ns(*runtime, kDefaultComputeStream), 1'003'000);
  EXPECT_EQ(runtime->computeTimes().busy_ns, 0);
  EXPECT_EQ(runtime->computeTimes().stalled_ns, 1'003'000);
}

TEST(SimulatedRuntime, InjectedFailuresHaveNoEffect) {
  const auto runtime = make("rtx3090");
  struct Case {
    FaultPoint point;
    std::function<bool()> fails;
  };
  const Copy copy{nullptr, nullptr, 1000};
  const std::vector<Case> cases{
      {FaultPoint::kReserve, [&] { return !runtime->reserve(kMiB).ok(); }},
      {FaultPoint::kCommit,
       [&] { return !runtime->commit(nullptr, kMiB).ok(); }},
      {FaultPoint::kAllocateHost,
       [&] { return !support::allocate_slab(*runtime, kMiB).ok(); }},
      {FaultPoint::kCopy,
       [&] {
         return !runtime->copy(runtime->copyInStream(), {&copy, 1}).ok();
       }},
      {FaultPoint::kEvent,
       [&] { return !runtime->record(kDefaultComputeStream).ok(); }},
  };
  for (const Case& each : cases) {
    FaultInjection::instance().arm(each.point, 1, /*for_ever=*/false);
    EXPECT_TRUE(each.fails());
  }
  FaultInjection::instance().disarmAll();
  EXPECT_EQ(runtime->deviceMemory().free_bytes, 24 * kGiB);
  EXPECT_EQ(runtime->hostMemory().free_bytes, 64 * kGiB);
  EXPECT_EQ(synchronized_ns(*runtime, runtime->copyInStream()), 0);
}

} // namespace
} // namespace chameleon::runtime
