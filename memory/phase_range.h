// A phase of the pager's work, as a named range of the time of the thread that
// does it: for NVIDIA's tools (NvtxRange), and for a hook, through which
// torch's profilers see it.
//
// For work that moves or waits, not for the way of an op whose operands are all
// there. Where nobody looks, a range costs a load and a test of two pointers.
//
// Thread safety: any number at a time, on all threads; each ends on the thread
// that began it, in reverse order.
#pragma once

#include <atomic>

#include "backend/runtime/nvtx_range.h"

namespace chameleon::memory {

// Called on the thread whose time it is, some of them under the pager's lock:
// they must use no device, and take no lock that anybody holds while an op
// begins, so not the GIL.
struct PhaseHooks {
  void* (*begin)(const char* name) noexcept; // a literal; null: nobody looks
  void (*end)(void* range) noexcept;         // what begin() gave, if not null
};

class PhaseRange {
 public:
  explicit PhaseRange(const char* name) noexcept : nvtx_(name) { // a literal
    hooks_ = installed_.load(std::memory_order_acquire);
    if (hooks_ != nullptr) range_ = hooks_->begin(name);
  }
  ~PhaseRange() {
    if (range_ != nullptr) hooks_->end(range_);
  }
  PhaseRange(const PhaseRange&) = delete;
  PhaseRange& operator=(const PhaseRange&) = delete;

  // They live from now on. Null: none.
  static void setHooks(const PhaseHooks* hooks) noexcept {
    installed_.store(hooks, std::memory_order_release);
  }

 private:
  static inline std::atomic<const PhaseHooks*> installed_{nullptr};

  const runtime::NvtxRange nvtx_;
  const PhaseHooks* hooks_ = nullptr;
  void* range_ = nullptr;
};

} // namespace chameleon::memory
