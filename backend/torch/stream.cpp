#include "backend/torch/stream.h"

#include <utility>

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "backend/torch/device.h"

namespace chameleon::backend {

constinit thread_local CurrentStreams detail::current_streams{};
constinit std::atomic<detail::CurrentStream> detail::native_current{nullptr};

namespace {

std::atomic<c10::StreamId> next_id{1};

c10::Stream with_device(const c10::Stream& stream, c10::Device device) {
  return c10::Stream(c10::Stream::UNSAFE, device, stream.id());
}

} // namespace

void use_native_streams(detail::CurrentStream current) noexcept {
  detail::native_current.store(current, std::memory_order_relaxed);
}

c10::Stream exchange_stream(c10::Stream stream) {
  const c10::DeviceIndex index = stream.device_index();
  if (is_used() && target().type == c10::DeviceType::CUDA) {
    const c10::Stream previous =
        c10::impl::getDeviceGuardImpl(c10::DeviceType::CUDA)
            ->exchangeStream(with_device(stream, target_device(index)));
    prepare_thread(index);
    return with_device(previous, stream.device());
  }
  c10::StreamId& current =
      detail::current_streams[static_cast<std::size_t>(index)];
  return c10::Stream(c10::Stream::UNSAFE, stream.device(),
                     std::exchange(current, stream.id()));
}

c10::Stream new_stream(c10::DeviceIndex index, int priority) {
  const c10::Device device(kChameleon, index);
  if (targets_cuda("a stream")) {
    return with_device(c10::impl::getDeviceGuardImpl(c10::DeviceType::CUDA)
                           ->getNewStream(target_device(index), priority),
                       device);
  }
  // As CUDA's pool does, a few streams are handed out round robin.
  constexpr c10::StreamId kPoolSize = 32;
  const c10::StreamId id = next_id.fetch_add(1) % kPoolSize + 1;
  return c10::Stream(c10::Stream::UNSAFE, device, id);
}

} // namespace chameleon::backend
