// Options, as they reach the devices of this process.
//
// Tests: test_config.py.
//
// Thread safety: any thread.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

#include <c10/core/Device.h>

#include "backend/runtime/device_runtime.h"
#include "memory/limits.h"

namespace chameleon::backend {

// What a pager on this device may use, by the options and the fraction now in
// force.
memory::Limits limits_from_options(const runtime::DeviceRuntime& device,
                                   c10::DeviceIndex index);

// Bytes that may be live with a budget of so many, without the fraction: what
// programs take for the device's memory.
std::size_t total_memory_bytes(std::size_t hbm_budget_bytes);
// The part of these that a program allows itself, from 0 to 1; 1 at first. Not
// a use of the device. Throws ValueError where more is live already.
void set_memory_fraction(c10::DeviceIndex index, double fraction);
double memory_fraction(c10::DeviceIndex index);

// Checks and stores an option, and applies it to pagers that are running.
// Throws ValueError; nothing changed then.
void set_option(std::string_view key, std::optional<std::string_view> text);

} // namespace chameleon::backend
