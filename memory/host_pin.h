// A host thread is at a block's host copy, which stays where and what it is
// meanwhile. That counts as a call: who needs the copy to go waits for it as
// for any other.
//
// Thread safety: any thread; a method that takes a Locked needs the pager's
// lock, the other takes it.
#pragma once

#include "memory/pager_core.h"

namespace chameleon::memory {

inline void pin_host_copy(const Locked& /*locked*/, PagerCore& core,
                          Block& block) noexcept REQUIRES(pager_lock) {
  ++block.host_pins;
  core.admission.add(1, 0);
}

inline void unpin_host_copy(PagerCore& core, Block& block) noexcept {
  {
    const PagerLock locked(core);
    --block.host_pins;
  }
  core.admission.subtract(1, 0);
  core.admission.wake();
}

} // namespace chameleon::memory
