// The runtime without data: addresses are numbers in reserved, inaccessible
// ranges, copies move nothing, and time is that of a modelled GPU
// (virtual_time.h). Memory limits are the profile's, not this machine's.
//
// The host clock, now_ns(), starts at 0 and moves on only where a host would
// have to wait for the device: synchronize(), a launch queue that is full, and
// asking for the same event again and again (a microsecond each time). So a run
// takes the same virtual time on every machine, however slow it is itself.
//
// Thread safety: that of DeviceRuntime.
#pragma once

#include <memory>

#include "backend/runtime/device_runtime.h"
#include "backend/runtime/simulated/gpu_profiles.h"

namespace chameleon::runtime {

std::unique_ptr<DeviceRuntime> make_simulated_runtime(
    const GpuProfile& profile);

} // namespace chameleon::runtime
