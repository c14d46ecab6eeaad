// Room for what a kernel will allocate, made before it begins: while its
// operands can still be moved out of the way. How much that is, is learned of
// each kind of op (OpMemory) and, where it must lie in one piece, of each op
// with its operands' sizes (LearnedSpans).
//
// Thread safety: methods with a Locked need the pager's lock; the others may be
// called by any thread. Nothing here waits for other calls: false says that
// there may be room when they have ended.
#pragma once

#include <cstddef>

#include "memory/call/call_memory.h"
#include "memory/call/learned_spans.h"
#include "memory/pager_call.h"
#include "memory/pager_core.h"
#include "memory/residency.h"
#include "memory/room/compaction.h"
#include "memory/room/room_finder.h"

namespace chameleon::memory {

class KernelRoom {
 public:
  // REQUIRES: all outlive it.
  KernelRoom(PagerCore& core, Residency& residency, BlockTable& table,
             Compaction& compaction, RoomFinder& room, CallMemory& memory)
      : core_(core),
        residency_(residency),
        table_(table),
        compaction_(compaction),
        room_(room),
        memory_(memory) {}

  // ---- how much ------------------------------------------------------------
  // The op ended well before, with operands of that size or larger ones.
  static bool hasSeen(const OpMemory* memory, std::size_t bytes) noexcept {
    return memory == nullptr ||
           (memory->known.load(std::memory_order_acquire) &&
            bytes <= memory->operand_bytes.load(std::memory_order_relaxed));
  }
  // The room to commit for what the kernel will allocate.
  static std::size_t roomExpected(const OpMemory* memory, std::size_t bytes) {
    if (memory == nullptr) return 0;
    if (!hasSeen(memory, bytes)) [[unlikely]]
      return roomGuessed(*memory, bytes);
    return ExtentMap::round(memory->peak_bytes.load(std::memory_order_relaxed));
  }
  // The piece to take where it must lie in one.
  std::size_t holeExpected(const CallState& call) const noexcept;
  // So much room lies in one large piece: see makeLargeRoom().
  bool isLarge(const CallState& call, std::size_t operand_bytes,
               std::size_t room_bytes) const noexcept {
    const std::size_t large = residency_.largeRoomBytes();
    return room_bytes > large && span(call, operand_bytes) > large;
  }
  // What the kernel will allocate at a time beside operands of that size, where
  // that was seen; else 0.
  std::size_t seen(const CallState& call,
                   std::size_t operand_bytes) const noexcept {
    const std::size_t known = span(call, operand_bytes);
    if (known > 0 || call.memory == nullptr) return known;
    return call.memory->peakAt(operand_bytes);
  }
  // The call ends: what it allocated is what the next one will.
  void learn(CallState& call) noexcept;

  // ---- make it -------------------------------------------------------------
  // REQUIRES: the call's operands are pinned, or placed. `alone`: no other call
  // is in flight.
  bool makeRoomForKernel(const Locked& locked, CallState& call, bool alone,
                         Shortage& shortage) REQUIRES(pager_lock);

 private:
  // An op's quick token does not have the sizes of its lists: their bytes tell.
  static profiler::QuickToken keyOf(const CallState& call,
                                    std::size_t operand_bytes) noexcept {
    profiler::QuickHasher hasher(call.hole.quick);
    hasher.add(operand_bytes);
    return hasher.token();
  }
  std::size_t span(const CallState& call,
                   std::size_t operand_bytes) const noexcept {
    return spans_.find(keyOf(call, operand_bytes));
  }
  static std::size_t roomGuessed(const OpMemory& memory, std::size_t bytes);
  std::size_t roomForUnseen(std::size_t guess,
                            const CallState& call) const noexcept;
  std::size_t roomLeft(const CallState& call) const noexcept;
  bool makeRoomToChoose(const Locked& locked, CallState& call, bool alone,
                        Shortage& shortage) REQUIRES(pager_lock);
  bool reserveAll(const Locked& locked, CallState& call, bool alone,
                  Shortage& shortage) REQUIRES(pager_lock);
  bool takeAlone(const Locked& locked, CallState& call, bool alone) noexcept
      REQUIRES(pager_lock);
  void makeLargeRoom(const Locked& locked, std::size_t bytes,
                     StreamIndex stream, Shortage& shortage)
      REQUIRES(pager_lock);

  PagerCore& core_;
  Residency& residency_;
  BlockTable& table_;
  Compaction& compaction_;
  RoomFinder& room_;
  CallMemory& memory_;
  LearnedSpans spans_; // no lock
};

[[gnu::always_inline]] inline void KernelRoom::learn(CallState& call) noexcept {
  call.failures = call.failed ? call.failures : 0;
  if (call.memory == nullptr) return;
  raise(call.memory->operand_bytes, call.operand_bytes);
  // The peak, if its pieces may lie anywhere.
  std::size_t needed = call.peak_bytes;
  bool is_span = needed > residency_.largeRoomBytes();
  if (call.must_not_fail && needed > 0) {
    needed = call.hole.layout.span();
    is_span = true;
  }
  if (is_span && call.hole.quick != 0) {
    spans_.raise(keyOf(call, call.operand_bytes), needed);
  }
  raise(call.memory->peak_bytes, needed);
  if (!call.failed && !call.memory->known.load(std::memory_order_relaxed)) {
    call.memory->known.store(true, std::memory_order_release);
  }
}

} // namespace chameleon::memory
