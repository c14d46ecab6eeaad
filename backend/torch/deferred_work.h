// Work on the device that was deferred: a run of list ops that
// kernels/lists/deferred_lists.h holds back, to run it in a better order.
// Whoever looks at bytes, waits for the device, counts or changes its limits
// calls finish_deferred_work() first, so that nobody can tell.
//
// Below kernels/, where the callers are: this is the flag they look at, and
// the way up to the work.
//
// Tests: test_deferred_lists.py.
//
// Thread safety: any thread; the work has a lock of its own (deferred_lists.h).
#pragma once

#include <atomic>

namespace chameleon::backend {

namespace detail {
extern std::atomic<bool> work_is_deferred;
void finish_deferred_work_slow();
} // namespace detail

// Done is what was deferred, by any thread, before this call. Throws what the
// work throws: OutOfMemoryError (what is left stays deferred, and is tried
// again by the next to ask), and a device's errors. A thread inside a kernel
// does nothing here: it holds pins, and must not wait.
inline void finish_deferred_work() {
  if (detail::work_is_deferred.load(std::memory_order_acquire)) [[unlikely]]
    detail::finish_deferred_work_slow();
}

// For those who only count, or set limits: what finds no memory stays deferred
// without an error, so that a program can free some, or raise the limit.
void try_finish_deferred_work();

// While one lives, its thread finishes nothing: it holds locks that the work
// would take, and calls code that may ask for it.
class DeferredWorkStays {
 public:
  DeferredWorkStays() noexcept;
  ~DeferredWorkStays();
  DeferredWorkStays(const DeferredWorkStays&) = delete;
  DeferredWorkStays& operator=(const DeferredWorkStays&) = delete;
};

inline bool has_deferred_work() noexcept {
  return detail::work_is_deferred.load(std::memory_order_acquire);
}
inline void set_work_deferred(bool deferred) noexcept {
  detail::work_is_deferred.store(deferred, std::memory_order_release);
}
// Once, when the extension is loaded.
void set_deferred_work_finisher(void (*finisher)());

} // namespace chameleon::backend
