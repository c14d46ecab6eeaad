// What is rare behind a runtime. (All else about copies: cpu_runtime_test.)
#include "backend/runtime/cpu/copy_engines.h"

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

// What it waits for might never pass, and nobody would wait for its memory.
TEST(CopyEngines, NothingIsTakenAfterAFailure) {
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
    LinePosition mark;
    for (const Error& error : {engines.submitWait(kCopyInLine, failed),
                               engines.submit(kCopyInLine, {&one, 1}),
                               engines.submitMark(kCopyOutLine, mark)}) {
      EXPECT_EQ(error.code(), ErrorCode::kDevice);
    }
    EXPECT_TRUE(engines.last(kCopyInLine).none());
  }
  FaultInjection::instance().disarmAll();
}

} // namespace
} // namespace chameleon::runtime
