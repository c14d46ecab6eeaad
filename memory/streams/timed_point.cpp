#include "memory/streams/timed_point.h"

#include <optional>

namespace chameleon::memory {

TimedPoint take_point(runtime::DeviceRuntime& runtime, runtime::Stream stream) {
  TimedPoint point;
  if (!runtime.checksCallers()) { // else compute runs on the host
    const runtime::Result<runtime::Event> event = runtime.recordTimed(stream);
    if (!event.ok()) return point;
    point.event = event.value();
  }
  point.taken = true;
  if (point.event.complete()) point.moment.time_ns = runtime.now_ns();
  return point;
}

bool resolve(runtime::DeviceRuntime& runtime, TimedPoint& point) {
  if (!point.taken || point.event.complete()) return point.taken;
  const std::optional<runtime::Moment> moment = runtime.momentOf(point.event);
  if (!moment) return false;
  runtime.destroy(point.event);
  point.event = {};
  point.moment = *moment;
  return true;
}

void give_back(runtime::DeviceRuntime& runtime, TimedPoint& point) noexcept {
  if (point.taken && !point.event.complete()) runtime.destroy(point.event);
  point = {};
}

} // namespace chameleon::memory
