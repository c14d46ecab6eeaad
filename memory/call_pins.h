// An op call's way in and its way out: which blocks it pins, and what it
// commits for them (Admission). Without the lock where all operands are
// Resident and everything fits; else under it, in one attempt after the other.
//
// begin() is all-or-nothing: where it fails no pin is held, and no block has
// lost anything.
//
// Thread safety: any thread; of one call its own thread. Methods take the
// pager's lock where they need it, so REQUIRES: it is not held.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "memory/block_table.h"
#include "memory/call_memory.h"
#include "memory/invariants.h"
#include "memory/kernel_room.h"
#include "memory/meter.h"
#include "memory/op_request.h"
#include "memory/overwrites.h"
#include "memory/pager_core.h"
#include "memory/plan_runner.h"
#include "memory/recomputer.h"
#include "memory/residency.h"
#include "memory/room_finder.h"
#include "memory/stress_hooks.h"
#include "memory/wanted_block.h"

namespace chameleon::memory {

class CallPins {
 public:
  // What an op call passes through, in this order. All outlive it.
  struct Parts {
    PagerCore& core;
    Meter& meter;
    PlanRunner& plans;
    StressHooks& stress;
    Recomputer& recomputer;
    Residency& residency;
    BlockTable& table;
    RoomFinder& room;
    KernelRoom& kernel_room;
    CallMemory& memory;
    Overwrites& overwrites;
    InvariantWalker& walker;
  };
  explicit CallPins(const Parts& parts) : parts_(parts), core_(parts.core) {}

  // See Pager.
  runtime::Error begin(CallState& call, const OpRequest& request);
  void end(CallState& call) noexcept;
  void hold(CallState& call) noexcept;
  // Unpins and makes way for others, where no op ran: nothing is stamped.
  void leave(CallState& call) noexcept;

 private:
  // One begin() under the lock.
  struct BeginAttempt {
    std::span<const Operand> operands;
    Fence& waits;   // of the call's stream, once it has begun
    bool exclusive; // no other call may be in flight
    Shortage shortage;
  };

  // ---- the way in ----------------------------------------------------------
  runtime::Error observe(CallState& call, const OpRequest& request);
  bool beginFast(CallState& call, const std::span<const Operand>& operands,
                 Fence& waits);
  void backOut(std::span<const Operand> operands, std::size_t pinned,
               const Admission::Entry& entry,
               std::size_t shared_bytes) noexcept;
  runtime::Error beginSlow(CallState& call, std::span<const Operand> operands,
                           Fence& waits);
  Admission::Attempt tryBegin(const Locked& locked, CallState& call,
                              BeginAttempt& attempt, bool alone);
  bool gather(const Locked& locked, std::span<const Operand> operands,
              std::size_t& total_bytes);
  void pinResident(const Locked& locked);
  bool refuseLost(const Locked& locked, Shortage& shortage) const;
  bool takeRoom(const Locked& locked, CallState& call, bool& others);
  bool placeMissing(const Locked& locked, CallState& call, Shortage& shortage);
  void commit(const Locked& locked, CallState& call, Fence& waits);
  void undo(const Locked& locked, CallState& call) noexcept;

  // ---- the way out ---------------------------------------------------------
  static std::size_t unpin(Block& block) noexcept;
  void retire(CallState& call, std::size_t freed) noexcept;

  // ---- who looks at each call ----------------------------------------------
  void lookAtBegin(const CallState& call);
  void report(CallState& call) noexcept; // to a runtime that checks callers

  const Parts parts_;
  PagerCore& core_;
  std::vector<WantedBlock> wanted_; // scratch, guarded by the lock
};

} // namespace chameleon::memory
