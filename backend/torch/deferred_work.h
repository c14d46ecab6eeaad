// Work on the device that was deferred: list ops that
// kernels/lists/deferred_lists.h holds back, to run each part of them just
// before its bytes are used. Whoever reads or writes a storage calls
// finish_deferred_work_on() first; whoever waits for the device, counts or
// changes its limits calls finish_deferred_work(). So nobody can tell.
//
// Below kernels/, where the callers are: this is the flag they look at, and
// the way up to the work.
//
// Tests: test_deferred_lists.py.
//
// Thread safety: any thread; the work has a lock of its own (deferred_lists.h).
#pragma once

#include <atomic>

#include <c10/core/StorageImpl.h>

namespace chameleon::backend {

struct DeviceContext;

namespace detail {
extern std::atomic<bool> work_is_deferred;
void finish_deferred_work_slow();
void finish_deferred_work_on_slow(const c10::StorageImpl& storage);
void leave_bytes_to_deferred_work_slow(c10::StorageImpl& storage);
void finish_deferred_work_if_full_slow(const DeviceContext& device);
} // namespace detail

inline bool has_deferred_work() noexcept {
  return detail::work_is_deferred.load(std::memory_order_acquire);
}

// Done is what was deferred, by any thread, before this call. Throws what the
// work throws: OutOfMemoryError (what is left stays deferred, and is tried
// again by the next to ask), and a device's errors. A thread inside a kernel
// does nothing here: it holds pins, and must not wait.
inline void finish_deferred_work() {
  if (has_deferred_work()) [[unlikely]]
    detail::finish_deferred_work_slow();
}

// The same for what was deferred on `storage`: all ops on it, and with them
// what else they do at its place in their lists. A thread inside a kernel, too,
// which throws where another thread does that just now.
inline void finish_deferred_work_on(const c10::StorageImpl& storage) {
  if (has_deferred_work()) [[unlikely]]
    detail::finish_deferred_work_on_slow(storage);
}

// Nobody else will see the bytes of `storage` any more. What was deferred on it
// takes them along, and frees them when it is done; then `storage` is empty.
// Executes nothing, so that giving up memory never needs some.
inline void leave_bytes_to_deferred_work(c10::StorageImpl& storage) {
  if (has_deferred_work()) [[unlikely]]
    detail::leave_bytes_to_deferred_work_slow(storage);
}

// Before an op on `device`: all of it, where the live bytes are near the limit.
// Among them may be gradients that nobody else holds.
inline void finish_deferred_work_if_full(const DeviceContext& device) {
  if (has_deferred_work()) [[unlikely]]
    detail::finish_deferred_work_if_full_slow(device);
}

// For those who only count, or set limits: what finds no memory stays deferred
// without an error, so that a program can free some, or raise the limit.
void try_finish_deferred_work();

// While one lives, its thread finishes nothing: it holds locks or pins that the
// work would wait for, and calls code that may ask for it.
class DeferredWorkStays {
 public:
  DeferredWorkStays() noexcept;
  ~DeferredWorkStays();
  DeferredWorkStays(const DeferredWorkStays&) = delete;
  DeferredWorkStays& operator=(const DeferredWorkStays&) = delete;
};

inline void set_work_deferred(bool deferred) noexcept {
  detail::work_is_deferred.store(deferred, std::memory_order_release);
}
// Once, when the extension is loaded.
struct DeferredWork {
  void (*finish)();
  void (*finish_on)(const c10::StorageImpl& storage);
  void (*take_bytes)(c10::StorageImpl& storage);
  void (*finish_if_full)(const DeviceContext& device);
};
void set_deferred_work(DeferredWork work);

} // namespace chameleon::backend
