// Turns positions on streams into events, lazily. Each stream has a counter
// of submitted work; advance() is one atomic add, so an op costs no event. An
// event is recorded when somebody has to wait for a position that no recorded
// event covers; completed events move the stream's `completed` mark, which
// makes most waits a comparison. An event made late covers more than was asked
// for; where that would cost time, mark() makes it in time.
//
// Thread safety: every method may be called from any thread. advance(),
// passed() and the lookup of a known stream are lock-free; the rest takes the
// lock of the stream that is waited *for*, a leaf: nothing but the runtime is
// called under it, and never anything that blocks the host. wait() may block
// the host where the runtime says so (cpu compute streams), so no pager lock
// may be held around wait(compute, ...); no lock of ours is held meanwhile.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <vector>

#include "backend/runtime/device_runtime.h"
#include "backend/runtime/ranked_mutex.h"
#include "memory/streams/fence.h"

namespace chameleon::memory {

class StreamPositions {
 public:
  explicit StreamPositions(runtime::DeviceRuntime& runtime);
  // Gives the events back; waits for nothing.
  ~StreamPositions();
  StreamPositions(const StreamPositions&) = delete;
  StreamPositions& operator=(const StreamPositions&) = delete;

  // The index of a stream, registered at first sight. More than kMaxStreams
  // streams share the last index, which only makes waits longer.
  StreamIndex indexOf(runtime::Stream stream) {
    // Most processes have one compute stream.
    if (line_count_.load(std::memory_order_acquire) > kFirstCompute &&
        lines_[kFirstCompute].stream == stream) [[likely]] {
      return kFirstCompute;
    }
    return find(stream);
  }
  // REQUIRES: an index that indexOf() gave, or one of the runtime's streams.
  runtime::Stream stream(StreamIndex index) const noexcept;

  // The next position on the stream: call it after work was submitted.
  Position advance(StreamIndex index) noexcept {
    return Position::make(
        index,
        lines_[index].submitted.fetch_add(1, std::memory_order_acq_rel) + 1);
  }
  // Records an event behind what was submitted so far: who waits for a position
  // up to here will not wait for later work too. Where that fails waits are
  // longer, nothing else.
  void mark(StreamIndex index);
  // True: the position is known to have passed. Never asks the runtime.
  bool passed(Position position) const noexcept {
    const Line& line = lines_[position.stream()];
    return line.completed.load(std::memory_order_acquire) >= position.count();
  }
  bool passed(const Fence& fence) const noexcept {
    for (Position position : fence.slots()) {
      if (position.none()) return true;
      if (!passed(position)) return false;
    }
    return true;
  }
  // True: later work on the stream `index` runs after the position in any case.
  bool follows(StreamIndex index, Position position) const noexcept {
    if (shared(index)) return passed(position);
    return position.stream() == index || passed(position) ||
           lines_[index].follows[position.stream()].load(
               std::memory_order_acquire) >= position.count();
  }
  // As passed(), after asking the runtime for news. Records an event when
  // none covers the position, so that repeated polls come true.
  bool poll(Position position);

  // `index` runs its later work after `position` / after all of `fence`.
  // Free where the order holds already.
  runtime::Error wait(StreamIndex index, Position position);
  runtime::Error wait(StreamIndex index, const Fence& fence);
  // The host waits; where that cannot be done by an event, until the streams
  // have run dry. An error: the device is lost, and nothing runs any more.
  runtime::Error synchronize(Position position);
  runtime::Error synchronizeAll();

  // Adds `position` to `fence`; where the fence is full its positions are
  // joined on the copy-out stream first (that stream waits for them all). On
  // failure the fence is as it was.
  runtime::Error add(Fence& fence, Position position);
  runtime::Error add(Fence& fence, const Fence& other);

  // Events recorded, and synchronize() calls that had to block, so far.
  std::uint64_t eventsRecorded() const noexcept {
    return events_recorded_.load(std::memory_order_relaxed);
  }
  std::uint64_t hostWaits() const noexcept {
    return host_waits_.load(std::memory_order_relaxed);
  }

 private:
  // An event that covers every position up to `count` of its line.
  struct Recorded {
    std::uint64_t count;
    runtime::Event event;
    std::uint32_t users; // threads that use `event` outside the line's lock
  };
  struct Line {
    runtime::Stream stream;
    std::atomic<std::uint64_t> submitted{0};
    std::atomic<std::uint64_t> completed{0};
    // What this line already runs after, per line.
    std::array<std::atomic<std::uint64_t>, kMaxStreams> follows{};
    runtime::RankedMutex<runtime::LockRank::kStream> mutex;
    // Guarded by mutex.
    std::deque<Recorded> recorded;       // by rising count
    std::vector<runtime::Stream> others; // streams that share this line
  };

  StreamIndex find(runtime::Stream stream);
  // The event that covers `count`, held until release(); null: it has passed.
  runtime::Result<Recorded*> cover(Line& line, std::uint64_t count);
  void release(Line& line, Recorded* recorded);
  // These REQUIRE line.mutex.
  runtime::Error recordEnd(Line& line); // an event that covers all so far
  runtime::Result<runtime::Event> record(Line& line);
  void retire(Line& line);
  runtime::Error waitForEvent(Line& line, runtime::Event event);
  bool drain(Line& line) noexcept;
  // The index stands for several streams.
  bool shared(StreamIndex index) const noexcept {
    return index == kMaxStreams - 1 &&
           last_line_shared_.load(std::memory_order_acquire);
  }

  runtime::DeviceRuntime& runtime_;
  std::array<Line, kMaxStreams> lines_;
  std::atomic<std::size_t> line_count_{kFirstCompute};
  runtime::RankedMutex<runtime::LockRank::kStreamList>
      registration_mutex_; // taken before a line's mutex
  std::atomic<bool> last_line_shared_{false};
  std::atomic<std::uint64_t> events_recorded_{0};
  std::atomic<std::uint64_t> host_waits_{0};
};

} // namespace chameleon::memory
