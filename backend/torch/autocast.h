// Autocast below the device: native kernels call ops too (a fused encoder
// layer calls matrix products), and those are cast natively. So while a native
// kernel runs, autocast of the target is what autocast of the device is.
//
// Tests: test_autocast.py.
//
// Thread safety: belongs to its thread, as autocast does.
#pragma once

#include <c10/core/DispatchKeySet.h>
#include <c10/core/ScalarType.h>

namespace chameleon::backend {

// Costs a look at one word where autocast is off: the keys that the thread
// excludes.
class TargetAutocast {
 public:
  explicit TargetAutocast(c10::DispatchKeySet excluded) {
    if (!excluded.has(c10::DispatchKey::AutocastPrivateUse1)) [[unlikely]]
      enter();
  }
  ~TargetAutocast() {
    if (entered_) [[unlikely]]
      leave();
  }
  TargetAutocast(const TargetAutocast&) = delete;
  TargetAutocast& operator=(const TargetAutocast&) = delete;

 private:
  void enter();
  void leave();

  bool entered_ = false;
  bool enabled_before_ = false;
  c10::ScalarType dtype_before_ = c10::ScalarType::Undefined;
};

} // namespace chameleon::backend
