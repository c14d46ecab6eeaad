// Memory that native kernels allocate while an op call runs (outputs,
// workspaces, temporaries) comes from the arena, so that the budget is a truth
// and not an estimate. Installed over the target's allocator at first use;
// outside of an op call it only delegates.
//
// A DataPtr it gives out has context == data and one stateless deleter that
// finds the extent by its address, on any thread.
#pragma once

#include <c10/core/Allocator.h>

#include "backend/runtime/result.h"
#include "backend/torch/error.h"
#include "memory/pager.h"

namespace chameleon::backend {

// Idempotent.
void install_in_kernel_allocator();

namespace detail {
void release_in_kernel(void* data); // the deleter
} // namespace detail

// True: the memory was given out here, or (outside of calls) by the native
// allocator in our name.
inline bool is_in_kernel(const c10::DataPtr& data) noexcept {
  return data.get_deleter() == &detail::release_in_kernel;
}

// While one lives, the calling thread's allocations on the target belong to
// `call`. Nests (a kernel may run other ops); `nullptr` suspends.
class InKernelScope {
 public:
  struct Current {
    memory::Pager* pager = nullptr;
    memory::Call* call = nullptr;
    runtime::Error* failure = nullptr;
  };
  InKernelScope(memory::Pager* pager, memory::Call* call) noexcept
      : current_(current), previous_(current_) {
    current_ = {pager, call, &failure_};
  }
  ~InKernelScope() { current_ = previous_; }
  InKernelScope(const InKernelScope&) = delete;
  InKernelScope& operator=(const InKernelScope&) = delete;

  // True: the calling thread is inside a kernel.
  static bool isActive() noexcept { return current.call != nullptr; }

  // After the kernel returned: throws if an allocation failed all the same. A
  // kernel that catches that goes on in another way, to other bits.
  void throwIfFailed() const { throw_if(failure_); }

  [[gnu::visibility("hidden")]] static constinit thread_local Current current;

 private:
  Current& current_;       // the thread's: found once
  runtime::Error failure_; // the latest
  Current previous_;
};

} // namespace chameleon::backend
