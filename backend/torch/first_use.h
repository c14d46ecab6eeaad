// Who wants to know that the device is used for the first time.
#pragma once

namespace chameleon::backend {

using FirstUseHook = void (*)();

// The next use of a device that is not used yet calls it, once: on the thread
// that uses it, without a lock of ours, when the device is ready. Null: nobody
// is called. Thread safety: any thread.
void set_first_use_hook(FirstUseHook hook);

} // namespace chameleon::backend
