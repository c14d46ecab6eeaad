// Streams of the device as PyTorch sees them. On cpu they all run on the
// calling thread; their ids only keep torch.Stream objects apart.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include "backend/runtime/device_runtime.h"

namespace chameleon::backend {

namespace detail {
// Named hidden where it is declared: one look-up then serves all thread-local
// variables that a function uses.
[[gnu::visibility(
    "hidden")]] extern constinit thread_local c10::StreamId current_stream_id;
} // namespace detail

// The calling thread's current stream on device `index`.
inline runtime::Stream current_stream(c10::DeviceIndex /*index*/) noexcept {
  return {static_cast<std::uint64_t>(detail::current_stream_id)};
}
c10::Stream exchange_stream(c10::Stream stream) noexcept;
c10::Stream new_stream(c10::DeviceIndex index) noexcept;

inline runtime::Stream to_runtime(const c10::Stream& stream) noexcept {
  return {static_cast<std::uint64_t>(stream.id())};
}

} // namespace chameleon::backend
