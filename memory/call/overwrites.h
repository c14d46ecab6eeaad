// Operands that a call overwrites without reading them: they are not fetched,
// and their old bytes stay on the host until the op has written them. Where it
// fails they are brought back.
//
// Thread safety: methods with a Locked need the pager's lock, the others take
// it; of one call they are called by its own thread.
#pragma once

#include <cstddef>

#include "memory/pager_call.h"
#include "memory/pager_core.h"
#include "memory/residency.h"

namespace chameleon::memory {

class Overwrites {
 public:
  // REQUIRES: both outlive it.
  Overwrites(PagerCore& core, Residency& residency)
      : core_(core), residency_(residency) {}

  // The block is about to be overwritten: its host copy is the call's until
  // then.
  static void setOldBytesAside(const Locked& locked, CallState& call,
                               Block& block) REQUIRES(pager_lock);
  // What was not overwritten gets its old bytes, behind all that the call did
  // and before all that its stream does next. Returns bytes that are no longer
  // committed: where the old bytes cannot be brought back the call loses its
  // pins of the block. REQUIRES: it still pins the blocks.
  std::size_t settleOldBytes(CallState& call) noexcept;

 private:
  std::size_t leaveOnHost(const Locked& locked, CallState& call,
                          const CallState::OldBytes& old,
                          const Fence& uses) noexcept REQUIRES(pager_lock);
  static std::size_t dropPins(CallState& call, Block& block) noexcept;

  PagerCore& core_;
  Residency& residency_;
};

} // namespace chameleon::memory
