// Streams of the device as PyTorch sees them. On cpu they all run on the
// calling thread; their ids only keep torch.Stream objects apart. On CUDA they
// are CUDA's own, by the same ids: torch.cuda and torch.chameleon always agree
// on the current one.
//
// Tests: test_streams.py.
//
// Thread safety: any thread; current streams are kept per thread.
#pragma once

#include <array>
#include <atomic>

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include "backend/runtime/device_runtime.h"
#include "backend/torch/device.h"

namespace chameleon::backend {

// What is kept of a thread's current streams here, by device.
using CurrentStreams = std::array<c10::StreamId, kMaxDevices>;

namespace detail {
// Named hidden where it is declared: one look-up then serves all thread-local
// variables that a function uses.
[[gnu::visibility(
    "hidden")]] extern constinit thread_local CurrentStreams current_streams;

using CurrentStream = c10::StreamId (*)(c10::DeviceIndex);
[[gnu::visibility(
    "hidden")]] extern constinit std::atomic<CurrentStream> native_current;
} // namespace detail

// The calling thread's current stream on device `index`; `own` are its own.
inline runtime::Stream current_stream(c10::DeviceIndex index,
                                      const CurrentStreams& own) {
  const auto native = detail::native_current.load(std::memory_order_relaxed);
  return {static_cast<std::uint64_t>(
      native != nullptr ? native(index)
                        : own[static_cast<std::size_t>(index)])};
}
// On CUDA it throws while a graph is captured.
inline runtime::Stream current_stream(c10::DeviceIndex index) {
  return current_stream(index, detail::current_streams);
}
c10::Stream exchange_stream(c10::Stream stream);
// One of a pool, of that priority where the target has them (lower is sooner).
c10::Stream new_stream(c10::DeviceIndex index, int priority = 0);

// From now on streams are the target's own. At first use.
void use_native_streams(detail::CurrentStream current) noexcept;

inline runtime::Stream to_runtime(const c10::Stream& stream) noexcept {
  return {static_cast<std::uint64_t>(stream.id())};
}

} // namespace chameleon::backend
