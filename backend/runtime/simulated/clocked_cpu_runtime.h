// The cpu device on a modelled clock: bytes are this machine's, time is that of
// a simulated GPU. Copies and kernels run at once, on the calling thread, in
// the order of submission, which every order of events allows; *when* an event
// has passed is the simulated runtime's business. So nothing that is decided
// depends on how fast this machine is, and a run decides what the same run
// without data does.
//
// Tests: decision_log_test.cpp.
//
// Thread safety: as DeviceRuntime says; the clock is deterministic only if the
// threads take turns.
#pragma once

#include <memory>

#include "backend/runtime/device_runtime.h"
#include "backend/runtime/simulated/gpu_profiles.h"

namespace chameleon::runtime {

std::unique_ptr<DeviceRuntime> make_clocked_cpu_runtime(
    const GpuProfile& profile);

} // namespace chameleon::runtime
