// An op call's way in and its way out: which blocks it pins, and what it
// commits for them (Admission). Without the lock where all operands are
// Resident and everything fits; else under it, in one attempt after the other.
//
// begin() is all-or-nothing: where it fails no pin is held, and no block has
// lost anything.
//
// Tests: pager_test.cpp, begin_attempt_test.cpp.
//
// Thread safety: any thread; of one call its own thread. Methods take the
// pager's lock where they need it, so REQUIRES: it is not held.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "memory/call/call_parts.h"
#include "memory/op_request.h"
#include "memory/pager_core.h"
#include "memory/wanted_block.h"

namespace chameleon::memory {

class CallPins {
 public:
  // REQUIRES: all parts outlive it.
  explicit CallPins(const CallParts& parts)
      : parts_(parts), core_(parts.core) {}

  // See Pager.
  runtime::Error begin(CallState& call, const OpRequest& request);
  void end(CallState& call) noexcept;
  void keepPins(CallState& call) noexcept;
  void endsByItself(CallState& call) noexcept;
  // Unpins and makes way for others, where no op ran: nothing is stamped.
  void release(CallState& call) noexcept;

 private:
  // ---- the way in ----------------------------------------------------------
  runtime::Error observe(CallState& call, const OpRequest& request);
  bool beginFast(CallState& call, const std::span<const Operand>& operands,
                 Fence& waits);
  void backOut(std::span<const Operand> operands, std::size_t pinned,
               const Admission::Entry& entry,
               std::size_t shared_bytes) noexcept;
  runtime::Error beginSlow(CallState& call, std::span<const Operand> operands,
                           Fence& waits);

  // ---- the way out ---------------------------------------------------------
  static std::size_t unpin(Block& block) noexcept;
  void retire(CallState& call, std::size_t freed) noexcept;

  // ---- who looks at each call ----------------------------------------------
  void lookAtBegin(const CallState& call);
  void report(CallState& call) noexcept; // to a runtime that checks callers

  const CallParts parts_;
  PagerCore& core_;
  std::vector<WantedBlock> wanted_ GUARDED_BY(pager_lock); // scratch
};

} // namespace chameleon::memory
