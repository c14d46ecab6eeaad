#include "memory/streams/transfers.h"

#include <cstring>
#include <gtest/gtest.h>
#include <vector>

#include "backend/runtime/cpu/cpu_runtime.h"
#include "backend/runtime/fault_injection.h"

namespace chameleon::memory {
namespace {

class TransfersTest : public ::testing::Test {
 protected:
  TransfersTest() {
    runtime::CpuAdversary adversary;
    adversary.copies = runtime::CopyTiming::kOnAwait;
    runtime_ = runtime::make_cpu_runtime({adversary, {}});
    streams = std::make_unique<StreamPositions>(*runtime_);
    timer_ = std::make_unique<OpTimer>(*runtime_, durations_, timeline_);
    transfers = std::make_unique<Transfers>(*runtime_, *streams, *timer_);
  }
  ~TransfersTest() override { runtime::FaultInjection::instance().disarmAll(); }

  std::unique_ptr<runtime::DeviceRuntime> runtime_;
  profiler::Durations durations_;
  profiler::Timeline timeline_;
  std::unique_ptr<StreamPositions> streams;
  std::unique_ptr<OpTimer> timer_;
  std::unique_ptr<Transfers> transfers;
};

TEST_F(TransfersTest, ABatchHasOnePositionAndWaitsForItsFence) {
  std::vector<std::byte> a(100, std::byte{1});
  std::vector<std::byte> b(100, std::byte{2});
  std::vector<std::byte> middle(200);
  std::vector<std::byte> end(200);
  const runtime::Copy out[] = {{middle.data(), a.data(), 100},
                               {middle.data() + 100, b.data(), 100}};
  Position written;
  ASSERT_TRUE(transfers->out(out, {}, written).ok());
  EXPECT_EQ(written.stream(), kCopyOut);
  EXPECT_EQ(middle[0], std::byte{0}); // nobody has waited yet
  Fence fence;
  fence.add(written);
  const runtime::Copy in{end.data(), middle.data(), 200};
  Position read;
  ASSERT_TRUE(transfers->in({&in, 1}, fence, read).ok());
  EXPECT_EQ(read.stream(), kCopyIn);
  ASSERT_TRUE(streams->synchronize(read).ok());
  EXPECT_EQ(end[0], std::byte{1});
  EXPECT_EQ(end[199], std::byte{2});
}

TEST_F(TransfersTest, FailedSubmissions) {
  using runtime::FaultPoint;
  std::vector<std::byte> a(10);
  std::vector<std::byte> b(10);
  const runtime::Copy copy{b.data(), a.data(), 10};
  Position done;
  auto& faults = runtime::FaultInjection::instance();
  faults.arm(FaultPoint::kCopy, 1, false);
  EXPECT_FALSE(transfers->out({&copy, 1}, {}, done).ok());
  EXPECT_FALSE(done.none()); // something may be under way
  ASSERT_TRUE(transfers->out({&copy, 1}, {}, done).ok());
  Fence fence;
  fence.add(done);
  faults.arm(FaultPoint::kEvent, 1, false);
  const runtime::Copy back{a.data(), b.data(), 10};
  EXPECT_FALSE(transfers->in({&back, 1}, fence, done).ok());
  EXPECT_TRUE(done.none());                    // nothing was submitted
  ASSERT_TRUE(streams->synchronizeAll().ok()); // before the vectors go
}

} // namespace
} // namespace chameleon::memory
