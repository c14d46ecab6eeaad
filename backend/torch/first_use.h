// The first use of a device: it makes the runtime and the pager, and fixes what
// the options say about them (device.h, context()).
//
// Tests: test_backend_contract.py.
//
// Thread safety: any thread.
#pragma once

#include <optional>
#include <string>

namespace chameleon::backend {

// What used the device first; nullopt: nothing did yet.
std::optional<std::string> first_use();

using FirstUseHook = void (*)();

// The next use of a device that is not used yet calls it, once: on the thread
// that uses it, without a lock of ours, when the device is ready. Null: nobody
// is called.
void set_first_use_hook(FirstUseHook hook);

} // namespace chameleon::backend
