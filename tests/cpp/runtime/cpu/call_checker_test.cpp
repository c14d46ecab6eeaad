// Planted mistakes are reported, each once, and correct use is not.
#include "backend/runtime/cpu/call_checker.h"

#include <cstring>
#include <gtest/gtest.h>
#include <memory>
#include <string>
#include <vector>

#include "backend/runtime/cpu/cpu_runtime.h"
#include "tests/cpp/support/host_slab.h"

namespace chameleon::runtime {
namespace {

constexpr std::size_t kUnit = kCpuCommitBytes;
constexpr std::size_t kBytes = 4096;

class CallChecks : public testing::Test {
 protected:
  void start(const char* adversary) {
    runtime_ = make_cpu_runtime(
        {parse_cpu_adversary(adversary).value(),
         [this](std::string_view text) { misuses_.emplace_back(text); }});
    device_ = runtime_->reserve(2 * kUnit).value();
    ASSERT_TRUE(runtime_->commit(device_, 2 * kUnit).ok());
    host_ = support::allocate_slab(*runtime_, 2 * kUnit).value();
    in_ = runtime_->copyInStream();
    out_ = runtime_->copyOutStream();
  }
  // A compute lag this long never ends by itself in a test this short; every
  // seed draws other lags, so kernels are repeated until one is pending.
  void startHeld() { start("copies=on_await,compute_delay=1000"); }
  void TearDown() override {
    EXPECT_EQ(misuses_, std::vector<std::string>{});
    if (!runtime_) return;
    // One after the other: copies that were planted to race shall not do it.
    synchronize(out_);
    synchronize(in_);
    support::free_slab(*runtime_, host_, 2 * kUnit);
    runtime_->unreserve(device_, 2 * kUnit);
    runtime_.reset();
  }

  // True: exactly one mistake since the last call, and its text has all parts.
  testing::AssertionResult reported(std::vector<std::string> parts) {
    const std::vector<std::string> seen = std::move(misuses_);
    misuses_.clear();
    if (seen.size() != 1) {
      auto result = testing::AssertionFailure() << seen.size() << " reports";
      for (const std::string& text : seen) result << "\n" << text;
      return result;
    }
    for (const std::string& part : parts) {
      if (seen[0].find(part) == std::string::npos) {
        return testing::AssertionFailure()
               << "no \"" << part << "\" in: " << seen[0];
      }
    }
    return testing::AssertionSuccess();
  }

  void kernel(Stream stream, std::vector<ByteRange> reads,
              std::vector<ByteRange> writes) {
    for (ByteRange range : writes) runtime_->revived(range);
    for (ByteRange range : writes) {
      std::memset(const_cast<std::byte*>(range.begin), ++value_, range.bytes);
    }
    runtime_->submitted(stream, reads, writes);
  }
  void copy(Stream stream, std::byte* to, const std::byte* from) {
    const Copy one{to, from, kBytes};
    ASSERT_TRUE(runtime_->copy(stream, {&one, 1}).ok());
  }
  Event record(Stream stream) { return runtime_->record(stream).value(); }
  void order(Stream earlier, Stream later) {
    const Event event = record(earlier);
    ASSERT_TRUE(runtime_->wait(later, event).ok());
    runtime_->destroy(event);
  }
  void synchronize(Stream stream) {
    const Event event = record(stream);
    ASSERT_TRUE(runtime_->synchronize(event).ok());
    runtime_->destroy(event);
  }
  ByteRange range(std::size_t slot) const {
    return {device_ + slot * kBytes, kBytes};
  }
  std::byte* slot(std::size_t slot) const { return device_ + slot * kBytes; }

  std::vector<std::string> misuses_;
  std::unique_ptr<DeviceRuntime> runtime_;
  std::byte* device_ = nullptr;
  std::byte* host_ = nullptr;
  Stream in_;
  Stream out_;
  int value_ = 0;
};

constexpr Stream kStream0{0};
constexpr Stream kStream1{1};

TEST_F(CallChecks, FetchIntoMemoryThatAKernelStillReads) {
  startHeld();
  kernel(kStream0, {range(0)}, {});
  copy(in_, slot(0), host_); // the wait for the kernel is missing
  EXPECT_TRUE(reported({"copy-in 1 writes", "kernel 1 of compute stream 0",
                        "may still read", "no wait orders them"}));
  synchronize(in_);
  synchronize(kStream0); // the copy did change the operand
  misuses_.clear();
}

TEST_F(CallChecks, FetchAfterTheKernelIsFine) {
  startHeld();
  kernel(kStream0, {range(0)}, {});
  order(kStream0, in_);
  copy(in_, slot(0), host_);
  order(in_, kStream0);
  kernel(kStream0, {range(0)}, {range(1)});
  synchronize(kStream0);
}

TEST_F(CallChecks, WriteBackOfBytesThatAKernelStillWrites) {
  startHeld();
  kernel(kStream0, {}, {range(0)});
  copy(out_, host_, slot(0));
  EXPECT_TRUE(reported({"copy-out 1 reads", "may still write"}));
  synchronize(out_);
}

TEST_F(CallChecks, WriteBackOfBytesThatAKernelReadsIsFine) {
  startHeld();
  kernel(kStream0, {range(0)}, {});
  copy(out_, host_, slot(0));
  synchronize(out_);
}

TEST_F(CallChecks, KernelOnBytesThatAreBeingFetched) {
  startHeld();
  copy(in_, slot(0), host_);
  kernel(kStream0, {range(0)}, {range(1)});
  EXPECT_TRUE(reported(
      {"kernel 1 of compute stream 0 reads", "copy-in 1 may still write"}));
  synchronize(in_);
  misuses_.clear(); // the late copy may change the operand: reported as well
}

TEST_F(CallChecks, KernelOverwritesBytesThatAreBeingWrittenBack) {
  startHeld();
  copy(out_, host_, slot(0));
  kernel(kStream0, {}, {range(0)});
  EXPECT_TRUE(reported({"writes", "copy-out 1 may still read"}));
  order(out_, kStream0);
  kernel(kStream0, {}, {range(0)});
}

TEST_F(CallChecks, FetchIntoMemoryThatIsStillBeingWrittenBack) {
  startHeld();
  copy(out_, host_, slot(0));
  copy(in_, slot(0), host_ + kBytes);
  EXPECT_TRUE(reported({"copy-in 1 writes", "copy-out 1 may still read"}));
}

TEST_F(CallChecks, FetchOfAHostCopyThatIsNotThereYet) {
  startHeld();
  copy(out_, host_, slot(0));
  copy(in_, slot(1), host_);
  EXPECT_TRUE(reported({"copy-in 1 reads", "copy-out 1 may still write"}));
}

TEST_F(CallChecks, OrderMayGoThroughOtherStreams) {
  startHeld();
  kernel(kStream0, {range(0)}, {});
  order(kStream0, out_);
  copy(out_, host_, slot(0));
  order(out_, in_); // and so after the kernel
  copy(in_, slot(0), host_ + kBytes);
  EXPECT_TRUE(misuses_.empty());
  synchronize(in_);
}

TEST_F(CallChecks, AWaitForTooEarlyAnEventIsNotEnough) {
  startHeld();
  copy(out_, host_ + 8 * kBytes, slot(5));
  order(out_, in_);
  copy(out_, host_, slot(0));
  copy(in_, slot(0), host_ + kBytes);
  EXPECT_TRUE(reported({"copy-in 2 writes", "copy-out 2 may still read"}));
}

TEST_F(CallChecks, TwoComputeStreams) {
  startHeld();
  kernel(kStream0, {}, {range(0)});
  kernel(kStream1, {range(0)}, {});
  EXPECT_TRUE(reported({"kernel 1 of compute stream 1 reads",
                        "kernel 1 of compute stream 0 may still write"}));
  order(kStream0, kStream1);
  kernel(kStream1, {range(0)}, {});
  kernel(kStream1, {range(0)}, {range(1)}); // one stream is in order
}

// Early reuse: memory that a kernel of stream 0 uses goes to stream 1.
TEST_F(CallChecks, ReuseOnAnotherStreamWithoutAWait) {
  startHeld();
  kernel(kStream0, {range(0)}, {});
  runtime_->discarded(range(0));
  kernel(kStream1, {}, {range(0)});
  EXPECT_TRUE(reported({"kernel 1 of compute stream 1 writes",
                        "compute stream 0 may still read"}));
}

TEST_F(CallChecks, ReuseOnTheSameStreamIsFine) {
  startHeld();
  for (int i = 0; i < 20; ++i) {
    kernel(kStream0, {range(0)}, {range(1)});
    runtime_->discarded(range(0));
    kernel(kStream0, {range(1)}, {range(0)});
  }
  synchronize(kStream0);
}

TEST_F(CallChecks, OperandChangedBehindTheRuntimesBack) {
  startHeld();
  kernel(kStream0, {range(0)}, {});
  slot(0)[17] ^= std::byte{1};
  synchronize(kStream0);
  EXPECT_TRUE(reported({"operand", "kernel 1 of compute stream 0",
                        "changed before its stream had passed it"}));
}

TEST_F(CallChecks, ChangeIsSeenAtRevivalToo) {
  startHeld();
  kernel(kStream0, {range(0)}, {});
  slot(0)[kBytes - 1] ^= std::byte{1};
  runtime_->revived({slot(0), 512});
  EXPECT_TRUE(reported({"operand"}));
  std::memset(slot(0), 3, 512);
  synchronize(kStream0);
}

TEST_F(CallChecks, MovesInsideTheDeviceAreChecked) {
  startHeld();
  copy(in_, slot(0), host_);
  copy(kStream0, slot(1), slot(0));
  EXPECT_TRUE(reported({"reads", "copy-in 1 may still write"}));
  order(in_, kStream0);
  copy(kStream0, slot(0) - 0, slot(1));
  copy(out_, host_, slot(0));
  EXPECT_TRUE(reported({"copy-out 1 reads", "may still write"}));
}

TEST_F(CallChecks, UseOfDiscardedBytes) {
  start("copies=on_await");
  runtime_->discarded(range(0));
  kernel(kStream0, {{slot(0) + 100, 8}}, {});
  EXPECT_TRUE(reported({"kernel 1", "reads", "discarded and not revived"}));
  copy(out_, host_, slot(0));
  EXPECT_TRUE(reported({"copy-out 1 reads", "discarded"}));
  copy(in_, slot(0), host_ + kBytes);
  EXPECT_EQ(misuses_.size(), 2u); // and unordered with the copy before
  misuses_.clear();
  runtime_->revived(range(0));
  kernel(kStream1, {range(1)}, {});
}

TEST_F(CallChecks, MemoryGivenBackTooEarly) {
  startHeld();
  copy(out_, host_, slot(0));
  ASSERT_TRUE(runtime_->decommit(device_, kUnit).ok());
  EXPECT_TRUE(reported({"decommit", "which submitted work still uses"}));
  ASSERT_TRUE(runtime_->commit(device_, kUnit).ok());
  support::free_slab(*runtime_,
                     support::allocate_slab(*runtime_, kBytes).value(), kBytes);
}

TEST_F(CallChecks, RangesOfAnEngineCopyMayNotOverlap) {
  // Not through a runtime, which would run the copy.
  CallChecker checker(
      {}, [this](std::string_view text) { misuses_.emplace_back(text); });
  std::byte bytes[128] = {};
  const Copy one{bytes + 8, bytes, 64};
  checker.copySubmitted({kCopyInLine, 1}, {&one, 1});
  EXPECT_TRUE(reported({"copy-in 1", "may overlap on a compute stream only"}));
  checker.finished({kCopyInLine, 1});
}

TEST_F(CallChecks, EventsAreUsedWhileTheyLive) {
  startHeld();
  copy(out_, host_, slot(0));
  const Event event = record(out_);
  ASSERT_FALSE(event.complete());
  runtime_->destroy(event);
  EXPECT_TRUE(misuses_.empty());
  ASSERT_TRUE(runtime_->wait(in_, event).ok());
  EXPECT_TRUE(reported({"wait", "after it was destroyed"}));
  runtime_->destroy(event);
  EXPECT_TRUE(reported({"destroyed twice"}));
  const Event leaked = record(out_);
  ASSERT_FALSE(leaked.complete());
  runtime_.reset();
  EXPECT_TRUE(reported({"1 events were never destroyed", "copy-out"}));
}

TEST_F(CallChecks, KernelsPassLateButInOrder) {
  start("compute_delay=8");
  unsigned late = 0;
  std::vector<Event> events;
  for (int i = 0; i < 200; ++i) {
    kernel(kStream0, {range(0)}, {});
    events.push_back(record(kStream0));
    if (!runtime_->query(events.back())) ++late;
  }
  EXPECT_GT(late, 50u);
  // No later than 8 kernels.
  for (int i = 0; i < 192; ++i) EXPECT_TRUE(runtime_->query(events[i])) << i;
  ASSERT_TRUE(runtime_->synchronize(events.back()).ok());
  EXPECT_TRUE(runtime_->query(events.back()));
  for (Event event : events) runtime_->destroy(event);
}

TEST_F(CallChecks, OnAwaitRunsOnlyWhatIsNeeded) {
  start("copies=on_await");
  std::memset(slot(0), 1, kBytes);
  std::memset(slot(1), 1, kBytes);
  std::memset(host_, 0, 4 * kBytes);
  copy(out_, host_, slot(0));
  const Event first = record(out_);
  copy(out_, host_ + kBytes, slot(1));
  const Event second = record(out_);
  ASSERT_TRUE(runtime_->wait(in_, first).ok());
  copy(in_, slot(2), host_);
  const Event third = record(in_);
  EXPECT_FALSE(runtime_->query(first));
  ASSERT_TRUE(runtime_->synchronize(third).ok()); // needs first, not second
  EXPECT_TRUE(runtime_->query(first));
  EXPECT_FALSE(runtime_->query(second));
  EXPECT_EQ(slot(2)[0], std::byte{1});
  EXPECT_EQ(host_[kBytes], std::byte{0});
  for (Event event : {first, second, third}) runtime_->destroy(event);
}

TEST_F(CallChecks, ReorderedEnginesOvertakeEachOther) {
  unsigned overtakes = 0;
  constexpr unsigned kSeeds = 30;
  for (unsigned seed = 0; seed < kSeeds; ++seed) {
    start(("copies=reordered,seed=" + std::to_string(seed)).c_str());
    copy(out_, host_, device_);
    const Event out = runtime_->recordTimed(out_).value();
    copy(in_, device_ + kUnit, host_ + kUnit);
    const Event in = runtime_->recordTimed(in_).value();
    ASSERT_TRUE(runtime_->synchronize(in).ok());
    ASSERT_TRUE(runtime_->synchronize(out).ok());
    if (runtime_->momentOf(in)->time_ns < runtime_->momentOf(out)->time_ns) {
      ++overtakes;
    }
    runtime_->destroy(out);
    runtime_->destroy(in);
    if (seed + 1 < kSeeds) TearDown();
  }
  EXPECT_GT(overtakes, 0u);
  EXPECT_LT(overtakes, kSeeds);
}

void use_discarded_bytes() {
  CallChecker checker({}, {});
  const std::byte bytes[8] = {};
  const ByteRange range{bytes, sizeof bytes};
  checker.discarded(range);
  checker.submitted(kStream0, {&range, 1}, {});
}

TEST(CallCheckerDeathTest, MisuseAbortsByDefault) {
  EXPECT_DEATH(
      use_discarded_bytes(),
      "misuse of the device runtime: kernel 1 of compute stream 0 reads");
}

// ---- poison ---------------------------------------------------------------

class Poisoned : public CallChecks {
 protected:
  void SetUp() override {
    start("copies=on_await,compute_delay=1000,poison=1");
  }
  static std::uint16_t halfAt(const std::byte* at) {
    std::uint16_t half = 0;
    std::memcpy(&half, at, sizeof half);
    return half;
  }
};

TEST_F(Poisoned, DiscardedMemoryIsNaNWhenItComesBack) {
  std::memset(slot(0), 1, kBytes);
  runtime_->discarded(range(0));
  runtime_->revived(range(0));
  float number = 0;
  std::memcpy(&number, slot(0) + 12, sizeof number);
  EXPECT_NE(number, number);
  double large = 0;
  std::memcpy(&large, slot(0) + 16, sizeof large);
  EXPECT_NE(large, large);
  EXPECT_EQ(halfAt(slot(0)), kPoisonPattern);
}

TEST_F(Poisoned, DiscardedPagesAreOutOfReach) {
  const auto read = [](const std::byte* at) {
    return std::to_integer<int>(*static_cast<const volatile std::byte*>(at));
  };
  std::memset(device_, 1, 8 * kBytes);
  runtime_->discarded({slot(1) - 512, kBytes + 1024});
  EXPECT_EQ(read(slot(1) - 513), 1); // neighbours keep their bytes
  EXPECT_EQ(read(slot(2) + 512), 1);
  EXPECT_DEATH(read(slot(1)), "");
  EXPECT_DEATH(read(slot(2) - 1), "");
  // The page that two discarded ranges share is protected, too.
  runtime_->discarded({slot(0), kBytes - 512});
  EXPECT_DEATH(read(slot(0)), "");
  // A part that comes back brings its pages with it, and only those.
  runtime_->revived({slot(1) + 1024, 512});
  EXPECT_EQ(halfAt(slot(1) + 1024), kPoisonPattern);
  EXPECT_DEATH(read(slot(0)), "");
}

TEST_F(Poisoned, WorkInFlightIsSpared) {
  std::memset(slot(0), 1, kBytes);
  std::memset(slot(1), 2, kBytes);
  copy(out_, host_, slot(0));
  kernel(kStream0, {range(1)}, {});
  runtime_->discarded(range(0));
  runtime_->discarded(range(1));
  EXPECT_EQ(slot(0)[0], std::byte{1});
  EXPECT_EQ(slot(1)[0], std::byte{2});
  synchronize(out_);
  EXPECT_EQ(host_[kBytes - 1], std::byte{1});
  synchronize(kStream0); // verifies the operand first
  runtime_->revived(range(0));
  runtime_->revived(range(1));
  EXPECT_EQ(halfAt(slot(0)), kPoisonPattern);
  EXPECT_EQ(halfAt(slot(1)), kPoisonPattern);
}

TEST_F(Poisoned, RevivedInBetweenStaysAsItIs) {
  std::memset(slot(0), 1, kBytes);
  kernel(kStream0, {range(0)}, {});
  runtime_->discarded(range(0));
  runtime_->revived({slot(0) + 512, 512});
  std::memset(slot(0) + 512, 7, 512);
  synchronize(kStream0);
  EXPECT_EQ(slot(0)[512], std::byte{7});
  EXPECT_EQ(slot(0)[1023], std::byte{7});
  EXPECT_EQ(halfAt(slot(0) + 1024), kPoisonPattern);
  EXPECT_EQ(halfAt(slot(0)), kPoisonPattern);
}

TEST_F(Poisoned, FreshMemoryHoldsNoValueEither) {
  EXPECT_EQ(halfAt(slot(9)), kPoisonPattern);
}

TEST_F(Poisoned, MemoryThatGoesAwayTakesItsPoisonWithIt) {
  runtime_->discarded({device_, kUnit});
  ASSERT_TRUE(runtime_->decommit(device_, kUnit).ok());
  ASSERT_TRUE(runtime_->commit(device_, kUnit).ok());
  std::memset(device_, 1, kUnit);
  kernel(kStream0, {range(0)}, {});
}

} // namespace
} // namespace chameleon::runtime
