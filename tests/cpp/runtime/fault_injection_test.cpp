#include "backend/runtime/fault_injection.h"

#include <atomic>
#include <gtest/gtest.h>
#include <string>
#include <thread>
#include <vector>

namespace chameleon::runtime {
namespace {

class Faults : public testing::Test {
 protected:
  void TearDown() override { faults_.disarmAll(); }
  // The outcome of `n` passes, "." ok, "x" failed.
  std::string passes(FaultPoint point, int n) {
    std::string text;
    for (int i = 0; i < n; ++i) text += faults_.pass(point).ok() ? '.' : 'x';
    return text;
  }
  FaultInjection& faults_ = FaultInjection::instance();
};

TEST_F(Faults, OffByDefault) {
  const std::uint64_t before = faults_.passes(FaultPoint::kCopy);
  EXPECT_EQ(passes(FaultPoint::kCopy, 3), "...");
  EXPECT_EQ(faults_.passes(FaultPoint::kCopy), before);
}

TEST_F(Faults, NthOnce) {
  faults_.arm(FaultPoint::kCopy, 3, /*for_ever=*/false);
  EXPECT_EQ(passes(FaultPoint::kEvent, 5), ".....");
  EXPECT_EQ(passes(FaultPoint::kCopy, 6), "..x...");
  EXPECT_EQ(faults_.passes(FaultPoint::kCopy), 6u);
}

TEST_F(Faults, NthForEver) {
  faults_.arm(FaultPoint::kCommit, 2, /*for_ever=*/true);
  EXPECT_EQ(passes(FaultPoint::kCommit, 5), ".xxxx");
  faults_.disarmAll();
  EXPECT_EQ(passes(FaultPoint::kCommit, 3), "...");
}

TEST_F(Faults, ZeroOnlyCounts) {
  faults_.arm(FaultPoint::kCommit, 0, /*for_ever=*/true);
  EXPECT_EQ(passes(FaultPoint::kCommit, 5), ".....");
  EXPECT_EQ(faults_.passes(FaultPoint::kCommit), 5u);
  faults_.arm(FaultPoint::kCommit, 1, /*for_ever=*/false); // starts over
  EXPECT_EQ(passes(FaultPoint::kCommit, 2), "x.");
}

TEST_F(Faults, ErrorsAreTheRealOnes) {
  const ErrorCode codes[] = {
      ErrorCode::kUnavailable,     ErrorCode::kOutOfDeviceMemory,
      ErrorCode::kOutOfHostMemory, ErrorCode::kDevice,
      ErrorCode::kDevice,          ErrorCode::kOutOfLogicalMemory,
      ErrorCode::kDevice};
  const auto names = fault_point_names();
  ASSERT_EQ(names.size(), std::size(codes));
  for (std::size_t i = 0; i < names.size(); ++i) {
    const FaultPoint point = find_fault_point(names[i]).value();
    faults_.arm(point, 1, false);
    const Error error = faults_.pass(point);
    ASSERT_FALSE(error.ok());
    EXPECT_EQ(error.code(), codes[i]);
    EXPECT_EQ(error.message(), "injected failure: pass 1 of point '" +
                                   std::string(names[i]) + "'");
  }
  EXPECT_EQ(find_fault_point("commits"), std::nullopt);
}

TEST_F(Faults, OneOfManyThreadsFails) {
  faults_.arm(FaultPoint::kCopy, 100, /*for_ever=*/false);
  std::atomic<int> failed{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 50; ++i) {
        if (faults_.pass(FaultPoint::kCopy)) ++failed;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failed, 1);
  EXPECT_EQ(faults_.passes(FaultPoint::kCopy), 200u);
}

} // namespace
} // namespace chameleon::runtime
