// One begin() under the lock: tries to pin all operands, in HBM and with room
// for the kernel, once or again when other calls have ended. A try either does
// all of it, or holds nothing when it returns. What it evicted or moved on the
// way stays so.
//
// Thread safety: needs the pager's lock where it takes a Locked, from the start
// of a try to its end. Lives on the stack of the call's thread.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "memory/call/call_parts.h"
#include "memory/pager_call.h"
#include "memory/pager_core.h"
#include "memory/room_request.h"
#include "memory/wanted_block.h"

namespace chameleon::memory {

class BeginAttempt {
 public:
  // `waits` gets what the call's stream has to wait for. `scratch` spares the
  // heap; the lock guards it.
  BeginAttempt(const CallParts& parts, CallState& call,
               std::span<const Operand> operands, Fence& waits,
               std::vector<WantedBlock>& scratch);

  // No other call may be in flight: a library chooses its algorithm, or two
  // attempts of the same call have failed inside the kernel.
  bool exclusive() const noexcept { return exclusive_; }
  // One try. `alone`: no other call was in flight when it started.
  Admission::Attempt run(const Locked& locked, bool alone) REQUIRES(pager_lock);
  // What is said where the last try failed for good.
  runtime::Error error(const Locked& locked) REQUIRES(pager_lock);

 private:
  bool gather(std::size_t& total_bytes);
  void pinResident();
  bool refuseLost();
  bool takeRoom(bool& others);
  bool isRoomEnough() const;
  bool placeMissing(const Locked& locked) REQUIRES(pager_lock);
  void commit(const Locked& locked) REQUIRES(pager_lock);
  void undo(const Locked& locked) noexcept REQUIRES(pager_lock);

  const CallParts& parts_;
  PagerCore& core_;
  CallState& call_;
  const std::span<const Operand> operands_;
  Fence& waits_;
  std::vector<WantedBlock>& wanted_; // the distinct operands
  const bool exclusive_;
  Shortage shortage_; // of the last try
};

} // namespace chameleon::memory
