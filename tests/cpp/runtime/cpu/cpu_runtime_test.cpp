// What every caller may rely on, in every mode of the cpu runtime.
#include "backend/runtime/cpu/cpu_runtime.h"

#include <cstring>
#include <gtest/gtest.h>
#include <memory>
#include <random>
#include <string>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include "backend/runtime/fault_injection.h"
#include "tests/cpp/support/host_slab.h"

namespace chameleon::runtime {
namespace {

constexpr std::size_t kUnit = kCpuCommitBytes;

std::byte byte_of(int value) { return static_cast<std::byte>(value); }

class CpuRuntime : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    runtime_ = make_cpu_runtime(
        {parse_cpu_adversary(GetParam()).value(),
         [](std::string_view sentence) { ADD_FAILURE() << sentence; }});
    device_ = runtime_->reserve(4 * kUnit).value();
    ASSERT_TRUE(runtime_->commit(device_, 2 * kUnit).ok());
    host_ = support::allocate_slab(*runtime_, kUnit).value();
    in_ = runtime_->copyInStream();
    out_ = runtime_->copyOutStream();
  }
  void TearDown() override {
    FaultInjection::instance().disarmAll();
    if (!runtime_) return;
    drain();
    support::free_slab(*runtime_, host_, kUnit);
    runtime_->unreserve(device_, 4 * kUnit);
  }

  void drain() {
    for (Stream stream : {in_, out_, kDefaultComputeStream}) {
      const Event event = record(stream);
      EXPECT_TRUE(runtime_->synchronize(event).ok());
      runtime_->destroy(event);
    }
  }
  Event record(Stream stream) {
    Result<Event> event = runtime_->record(stream);
    EXPECT_TRUE(event.ok());
    return *event;
  }
  void copy(Stream stream, std::byte* to, const std::byte* from,
            std::size_t bytes) {
    const Copy one{to, from, bytes};
    EXPECT_TRUE(runtime_->copy(stream, {&one, 1}).ok());
  }
  // `later` runs its next work after all that `earlier` has so far.
  void order(Stream earlier, Stream later) {
    const Event event = record(earlier);
    EXPECT_TRUE(runtime_->wait(later, event).ok());
    runtime_->destroy(event); // a wait that was submitted still holds
  }

  std::unique_ptr<DeviceRuntime> runtime_;
  std::byte* device_ = nullptr;
  std::byte* host_ = nullptr;
  Stream in_;
  Stream out_;
};

INSTANTIATE_TEST_SUITE_P(
    Modes, CpuRuntime,
    testing::Values("", "copies=late", "copies=reordered", "copies=on_await",
                    "compute_delay=8", "poison=1",
                    "seed=7,copies=reordered,compute_delay=8,poison=1",
                    "seed=8,copies=on_await,compute_delay=8,poison=1"),
    [](const auto& test) {
      std::string name = *test.param != 0 ? test.param : "prompt";
      for (char& c : name) {
        if (!std::isalnum(c)) c = '_';
      }
      return name;
    });

TEST_P(CpuRuntime, MemoryIsZeroOrPoisonAndWritable) {
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(device_) % kUnit, 0u);
  EXPECT_EQ(runtime_->commitGranularity(), kUnit);
  std::memset(device_, 1, 2 * kUnit);
  ASSERT_TRUE(runtime_->decommit(device_, kUnit).ok());
  EXPECT_EQ(device_[kUnit], byte_of(1));
  ASSERT_TRUE(runtime_->commit(device_, kUnit).ok());
  EXPECT_NE(device_[0], byte_of(1)); // the old bytes are gone
}

TEST_P(CpuRuntime, RoundTripThroughTheHost) {
  for (int i = 0; i < 1000; ++i) device_[i] = byte_of(i);
  copy(out_, host_, device_, 1000);
  order(out_, in_);
  copy(in_, device_ + kUnit, host_, 1000);
  order(in_, kDefaultComputeStream);
  EXPECT_EQ(std::memcmp(device_, device_ + kUnit, 1000), 0);
}

TEST_P(CpuRuntime, MovesOnComputeMayOverlap) {
  for (int i = 0; i < 1000; ++i) device_[i] = byte_of(i);
  copy(kDefaultComputeStream, device_ + 100, device_, 1000);
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(device_[100 + i], byte_of(i));
}

TEST_P(CpuRuntime, CopiesOfOneStreamRunInOrder) {
  std::memset(host_, 0, 4096);
  for (int i = 0; i < 200; ++i) { // longer than any mode holds back
    std::memset(device_ + i, i, 1);
    copy(out_, host_, device_ + i, 1);
  }
  const Event event = record(out_);
  ASSERT_TRUE(runtime_->synchronize(event).ok());
  EXPECT_TRUE(runtime_->query(event));
  runtime_->destroy(event);
  EXPECT_EQ(host_[0], byte_of(199));
}

TEST_P(CpuRuntime, ACopyThatHasNotBegunIsTakenBack) {
  std::memset(host_, 1, 300);
  std::memset(host_ + 1000, 2, 300);
  const Copy batch[] = {{host_ + 1000, device_, 100},
                        {host_ + 1100, device_ + 100, 100}};
  std::memset(device_, 3, 200);
  ASSERT_TRUE(runtime_->copy(out_, batch).ok());
  const bool taken = runtime_->cancel(out_, host_ + 1100);
  EXPECT_FALSE(runtime_->cancel(out_, host_ + 1200)); // nobody copies there
  EXPECT_FALSE(runtime_->cancel(in_, host_ + 1000));
  // What a copy would have read is free for others.
  if (taken) copy(in_, device_ + 100, host_, 100);
  drain();
  EXPECT_EQ(host_[1000], byte_of(3));
  EXPECT_EQ(host_[1100], byte_of(taken ? 2 : 3));
  EXPECT_EQ(device_[100], byte_of(taken ? 1 : 3));
  EXPECT_FALSE(runtime_->cancel(out_, host_ + 1000)); // is done
  if (std::string_view(GetParam()).find("on_await") != std::string_view::npos) {
    EXPECT_TRUE(taken);
  }
}

TEST_P(CpuRuntime, LongQueuesMakeProgressUnawaited) {
  for (int i = 0; i < 200; ++i) copy(out_, host_ + i, device_ + i, 1);
  const Event first = record(out_);
  if (first.complete()) return; // prompt enough
  for (int i = 0; i < 200; ++i) copy(out_, host_ + i, device_ + i, 1);
  for (int i = 0; !runtime_->query(first) && i < 5000; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_TRUE(runtime_->query(first));
  runtime_->destroy(first);
}

TEST_P(CpuRuntime, IdleStreamsRecordTheCompleteEvent) {
  drain();
  EXPECT_TRUE(record(in_).complete());
  EXPECT_TRUE(record(kDefaultComputeStream).complete());
  EXPECT_TRUE(runtime_->query(Event{}));
  EXPECT_TRUE(runtime_->synchronize(Event{}).ok());
  EXPECT_TRUE(runtime_->wait(in_, Event{}).ok());
  runtime_->destroy(Event{});
}

TEST_P(CpuRuntime, AWaitCountsAsWorkOfItsStream) {
  // in waits for out; an event recorded on in after that covers out's copy.
  std::memset(device_, 9, 64);
  copy(out_, host_, device_, 64);
  order(out_, in_);
  const Event event = record(in_);
  ASSERT_TRUE(runtime_->synchronize(event).ok());
  runtime_->destroy(event);
  EXPECT_EQ(host_[63], byte_of(9));
}

TEST_P(CpuRuntime, DestructorRunsWhatIsLeft) {
  std::vector<std::byte> target(4096);
  std::memset(device_, 5, 4096);
  const auto other =
      make_cpu_runtime({parse_cpu_adversary(GetParam()).value(), {}});
  std::byte* slab = support::allocate_slab(*other, 4096).value();
  std::memset(slab, 6, 4096);
  const Copy one{target.data(), slab, 4096};
  ASSERT_TRUE(other->copy(other->copyOutStream(), {&one, 1}).ok());
  const_cast<std::unique_ptr<DeviceRuntime>&>(other).reset();
  EXPECT_EQ(target[4095], byte_of(6));
}

// Kernels (random updates of slots), copies both ways and moves, each ordered
// after what it depends on and nothing else, against the same steps in order.
TEST_P(CpuRuntime, RandomWorkAgreesWithAModel) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  constexpr std::size_t kSlots = 6;
  constexpr std::size_t kBytes = 3000;
  constexpr std::size_t kStride = 4096 + 512;
  struct Slot {
    std::byte* bytes;
    std::vector<std::byte> model;
    std::vector<Event> readers;
    Event writer;
  };
  std::vector<Slot> slots;
  for (std::size_t i = 0; i < 2 * kSlots; ++i) {
    std::byte* const base = i < kSlots ? device_ : host_;
    slots.push_back({base + i % kSlots * kStride, {}, {}, {}});
    std::memset(slots.back().bytes, static_cast<int>(i), kBytes);
    slots.back().model.assign(kBytes, byte_of(static_cast<int>(i)));
  }
  const auto read = [&](Slot& slot, Stream stream) {
    ASSERT_TRUE(runtime_->wait(stream, slot.writer).ok());
  };
  const auto write = [&](Slot& slot, Stream stream) {
    ASSERT_TRUE(runtime_->wait(stream, slot.writer).ok());
    for (Event event : slot.readers) {
      ASSERT_TRUE(runtime_->wait(stream, event).ok());
      runtime_->destroy(event);
    }
    slot.readers.clear();
    runtime_->destroy(slot.writer);
    slot.writer = Event{};
  };
  for (int step = 0; step < 400; ++step) {
    Slot& from = slots[random() % kSlots];
    Slot& to = slots[random() % kSlots];
    Slot& host = slots[kSlots + random() % kSlots];
    const Stream compute{random() % 2};
    switch (random() % 4) {
      case 0: { // a kernel: to += from
        if (&from == &to) break;
        read(from, compute);
        write(to, compute);
        const ByteRange source{from.bytes, kBytes};
        const ByteRange target{to.bytes, kBytes};
        runtime_->revived(target);
        for (std::size_t i = 0; i < kBytes; ++i) {
          const auto sum = [](std::byte a, std::byte b) {
            return byte_of(std::to_integer<int>(a) + std::to_integer<int>(b));
          };
          to.bytes[i] = sum(to.bytes[i], from.bytes[i]);
          to.model[i] = sum(to.model[i], from.model[i]);
        }
        runtime_->submitted(compute, {&source, 1}, {&target, 1});
        from.readers.push_back(record(compute));
        to.writer = record(compute);
        break;
      }
      case 1: // write back
        read(from, out_);
        write(host, out_);
        copy(out_, host.bytes, from.bytes, kBytes);
        host.model = from.model;
        from.readers.push_back(record(out_));
        host.writer = record(out_);
        break;
      case 2: // fetch
        read(host, in_);
        write(to, in_);
        copy(in_, to.bytes, host.bytes, kBytes);
        to.model = host.model;
        host.readers.push_back(record(in_));
        to.writer = record(in_);
        break;
      case 3: // move, and freed memory in between
        if (&from == &to) break;
        write(to, compute);
        runtime_->discarded({to.bytes, kBytes});
        runtime_->revived({to.bytes, kBytes});
        read(from, compute);
        copy(compute, to.bytes, from.bytes, kBytes);
        to.model = from.model;
        from.readers.push_back(record(compute));
        to.writer = record(compute);
        break;
    }
  }
  for (Slot& slot : slots) {
    ASSERT_TRUE(runtime_->synchronize(slot.writer).ok());
    EXPECT_EQ(std::memcmp(slot.bytes, slot.model.data(), kBytes), 0);
    runtime_->destroy(slot.writer);
    for (Event event : slot.readers) runtime_->destroy(event);
  }
}

TEST_P(CpuRuntime, Threads) {
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < 4; ++t) {
    threads.emplace_back([this, t] {
      std::byte* const here = device_ + t * 8192;
      std::byte* const there = host_ + t * 8192;
      for (int i = 0; i < 50; ++i) {
        const ByteRange range{here, 512};
        runtime_->revived(range);
        std::memset(here, i, 512);
        runtime_->submitted({t}, {}, {&range, 1});
        order({t}, out_);
        copy(out_, there, here, 512);
        order(out_, in_);
        copy(in_, here + 4096, there, 512);
        const Event event = record(in_);
        static_cast<void>(runtime_->query(event));
        EXPECT_TRUE(runtime_->synchronize(event).ok());
        runtime_->destroy(event);
        EXPECT_EQ(here[4096 + 511], byte_of(i));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_P(CpuRuntime, InjectedFailuresHaveNoEffect) {
  FaultInjection& faults = FaultInjection::instance();
  const auto code = [](const Error& error) {
    EXPECT_FALSE(error.ok());
    return error.code();
  };
  std::memset(device_, 1, 64);
  std::memset(host_, 2, 64);

  faults.arm(FaultPoint::kReserve, 1, false);
  EXPECT_EQ(code(runtime_->reserve(kUnit).error()), ErrorCode::kUnavailable);
  faults.arm(FaultPoint::kCommit, 1, true);
  EXPECT_EQ(code(runtime_->commit(device_ + 2 * kUnit, kUnit)),
            ErrorCode::kOutOfDeviceMemory);
  EXPECT_EQ(code(runtime_->decommit(device_, kUnit)),
            ErrorCode::kOutOfDeviceMemory);
  EXPECT_EQ(device_[0], byte_of(1));
  faults.arm(FaultPoint::kAllocateHost, 1, false);
  EXPECT_EQ(code(support::allocate_slab(*runtime_, kUnit).error()),
            ErrorCode::kOutOfHostMemory);
  const Copy one{host_, device_, 64};
  for (Stream stream : {out_, kDefaultComputeStream}) {
    faults.arm(FaultPoint::kCopy, 1, false);
    EXPECT_EQ(code(runtime_->copy(stream, {&one, 1})), ErrorCode::kDevice);
    EXPECT_EQ(host_[0], byte_of(2));
  }
  ASSERT_TRUE(runtime_->copy(out_, {&one, 1}).ok());
  const Event event = record(out_);
  faults.arm(FaultPoint::kEvent, 1, true);
  EXPECT_EQ(code(runtime_->record(out_).error()), ErrorCode::kDevice);
  EXPECT_EQ(code(runtime_->wait(in_, event)), ErrorCode::kDevice);
  EXPECT_EQ(code(runtime_->synchronize(event)), ErrorCode::kDevice);
  faults.disarmAll();
  ASSERT_TRUE(runtime_->synchronize(event).ok());
  EXPECT_EQ(host_[0], byte_of(1));
  runtime_->destroy(event);
}

TEST_P(CpuRuntime, AForkedChildGetsOneClearError) {
  copy(out_, host_, device_, 64);
  drain(); // threads exist; their locks are free
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const Copy one{host_, device_, 64};
    const Error copied = runtime_->copy(runtime_->copyOutStream(), {&one, 1});
    const Error recorded = runtime_->record(in_).takeError();
    const Error committed = runtime_->commit(device_, kUnit);
    runtime_->destroy(Event{1});
    runtime_->discarded({device_, 64});
    const bool clear =
        !copied.ok() && copied.code() == ErrorCode::kUnavailable &&
        copied.message().find("fork()") != std::string::npos &&
        !recorded.ok() && !committed.ok() && !runtime_->query(Event{~0ull});
    // A runtime made in the child is its own.
    const auto own = make_cpu_runtime();
    const bool works = own->reserve(kUnit).ok();
    _exit(clear && works ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

TEST(CpuRuntimeMemory, IsWhatTheMachineHas) {
  const auto runtime = make_cpu_runtime();
  EXPECT_EQ(runtime->name(), "cpu");
  EXPECT_FALSE(runtime->checksCallers());
  EXPECT_GT(runtime->deviceMemory().free_bytes, kUnit);
  EXPECT_EQ(runtime->hostMemory().total_bytes,
            runtime->deviceMemory().total_bytes);
  const std::int64_t before = runtime->now_ns();
  EXPECT_GE(runtime->now_ns(), before);
}

TEST(CpuRuntimeMemory, ReservesFarMoreThanThereIs) {
#ifdef __SANITIZE_THREAD__
  constexpr std::size_t kBytes = std::size_t{1} << 37; // its map has no more
#else
  constexpr std::size_t kBytes = (std::size_t{2} << 40) + 3 * 4096;
#endif
  const auto runtime = make_cpu_runtime();
  Result<std::byte*> range = runtime->reserve(kBytes);
  ASSERT_TRUE(range.ok()) << range.error().message();
  std::byte* const middle = *range + (std::size_t{1} << 36);
  ASSERT_TRUE(runtime->commit(middle, kUnit).ok());
  middle[0] = byte_of(1);
  runtime->unreserve(*range, kBytes);
  EXPECT_FALSE(runtime->reserve(std::size_t{1} << 60).ok());
}

TEST(CpuRuntimeDeathTest, OnlyCommittedMemoryIsReadable) {
  const auto runtime = make_cpu_runtime();
  std::byte* const range = runtime->reserve(4 * kUnit).value();
  ASSERT_TRUE(runtime->commit(range + kUnit, kUnit).ok());
  const auto read = [](const std::byte* at) {
    return std::to_integer<int>(*static_cast<const volatile std::byte*>(at));
  };
  EXPECT_EQ(read(range + kUnit), 0);
  EXPECT_DEATH(read(range), "");
  EXPECT_DEATH(read(range + kUnit - 1), "");
  EXPECT_DEATH(read(range + 2 * kUnit), "");
  ASSERT_TRUE(runtime->decommit(range + kUnit, kUnit).ok());
  EXPECT_DEATH(read(range + kUnit), "");
  // A death test is a forked child, which needs a runtime of its own.
  EXPECT_DEATH(
      static_cast<void>(make_cpu_runtime()->commit(range + 4096, kUnit)),
      "unaligned");
  runtime->unreserve(range, 4 * kUnit);
}

// Owners leak the runtime, so its threads may be at work when the process
// ends.
void exit_with_work_in_flight() {
  DeviceRuntime* const leaked = make_cpu_runtime().release();
  std::byte* const host = support::allocate_slab(*leaked, 8 * kUnit).value();
  for (int i = 0; i < 100; ++i) {
    const Copy one{host, host + 4 * kUnit, 4 * kUnit};
    static_cast<void>(leaked->copy(leaked->copyInStream(), {&one, 1}));
  }
  std::exit(7);
}

TEST(CpuRuntimeDeathTest, TheProcessMayEndAtAnyTime) {
  EXPECT_EXIT(exit_with_work_in_flight(), testing::ExitedWithCode(7), "");
}

} // namespace
} // namespace chameleon::runtime
