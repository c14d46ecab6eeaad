// A point of a stream in time: an event there, or the clock where work runs
// while it is submitted. The moment is known once the device has passed it.
//
// Tests: meter_test.cpp, exchange_meter_test.cpp.
//
// Thread safety: none; its owner locks.
#pragma once

#include "backend/runtime/device_runtime.h"

namespace chameleon::memory {

struct TimedPoint {
  bool taken = false;
  runtime::Event event; // complete: the moment is known
  runtime::Moment moment;
};

// Behind what was submitted to the stream. Not taken: there was no event.
TimedPoint take_point(runtime::DeviceRuntime& runtime, runtime::Stream stream);
// False: not passed yet, or never to be known.
bool resolve(runtime::DeviceRuntime& runtime, TimedPoint& point);
// Gives its event back.
void give_back(runtime::DeviceRuntime& runtime, TimedPoint& point) noexcept;

} // namespace chameleon::memory
