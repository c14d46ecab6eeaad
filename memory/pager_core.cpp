#include "memory/pager_core.h"

#include <string>

#include "memory/phase_range.h"

namespace chameleon::memory {

using runtime::Error;
using runtime::ErrorCode;

PagerCore::PagerCore(runtime::DeviceRuntime& device, const Limits& at_first,
                     int index)
    : runtime(device),
      device_index(index),
      watched(device.checksCallers()),
      streams(device),
      profiler(profiler::OpHistory::kDefaultBytes,
               [](const void* block) {
                 return static_cast<const Block*>(block)->isReleased();
               }),
      admission(mutex, ExtentMap::roundDown(at_first.hbm_budget_bytes)),
      limits(at_first) {}

std::string PagerCore::name() const {
  return "chameleon:" + std::to_string(device_index);
}

Error PagerCore::named(const CallState& call, Error error) const {
  if (!error || error.code() != ErrorCode::kDevice) return error;
  return {error.code(),
          name() + ": " + std::string(call.op) + ": " + error.message()};
}

Error PagerCore::waitFor(StreamIndex stream, const Fence& fence) {
  if (streams.passed(fence)) return {};
  const PhaseRange range("wait for bytes");
  const std::int64_t start_ns = runtime.now_ns();
  Error error = streams.wait(stream, fence);
  counters.stall_ns.fetch_add(runtime.now_ns() - start_ns,
                              std::memory_order_relaxed);
  return error;
}

} // namespace chameleon::memory
