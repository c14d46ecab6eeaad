// Options, as they reach the devices of this process.
//
// Thread safety: any thread.
#pragma once

#include <optional>
#include <string_view>

#include "backend/runtime/device_runtime.h"
#include "memory/limits.h"

namespace chameleon::backend {

// What a pager on this device may use, by the options now in force.
memory::Limits limits_from_options(const runtime::DeviceRuntime& device);

// Checks and stores an option, and applies it to pagers that are running.
// Throws ValueError; nothing changed then.
void set_option(std::string_view key, std::optional<std::string_view> text);

} // namespace chameleon::backend
