#include "memory/streams/stream_positions.h"

#include <cstring>
#include <gtest/gtest.h>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "backend/runtime/cpu/cpu_runtime.h"
#include "tests/cpp/support/host_slab.h"
#include "tests/cpp/support/refusing_runtime.h"

namespace chameleon::memory {
namespace {

using runtime::ByteRange;
using runtime::Copy;
using runtime::Error;
using runtime::ErrorCode;
using runtime::Event;
using runtime::Result;
using runtime::Stream;

// Streams and events by hand: an event completes when the test says so.
class ManualRuntime final : public support::RefusingRuntime {
 public:
  struct Made {
    Stream stream;
    bool complete = false;
    bool alive = true;
  };
  std::vector<Made> events;                            // id - 1
  std::vector<std::pair<Stream, std::uint64_t>> waits; // stream, event id
  std::size_t queries = 0;
  bool idle = false;  // record() gives the complete event
  bool fails = false; // record(), wait() and synchronize() fail
  bool lost = false;  // drain() says so

  std::size_t alive() const {
    std::size_t count = 0;
    for (const Made& event : events) count += event.alive;
    return count;
  }
  void completeAll() {
    for (Made& event : events) event.complete = true;
  }

  Result<Event> record(Stream stream) override {
    if (fails) return refusal();
    if (idle) return Event{};
    events.push_back({stream});
    return Event{events.size()};
  }
  Error wait(Stream stream, Event event) override {
    if (fails) return refusal();
    EXPECT_TRUE(events.at(event.id - 1).alive);
    waits.emplace_back(stream, event.id);
    return {};
  }
  bool query(Event event) noexcept override {
    ++queries;
    EXPECT_TRUE(events.at(event.id - 1).alive);
    return events.at(event.id - 1).complete;
  }
  Error synchronize(Event event) override {
    if (fails) return refusal();
    EXPECT_TRUE(events.at(event.id - 1).alive);
    events.at(event.id - 1).complete = true;
    return {};
  }
  void destroy(Event event) noexcept override {
    EXPECT_TRUE(std::exchange(events.at(event.id - 1).alive, false));
  }
  bool drain(Stream stream) noexcept override {
    if (lost) return false;
    for (Made& event : events) {
      if (event.stream == stream) event.complete = true;
    }
    return true;
  }
};

class StreamPositionsTest : public testing::Test {
 protected:
  void TearDown() override {
    streams_.reset();
    EXPECT_EQ(runtime_.alive(), 0u);
  }
  Position advance(StreamIndex index, int times = 1) {
    Position position;
    while (times-- > 0) position = streams_->advance(index);
    return position;
  }
  ManualRuntime runtime_;
  std::unique_ptr<StreamPositions> streams_ =
      std::make_unique<StreamPositions>(runtime_);
  const StreamIndex compute_ = streams_->indexOf(Stream{0});
  const StreamIndex second_ = streams_->indexOf(Stream{77});
};

TEST_F(StreamPositionsTest, Indices) {
  EXPECT_EQ(compute_, kFirstCompute);
  EXPECT_EQ(second_, kFirstCompute + 1);
  EXPECT_EQ(streams_->indexOf(Stream{0}), compute_);
  EXPECT_EQ(streams_->indexOf(Stream{77}), second_);
  EXPECT_EQ(streams_->indexOf(runtime_.copyInStream()), kCopyIn);
  EXPECT_EQ(streams_->indexOf(runtime_.copyOutStream()), kCopyOut);
  EXPECT_EQ(streams_->indexOf(runtime_.moveStream()), kMoves);
  EXPECT_EQ(streams_->stream(second_), Stream{77});
  EXPECT_EQ(streams_->stream(kCopyIn), runtime_.copyInStream());
}

TEST_F(StreamPositionsTest, AdvanceCostsNoEvent) {
  const Position first = advance(compute_);
  const Position last = advance(compute_, 1000);
  EXPECT_EQ(first.count(), 1u);
  EXPECT_EQ(last.count(), 1001u);
  EXPECT_FALSE(streams_->passed(first));
  EXPECT_TRUE(streams_->passed(Position{}));
  EXPECT_TRUE(streams_->passed(Fence{}));
  EXPECT_TRUE(runtime_.events.empty());
  EXPECT_EQ(runtime_.queries, 0u);
}

TEST_F(StreamPositionsTest, OneEventCoversManyPositions) {
  const Position early = advance(compute_);
  const Position late = advance(compute_, 9);
  ASSERT_TRUE(streams_->wait(kCopyIn, early).ok());
  ASSERT_EQ(runtime_.events.size(), 1u);
  // The wait went as far as the event goes: nothing is left to do.
  ASSERT_TRUE(streams_->wait(kCopyIn, late).ok());
  EXPECT_EQ(runtime_.waits.size(), 1u);
  // Another stream uses the same event.
  ASSERT_TRUE(streams_->wait(kCopyOut, late).ok());
  EXPECT_EQ(runtime_.events.size(), 1u);
  EXPECT_EQ(runtime_.waits.size(), 2u);
  EXPECT_EQ(streams_->eventsRecorded(), 1u);
  // A later position needs a new one.
  const Position next = advance(compute_);
  ASSERT_TRUE(streams_->wait(kCopyIn, next).ok());
  EXPECT_EQ(runtime_.events.size(), 2u);
  EXPECT_EQ(runtime_.events[1].stream, Stream{0});
  EXPECT_EQ(runtime_.waits.back(),
            std::make_pair(runtime_.copyInStream(), std::uint64_t{2}));
}

TEST_F(StreamPositionsTest, AMarkKeepsWaitsShort) {
  const Position early = advance(compute_);
  streams_->mark(compute_);
  streams_->mark(compute_); // covered already
  ASSERT_EQ(runtime_.events.size(), 1u);
  advance(compute_, 5);
  EXPECT_FALSE(streams_->wait(kCopyOut, early));
  ASSERT_EQ(runtime_.waits.size(), 1u);
  EXPECT_EQ(runtime_.waits[0].second, 1u); // the early event
  EXPECT_EQ(runtime_.events.size(), 1u);
  runtime_.fails = true;
  streams_->mark(compute_); // no matter
  runtime_.fails = false;
}

TEST_F(StreamPositionsTest, AStreamFollowsWhatItWaitedFor) {
  const Position early = advance(kCopyIn);
  const Position late = advance(kCopyIn);
  EXPECT_TRUE(streams_->follows(kCopyIn, late));
  EXPECT_FALSE(streams_->follows(compute_, early));
  streams_->mark(kCopyIn);
  const Position next = advance(kCopyIn);
  ASSERT_FALSE(streams_->wait(compute_, late));
  EXPECT_TRUE(streams_->follows(compute_, early));
  EXPECT_TRUE(streams_->follows(compute_, late));
  EXPECT_FALSE(streams_->follows(compute_, next));
  EXPECT_FALSE(streams_->follows(second_, early));
  EXPECT_FALSE(streams_->passed(early));
  EXPECT_TRUE(streams_->follows(second_, Position{}));
}

TEST_F(StreamPositionsTest, OwnStreamNeedsNoWait) {
  ASSERT_TRUE(streams_->wait(compute_, advance(compute_)).ok());
  EXPECT_TRUE(runtime_.events.empty());
}

TEST_F(StreamPositionsTest, PassedMovesWithCompletedEvents) {
  const Position first = advance(compute_);
  EXPECT_FALSE(streams_->poll(first));
  const Position second = advance(compute_);
  EXPECT_FALSE(streams_->poll(second));
  EXPECT_EQ(runtime_.events.size(), 2u);
  EXPECT_FALSE(streams_->poll(second)); // records no third one
  EXPECT_EQ(runtime_.events.size(), 2u);
  runtime_.events[0].complete = true;
  EXPECT_FALSE(streams_->passed(first)); // nobody asked yet
  EXPECT_FALSE(streams_->poll(second));
  EXPECT_TRUE(streams_->passed(first));
  EXPECT_EQ(runtime_.alive(), 1u);
  runtime_.events[1].complete = true;
  EXPECT_TRUE(streams_->poll(second));
  EXPECT_EQ(runtime_.alive(), 0u);
  const std::size_t queries = runtime_.queries;
  EXPECT_TRUE(streams_->poll(first));
  EXPECT_EQ(runtime_.queries, queries);
}

TEST_F(StreamPositionsTest, IdleStreamsPassAtOnce) {
  runtime_.idle = true;
  const Position position = advance(compute_, 5);
  ASSERT_TRUE(streams_->wait(kCopyIn, position).ok());
  EXPECT_TRUE(streams_->passed(position));
  EXPECT_TRUE(runtime_.waits.empty());
}

TEST_F(StreamPositionsTest, SynchronizeIsCounted) {
  const Position a = advance(compute_);
  const Position b = advance(kCopyOut, 3);
  ASSERT_TRUE(streams_->synchronize(a).ok());
  EXPECT_TRUE(streams_->passed(a));
  EXPECT_FALSE(streams_->passed(b));
  EXPECT_EQ(streams_->hostWaits(), 1u);
  ASSERT_TRUE(streams_->synchronizeAll().ok());
  EXPECT_TRUE(streams_->passed(b));
  EXPECT_EQ(streams_->hostWaits(), 2u);
  ASSERT_TRUE(streams_->synchronizeAll().ok());
  EXPECT_EQ(streams_->hostWaits(), 2u);
  EXPECT_EQ(runtime_.alive(), 0u);
}

TEST_F(StreamPositionsTest, AFullFenceIsJoinedOnCopyOut) {
  Fence fence;
  std::vector<Position> positions;
  for (std::uint64_t s = 100; s < 104; ++s) {
    positions.push_back(advance(streams_->indexOf(Stream{s})));
    ASSERT_TRUE(streams_->add(fence, positions.back()).ok());
  }
  ASSERT_TRUE(streams_->add(fence, positions.front()).ok());
  EXPECT_TRUE(runtime_.waits.empty());
  const Position fifth = advance(streams_->indexOf(Stream{104}));
  ASSERT_TRUE(streams_->add(fence, fifth).ok());
  EXPECT_EQ(runtime_.waits.size(), 5u);
  for (const auto& wait : runtime_.waits) {
    EXPECT_EQ(wait.first, runtime_.copyOutStream());
  }
  EXPECT_EQ(fence.slots()[0], Position::make(kCopyOut, 1));
  EXPECT_TRUE(fence.slots()[1].none());
  EXPECT_FALSE(streams_->passed(fence));
  // What waits for the fence waits for copy-out, after its waits.
  ASSERT_TRUE(streams_->wait(compute_, fence).ok());
  EXPECT_EQ(runtime_.events[runtime_.waits.back().second - 1].stream,
            runtime_.copyOutStream());
}

TEST_F(StreamPositionsTest, PassedPositionsMakeRoomInAFence) {
  Fence fence;
  for (std::uint64_t s = 100; s < 104; ++s) {
    const Position position = advance(streams_->indexOf(Stream{s}));
    ASSERT_TRUE(streams_->add(fence, position).ok());
    if (s == 101) {
      ASSERT_TRUE(streams_->synchronize(position).ok());
    }
  }
  const Position fifth = advance(compute_);
  ASSERT_TRUE(streams_->add(fence, fifth).ok());
  EXPECT_TRUE(runtime_.waits.empty());
  EXPECT_EQ(fence.slots()[3], fifth);
  Fence merged;
  ASSERT_TRUE(streams_->add(merged, fence).ok());
  EXPECT_EQ(merged.slots(), fence.slots());
}

TEST_F(StreamPositionsTest, FailuresChangeNothing) {
  Fence fence;
  for (std::uint64_t s = 100; s < 104; ++s) {
    fence.add(advance(streams_->indexOf(Stream{s})));
  }
  const auto before = fence.slots();
  const Position fifth = advance(compute_);
  runtime_.fails = runtime_.lost = true;
  EXPECT_FALSE(streams_->add(fence, fifth).ok());
  EXPECT_FALSE(streams_->wait(kCopyIn, fifth).ok());
  EXPECT_FALSE(streams_->synchronize(fifth).ok());
  EXPECT_FALSE(streams_->synchronizeAll().ok());
  EXPECT_FALSE(streams_->poll(fifth));
  EXPECT_EQ(fence.slots(), before);
  runtime_.fails = false;
  ASSERT_TRUE(streams_->poll(fifth) == false);
  runtime_.fails = true; // the event is there, the wait fails
  EXPECT_FALSE(streams_->wait(kCopyIn, fifth).ok());
  runtime_.fails = false;
  ASSERT_TRUE(streams_->wait(kCopyIn, fifth).ok());
  EXPECT_EQ(runtime_.waits.size(), 1u);
}

// Who waits on the host may give memory to others afterwards: a failure of
// events is no reason to go on early, and none to report.
TEST_F(StreamPositionsTest, AHostWaitThatFailsRunsTheStreamDry) {
  const Position first = advance(compute_);
  ASSERT_FALSE(streams_->poll(first)); // there is an event
  const Position second = advance(second_);
  runtime_.fails = true;
  EXPECT_TRUE(streams_->synchronize(first).ok());
  EXPECT_TRUE(streams_->passed(first));
  EXPECT_TRUE(streams_->synchronize(second).ok()); // and here there is none
  EXPECT_TRUE(streams_->passed(second));
  runtime_.lost = true;
  const Position third = advance(second_);
  EXPECT_FALSE(streams_->synchronize(third).ok());
  EXPECT_FALSE(streams_->passed(third));
}

TEST_F(StreamPositionsTest, ManyStreamsShareTheLastIndex) {
  std::vector<StreamIndex> indices;
  for (std::uint64_t s = 0; s < 100; ++s) {
    indices.push_back(streams_->indexOf(Stream{5000 + s}));
  }
  const StreamIndex last = kMaxStreams - 1;
  EXPECT_EQ(indices[58], last);
  EXPECT_EQ(indices[59], last);
  EXPECT_EQ(indices[99], last);
  EXPECT_EQ(streams_->indexOf(Stream{5099}), last);
  // A wait for the shared line joins all its streams, and one on it makes
  // all of them wait.
  const Position shared = advance(last);
  ASSERT_TRUE(streams_->wait(kCopyIn, shared).ok());
  EXPECT_EQ(runtime_.events.size(), 42u);
  EXPECT_EQ(runtime_.waits.size(), 42u);
  EXPECT_EQ(runtime_.waits.back().first, runtime_.copyInStream());
  const Position elsewhere = advance(compute_);
  runtime_.waits.clear();
  ASSERT_TRUE(streams_->wait(last, elsewhere).ok());
  EXPECT_EQ(runtime_.waits.size(), 42u);
  // Its streams are not in order with each other.
  runtime_.waits.clear();
  ASSERT_TRUE(streams_->wait(last, shared).ok());
  EXPECT_EQ(runtime_.waits.size(), 42u);
}

// Threads fetch, compute on and write back blocks of their own; all order goes
// through positions and fences, the adversary checks it.
class StreamPositionsOnCpu : public testing::TestWithParam<const char*> {};

TEST_P(StreamPositionsOnCpu, ThreadsOrderTheirWork) {
  constexpr std::size_t kBytes = 1024;
  constexpr std::size_t kSlots = 4;
  const auto runtime = runtime::make_cpu_runtime(
      {runtime::parse_cpu_adversary(GetParam()).value(),
       [](std::string_view sentence) { ADD_FAILURE() << sentence; }});
  const std::size_t unit = runtime->commitGranularity();
  std::byte* const device = runtime->reserve(unit).value();
  std::byte* const host = support::allocate_slab(*runtime, unit).value();
  ASSERT_TRUE(runtime->commit(device, unit).ok());
  std::memset(host, 0, unit);
  {
    StreamPositions streams(*runtime);
    const auto work = [&](std::size_t thread, unsigned seed) {
      std::mt19937 random(seed);
      const auto place = [&](std::byte* base, std::size_t slot) {
        return base + (thread * kSlots + slot) * kBytes;
      };
      const auto ok = [](const Error& error) {
        EXPECT_TRUE(error.ok()) << error.message();
      };
      Fence uses[kSlots]; // of the slot, here and in host memory
      for (int step = 0; step < 60; ++step) {
        const std::size_t slot = random() % kSlots;
        const StreamIndex compute =
            streams.indexOf(Stream{thread * 3 + random() % 3});
        const Copy in{place(device, slot), place(host, slot), kBytes};
        ok(streams.wait(kCopyIn, uses[slot]));
        ok(runtime->copy(runtime->copyInStream(), {&in, 1}));
        const Position fetched = streams.advance(kCopyIn);
        ok(streams.wait(compute, fetched));
        const ByteRange range{in.destination, kBytes};
        runtime->revived(range);
        for (std::size_t i = 0; i < kBytes; ++i) {
          in.destination[i] = static_cast<std::byte>(
              std::to_integer<int>(in.destination[i]) + 1);
        }
        runtime->submitted(streams.stream(compute), {}, {&range, 1});
        const Position computed = streams.advance(compute);
        ok(streams.wait(kCopyOut, computed));
        const Copy out{place(host, slot), in.destination, kBytes};
        ok(runtime->copy(runtime->copyOutStream(), {&out, 1}));
        ok(streams.add(uses[slot], fetched));
        ok(streams.add(uses[slot], computed));
        ok(streams.add(uses[slot], streams.advance(kCopyOut)));
        if (random() % 4 == 0) static_cast<void>(streams.poll(computed));
        if (random() % 8 == 0) ok(streams.synchronize(computed));
      }
    };
    std::vector<std::thread> threads;
    for (unsigned t = 0; t < 3; ++t) threads.emplace_back(work, t, t + 1);
    for (std::thread& thread : threads) thread.join();
    ASSERT_TRUE(streams.synchronizeAll().ok());
    int sum = 0;
    for (std::size_t slot = 0; slot < 3 * kSlots; ++slot) {
      sum += std::to_integer<int>(host[slot * kBytes + kBytes - 1]);
    }
    EXPECT_EQ(sum, 3 * 60);
  }
  support::free_slab(*runtime, host, unit);
  runtime->unreserve(device, unit);
}

INSTANTIATE_TEST_SUITE_P(
    Modes, StreamPositionsOnCpu,
    testing::Values("", "copies=late", "seed=2,copies=reordered,poison=1",
                    "copies=on_await", "compute_delay=5",
                    "copies=on_await,compute_delay=5,poison=1",
                    "seed=4,copies=reordered,compute_delay=9"));

} // namespace
} // namespace chameleon::memory
