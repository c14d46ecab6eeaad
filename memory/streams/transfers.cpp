#include "memory/streams/transfers.h"

namespace chameleon::memory {

using profiler::Direction;
using runtime::Error;
using runtime::Stream;

Error Transfers::submit(StreamIndex index,
                        std::span<const runtime::Copy> copies,
                        const Fence& fence, Position& done) {
  done = {};
  if (Error error = streams_.wait(index, fence)) return error;
  const bool in = index == kCopyIn;
  const Direction direction = in ? Direction::kIn : Direction::kOut;
  const Stream stream = streams_.stream(index);
  const bool timed = timer_.timesCopy(direction);
  CopyTiming timing;
  if (timed) [[unlikely]] {
    const Position other{last_[in ? 1 : 0].load(std::memory_order_relaxed)};
    timing = timer_.copyBegins(stream, direction,
                               other.none() || streams_.poll(other));
  }
  Error error = runtime_.copy(stream, copies);
  if (timed) [[unlikely]] {
    std::uint64_t bytes = 0;
    for (const runtime::Copy& copy : copies) bytes += copy.bytes;
    timer_.copyEnded(stream, direction, timing, error ? 0 : bytes);
  }
  done = streams_.advance(index);
  last_[in ? 0 : 1].store(done.word, std::memory_order_relaxed);
  streams_.mark(index); // who waits for a batch waits for no later one
  return error;
}

} // namespace chameleon::memory
