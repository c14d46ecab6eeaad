// What is rare behind a runtime. (All else about copies: cpu_runtime_test.)
#include "backend/runtime/copy_engines.h"

#include <array>
#include <chrono>
#include <gtest/gtest.h>
#include <thread>

#include "backend/runtime/fault_injection.h"

namespace chameleon::runtime {
namespace {

// One engine is asked to stop while it waits for the other, whose copy fails
// then: what it waited for is gone, and it must hear of it.
TEST(CopyEngines, AFailureAtTheEndHangsNobody) {
  std::array<std::byte, 64> bytes{};
  const Copy one{bytes.data(), bytes.data() + 32, 32};
  for (int i = 0; i < 50; ++i) {
    CopyEngines engines(CopyTiming::kOnAwait, /*seed=*/1, nullptr);
    FaultInjection::instance().arm(FaultPoint::kCompletion, 1, false);
    ASSERT_FALSE(engines.submit(kCopyOutLine, {&one, 1}));
    ASSERT_FALSE(engines.submitWait(kCopyInLine, engines.last(kCopyOutLine)));
    ASSERT_FALSE(engines.submit(kCopyInLine, {&one, 1}));
    std::this_thread::sleep_for(std::chrono::milliseconds(1)); // both wait
  }
  FaultInjection::instance().disarmAll();
}

// After a failure entries are still taken; what they wait for never passes.
TEST(CopyEngines, WhatIsSubmittedAfterAFailureHangsNobody) {
  std::array<std::byte, 64> bytes{};
  const Copy one{bytes.data(), bytes.data() + 32, 32};
  for (const CopyTiming timing :
       {CopyTiming::kPrompt, CopyTiming::kLate, CopyTiming::kReordered,
        CopyTiming::kOnAwait}) {
    CopyEngines engines(timing, /*seed=*/1, nullptr);
    FaultInjection::instance().arm(FaultPoint::kCompletion, 1, false);
    ASSERT_FALSE(engines.submit(kCopyOutLine, {&one, 1}));
    const LinePosition failed = engines.last(kCopyOutLine);
    engines.await(failed);
    EXPECT_TRUE(engines.lost());
    ASSERT_FALSE(engines.submitWait(kCopyInLine, failed));
    ASSERT_FALSE(engines.submit(kCopyInLine, {&one, 1}));
    engines.await(engines.last(kCopyInLine));
  }
  FaultInjection::instance().disarmAll();
}

} // namespace
} // namespace chameleon::runtime
