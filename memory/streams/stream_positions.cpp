#include "memory/streams/stream_positions.h"

#include <algorithm>

#include "backend/runtime/check.h"
#include "memory/phase_range.h"

namespace chameleon::memory {

namespace {

using runtime::Error;
using runtime::Event;
using runtime::Result;
using runtime::Stream;

constexpr StreamIndex kLastIndex = kMaxStreams - 1;

void raise(std::atomic<std::uint64_t>& mark, std::uint64_t count) {
  std::uint64_t old = mark.load(std::memory_order_relaxed);
  while (old < count &&
         !mark.compare_exchange_weak(old, count, std::memory_order_release,
                                     std::memory_order_relaxed)) {
  }
}

} // namespace

StreamPositions::StreamPositions(runtime::DeviceRuntime& runtime)
    : runtime_(runtime) {
  lines_[kCopyIn].stream = runtime.copyInStream();
  lines_[kCopyOut].stream = runtime.copyOutStream();
  lines_[kMoves].stream = runtime.moveStream();
}

StreamPositions::~StreamPositions() {
  for (Line& line : lines_) {
    for (const Recorded& recorded : line.recorded) {
      CHAMELEON_CHECK(recorded.users == 0,
                      "a wait outlives its StreamPositions");
      runtime_.destroy(recorded.event);
    }
  }
}

StreamIndex StreamPositions::find(Stream stream) {
  const auto search = [&](std::size_t from, std::size_t to) {
    while (from < to && lines_[from].stream != stream) ++from;
    return from;
  };
  // The compute streams first: they are what ops ask for.
  const std::size_t seen = line_count_.load(std::memory_order_acquire);
  std::size_t index = search(kFirstCompute, seen);
  if (index < seen) return static_cast<StreamIndex>(index);
  index = search(0, kFirstCompute);
  if (index < kFirstCompute) return static_cast<StreamIndex>(index);

  const std::lock_guard registration(registration_mutex_);
  const std::size_t known = line_count_.load(std::memory_order_relaxed);
  index = search(seen, known);
  if (index < known) return static_cast<StreamIndex>(index);
  if (known < kMaxStreams) {
    lines_[known].stream = stream;
    line_count_.store(known + 1, std::memory_order_release);
    return static_cast<StreamIndex>(known);
  }
  Line& last = lines_[kLastIndex];
  const std::lock_guard lock(last.mutex);
  if (std::find(last.others.begin(), last.others.end(), stream) ==
      last.others.end()) {
    last.others.push_back(stream);
    last_line_shared_.store(true, std::memory_order_release);
  }
  return kLastIndex;
}

Stream StreamPositions::stream(StreamIndex index) const noexcept {
  CHAMELEON_DCHECK(index < line_count_.load(std::memory_order_acquire),
                   "no stream has this index");
  return lines_[index].stream;
}

void StreamPositions::mark(StreamIndex index) {
  Line& line = lines_[index];
  const std::lock_guard lock(line.mutex);
  retire(line);
  (void)recordEnd(line).ok();
}

bool StreamPositions::poll(Position position) {
  if (passed(position)) return true;
  Line& line = lines_[position.stream()];
  Result<Recorded*> recorded = cover(line, position.count());
  if (!recorded.ok()) return false;
  if (*recorded != nullptr) release(line, *recorded);
  return passed(position);
}

Error StreamPositions::wait(StreamIndex index, Position position) {
  const StreamIndex source = position.stream();
  if (follows(index, position)) return {};
  Line& line = lines_[source];
  Result<Recorded*> recorded = cover(line, position.count());
  if (!recorded.ok()) return recorded.takeError();
  if (*recorded == nullptr) return {};
  // Without the lock: this blocks the host where compute runs inline.
  const std::uint64_t covered = (*recorded)->count;
  Error error = waitForEvent(lines_[index], (*recorded)->event);
  // mutant: follower
  if (!error && !shared(index)) raise(lines_[index].follows[source], covered);
  release(line, *recorded);
  return error;
}

Error StreamPositions::wait(StreamIndex index, const Fence& fence) {
  for (Position position : fence.slots()) {
    if (position.none()) break;
    if (Error error = wait(index, position)) return error;
  }
  return {};
}

Error StreamPositions::synchronize(Position position) {
  if (passed(position)) return {};
  Line& line = lines_[position.stream()];
  Result<Recorded*> recorded = cover(line, position.count());
  if (!recorded.ok()) {
    if (drain(line)) return {};
    return recorded.takeError();
  }
  if (*recorded == nullptr) return {};
  const PhaseRange range("wait for the device");
  host_waits_.fetch_add(1, std::memory_order_relaxed);
  Error error = runtime_.synchronize((*recorded)->event);
  if (!error) raise(line.completed, (*recorded)->count);
  release(line, *recorded);
  if (error && drain(line)) return {};
  return error;
}

bool StreamPositions::drain(Line& line) noexcept {
  const std::uint64_t covered = line.submitted.load(std::memory_order_acquire);
  std::vector<Stream> streams{line.stream};
  {
    const std::lock_guard lock(line.mutex);
    streams.insert(streams.end(), line.others.begin(), line.others.end());
  }
  host_waits_.fetch_add(1, std::memory_order_relaxed);
  bool ran = true;
  for (const Stream stream : streams) ran = runtime_.drain(stream) && ran;
  if (ran) raise(line.completed, covered);
  return ran;
}

Error StreamPositions::synchronizeAll() {
  const std::size_t known = line_count_.load(std::memory_order_acquire);
  for (std::size_t index = 0; index < known; ++index) {
    const Position last =
        Position::make(static_cast<StreamIndex>(index),
                       lines_[index].submitted.load(std::memory_order_acquire));
    if (Error error = synchronize(last)) return error;
  }
  return {};
}

Error StreamPositions::add(Fence& fence, Position position) {
  if (passed(position) || fence.add(position)) return {};
  Fence open; // what has not passed yet
  for (Position slot : fence.slots()) {
    if (!passed(slot)) open.add(slot);
  }
  if (open.add(position)) {
    fence = open;
    return {};
  }
  if (Error error = wait(kCopyOut, open)) return error;
  if (Error error = wait(kCopyOut, position)) return error;
  fence.clear();
  fence.add(advance(kCopyOut));
  return {};
}

Error StreamPositions::add(Fence& fence, const Fence& other) {
  for (Position position : other.slots()) {
    if (position.none()) break;
    if (Error error = add(fence, position)) return error;
  }
  return {};
}

Result<StreamPositions::Recorded*> StreamPositions::cover(Line& line,
                                                          std::uint64_t count) {
  const std::lock_guard lock(line.mutex);
  retire(line);
  Recorded* none = nullptr;
  if (line.completed.load(std::memory_order_relaxed) >= count) return none;
  auto found = std::lower_bound(
      line.recorded.begin(), line.recorded.end(), count,
      [](const Recorded& r, std::uint64_t c) { return r.count < c; });
  if (found == line.recorded.end()) {
    if (Error error = recordEnd(line)) return error;
    if (line.completed.load(std::memory_order_relaxed) >= count) return none;
    found = std::prev(line.recorded.end());
    CHAMELEON_DCHECK(found->count >= count, "a position that nobody gave out");
  }
  ++found->users;
  return &*found;
}

void StreamPositions::release(Line& line, Recorded* recorded) {
  const std::lock_guard lock(line.mutex);
  --recorded->users;
  retire(line);
}

Error StreamPositions::recordEnd(Line& line) {
  // Read before the event is recorded: all work counted so far was submitted
  // before it was counted, so the event covers it.
  const std::uint64_t covered = line.submitted.load(std::memory_order_acquire);
  if (!line.recorded.empty() && line.recorded.back().count >= covered) {
    return {};
  }
  Result<Event> event = record(line);
  if (!event.ok()) return event.takeError();
  if (event->complete()) {
    raise(line.completed, covered);
  } else {
    line.recorded.push_back({covered, *event, 0});
  }
  return {};
}

Result<Event> StreamPositions::record(Line& line) {
  // Streams that share a line are first joined on its first stream.
  for (Stream other : line.others) {
    Result<Event> event = runtime_.record(other);
    if (!event.ok()) return event;
    if (event->complete()) continue;
    Error error = runtime_.wait(line.stream, *event);
    runtime_.destroy(*event);
    if (error) return error;
  }
  // mutant: event-stream
  Result<Event> event = runtime_.record(line.stream);
  if (event.ok()) events_recorded_.fetch_add(1, std::memory_order_relaxed);
  return event;
}

void StreamPositions::retire(Line& line) {
  for (const Recorded& recorded : line.recorded) {
    if (line.completed.load(std::memory_order_relaxed) < recorded.count) {
      if (!runtime_.query(recorded.event)) break;
      raise(line.completed, recorded.count);
    }
  }
  while (!line.recorded.empty() && line.recorded.front().users == 0 &&
         line.completed.load(std::memory_order_relaxed) >=
             line.recorded.front().count) {
    runtime_.destroy(line.recorded.front().event);
    line.recorded.pop_front();
  }
}

Error StreamPositions::waitForEvent(Line& line, Event event) {
  if (&line != &lines_[kLastIndex]) return runtime_.wait(line.stream, event);
  std::vector<Stream> streams{line.stream};
  {
    const std::lock_guard lock(line.mutex);
    streams.insert(streams.end(), line.others.begin(), line.others.end());
  }
  for (Stream stream : streams) {
    if (Error error = runtime_.wait(stream, event)) return error;
  }
  return {};
}

} // namespace chameleon::memory
