// Copies between HBM and the host: one queue per direction, in the order of
// submission. A submission is a batch: all its copies start after one fence
// and have one position. Nothing here waits on the host. Now and then a batch
// is timed.
//
// Thread safety: may be called from any thread. Batches that depend on each
// other's bytes are ordered by their fences, not by the order of the calls.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <span>

#include "backend/runtime/device_runtime.h"
#include "memory/streams/op_timer.h"
#include "memory/streams/stream_positions.h"

namespace chameleon::memory {

class Transfers {
 public:
  Transfers(runtime::DeviceRuntime& runtime, StreamPositions& streams,
            OpTimer& timer)
      : runtime_(runtime), streams_(streams), timer_(timer) {}

  // From the host into HBM / the other way, after `fence`. `done` is the
  // position behind the copies; it is set on an Error too when some of them
  // may be under way, and is none when nothing was submitted.
  runtime::Error in(std::span<const runtime::Copy> copies, const Fence& fence,
                    Position& done) {
    return submit(kCopyIn, copies, fence, done);
  }
  runtime::Error out(std::span<const runtime::Copy> copies, const Fence& fence,
                     Position& done) {
    return submit(kCopyOut, copies, fence, done);
  }

  // The last copy from HBM to the host.
  Position lastOut() const noexcept {
    return {last_[1].load(std::memory_order_relaxed)};
  }

 private:
  runtime::Error submit(StreamIndex index,
                        std::span<const runtime::Copy> copies,
                        const Fence& fence, Position& done);

  runtime::DeviceRuntime& runtime_;
  StreamPositions& streams_;
  OpTimer& timer_;
  std::array<std::atomic<std::uint64_t>, 2> last_{}; // Position::word
};

} // namespace chameleon::memory
