// Memory that native kernels allocate while an op call runs (outputs,
// workspaces, temporaries) comes from the arena, so that the budget is a truth
// and not an estimate. Installed over the target's allocator at first use;
// outside of an op call it only delegates.
//
// A DataPtr it gives out has context == data and one stateless deleter that
// finds the extent by its address, on any thread.
//
// Tests: test_workspaces.py.
//
// Thread safety: any thread; a scope belongs to the thread that opened it.
#pragma once

#include <c10/core/Allocator.h>

#include "backend/runtime/result.h"
#include "backend/torch/error.h"
#include "memory/pager.h"

namespace chameleon::backend {

// Over the CPU's allocator. Idempotent. (CUDA's: native_cuda.h)
void install_in_kernel_allocator();
// Where memory goes that is not the arena's. Called once, by who installs.
void set_native_release(c10::DeleterFnPtr release);

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
  InKernelScope(memory::Pager* pager, memory::Call* call) noexcept
      : InKernelScope(pager, call, current) {}
  // The same where innermost() is at hand.
  InKernelScope(memory::Pager* pager, memory::Call* call,
                InKernelScope*& innermost) noexcept
      : pager_(pager), call_(call), current_(innermost), previous_(innermost) {
    current_ = this;
  }
  ~InKernelScope() { current_ = previous_; }
  InKernelScope(const InKernelScope&) = delete;
  InKernelScope& operator=(const InKernelScope&) = delete;

  // Where the calling thread's innermost scope is kept.
  static InKernelScope*& innermost() noexcept { return current; }
  // True: the calling thread is inside a kernel.
  static bool isActive() noexcept { return active() != nullptr; }
  // The calling thread's, unless it is suspended.
  static InKernelScope* active() noexcept {
    InKernelScope* const scope = current;
    return scope != nullptr && scope->call_ != nullptr ? scope : nullptr;
  }

  // After the kernel returned: throws if an allocation failed all the same. A
  // kernel that catches that goes on in another way, to other bits.
  void throwIfFailed() const { throw_if(failure_); }
  bool hasFailed() const noexcept { return !failure_.ok(); }

  memory::Pager& pager() const noexcept { return *pager_; }
  memory::Call& call() const noexcept { return *call_; }
  void failed(const runtime::Error& error) {
    failure_ = runtime::Error(error.code(), error.message());
  }

 private:
  [[gnu::visibility(
      "hidden")]] static constinit thread_local InKernelScope* current;

  memory::Pager* pager_;
  memory::Call* call_;
  runtime::Error failure_;  // the latest
  InKernelScope*& current_; // the thread's: found once
  InKernelScope* previous_;
};

} // namespace chameleon::backend
