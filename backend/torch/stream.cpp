#include "backend/torch/stream.h"

#include <atomic>

#include "backend/torch/device.h"

namespace chameleon::backend {

constinit thread_local c10::StreamId detail::current_stream_id = 0;

namespace {
std::atomic<c10::StreamId> next_id{1};
} // namespace

c10::Stream exchange_stream(c10::Stream stream) noexcept {
  const c10::Stream previous(c10::Stream::UNSAFE, stream.device(),
                             detail::current_stream_id);
  detail::current_stream_id = stream.id();
  return previous;
}

c10::Stream new_stream(c10::DeviceIndex index) noexcept {
  // As CUDA's pool does, a few streams are handed out round robin.
  constexpr c10::StreamId kPoolSize = 32;
  const c10::StreamId id = next_id.fetch_add(1) % kPoolSize + 1;
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(kChameleon, index), id);
}

} // namespace chameleon::backend
