// What the methods of a runtime ask before they do anything: is this still the
// process that made it, and is no fault planted here? Runtimes inherit it.
//
// Thread safety: all methods may be called from any thread.
#pragma once

#include <cstdint>

#include "backend/runtime/fault_injection.h"
#include "backend/runtime/fork_generation.h"
#include "backend/runtime/result.h"

namespace chameleon::runtime {

class UseGuard {
 protected:
  bool forked() const noexcept { return generation_ != fork_generation(); }

  // Passed by every method that can fail, before it does anything.
  Error usable(FaultPoint point) const {
    if (forked()) [[unlikely]]
      return used_before_fork();
    return FaultInjection::instance().pass(point);
  }

 private:
  const std::uint32_t generation_ = fork_generation();
};

} // namespace chameleon::runtime
