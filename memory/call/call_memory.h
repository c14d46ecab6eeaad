// What a running call allocates inside its kernel: outputs, workspaces,
// temporaries. A spare block of the right size needs no lock; anything else is
// an extent of the arena, cut out of the call's hole where it holds one.
//
// Between take and adoption a spare block is pinned by the call that took it,
// so it is found in its place whatever others do; its bytes are part of the
// call's room. Only the call's own thread touches CallState::spares.
//
// Thread safety: methods with a Locked need the pager's lock; the others take
// it where they need it. free() may be called by any thread, the rest by the
// call's own. Nothing here waits for other calls.
#pragma once

#include <atomic>
#include <cstddef>

#include "memory/block_table.h"
#include "memory/pager_call.h"
#include "memory/pager_core.h"
#include "memory/residency.h"
#include "memory/room/room_finder.h"

namespace chameleon::memory {

class CallMemory {
 public:
  // REQUIRES: all outlive it.
  CallMemory(PagerCore& core, Residency& residency, BlockTable& table,
             RoomFinder& room)
      : core_(core), residency_(residency), table_(table), room_(room) {}

  // See Pager.
  runtime::Result<std::byte*> allocate(CallState& call, std::size_t bytes);
  std::size_t largestInCall(const CallState& call) const;
  void free(CallState* call, std::byte* address) noexcept;
  runtime::Result<Block*> adopt(CallState& call, std::byte* address,
                                std::size_t bytes);
  // The call ends: what it still has allocated outlives it.
  void makeForeign(CallState& call, Position position) noexcept;

  // ---- the call's hole -----------------------------------------------------
  void reserveHole(const Locked& locked, CallState& call, Extent* hole) noexcept
      REQUIRES(pager_lock);
  void freeHole(const Locked& locked, CallState& call) noexcept
      REQUIRES(pager_lock);

  // ---- extents that do not move between calls ------------------------------
  // Foreign extents, and kept pins.
  std::size_t fixedExtents() const noexcept {
    return fixed_extents_.load(std::memory_order_relaxed);
  }
  void addFixed(std::size_t count) noexcept {
    fixed_extents_.fetch_add(count, std::memory_order_relaxed);
  }
  void removeFixed(std::size_t count) noexcept {
    fixed_extents_.fetch_sub(count, std::memory_order_relaxed);
  }

 private:
  friend class InvariantWalker;

  // ---- spare blocks, without the lock --------------------------------------
  Block* takeSpare(CallState& call, std::size_t rounded_bytes) noexcept;
  runtime::Error orderSpare(CallState& call, Block& block);
  static std::size_t indexOfSpare(const CallState& call,
                                  const std::byte* address) noexcept;
  static Block& removeSpare(CallState& call, std::size_t index) noexcept;
  void freeSpare(CallState& call, std::size_t index) noexcept;
  Block& adoptSpare(CallState& call, std::size_t index,
                    std::size_t bytes) noexcept;
  void outliveSpare(const Locked& locked, CallState& call, Block& block,
                    Position position) noexcept REQUIRES(pager_lock);
  void freeElsewhere(const Locked& locked, std::byte* address) noexcept
      REQUIRES(pager_lock);

  // ---- extents -------------------------------------------------------------
  runtime::Result<std::byte*> allocateExtent(CallState& call,
                                             std::size_t rounded,
                                             std::size_t offset);
  Extent* cutHole(const Locked& locked, CallState& call, std::size_t offset,
                  std::size_t bytes) REQUIRES(pager_lock);
  void giveBack(const Locked& locked, CallState& call, Extent* extent,
                const Fence& fence) noexcept REQUIRES(pager_lock);
  void list(const Locked& locked, CallState& call, Extent* extent)
      REQUIRES(pager_lock);
  void forget(const Locked& locked, CallState& call, std::size_t index) noexcept
      REQUIRES(pager_lock);
  static std::size_t indexOf(const CallState& call,
                             const Extent* extent) noexcept;
  void unlist(const Locked& locked, CallState& call) noexcept
      REQUIRES(pager_lock);
  CallState& ownerOf(const Locked& locked, CallState* hint,
                     const Extent* extent) noexcept REQUIRES(pager_lock);

  // ---- results -------------------------------------------------------------
  void adopted(CallState& call, Block& block) noexcept;
  void introduce(CallState& call, Block& block) noexcept;

  PagerCore& core_;
  Residency& residency_;
  BlockTable& table_;
  RoomFinder& room_;
  std::atomic<std::size_t> fixed_extents_{0};

  // With in-call extents.
  CallState* calls_ GUARDED_BY(pager_lock) = nullptr;
  // Of all calls' reserved holes.
  std::size_t hole_bytes_ GUARDED_BY(pager_lock) = 0;
};

} // namespace chameleon::memory
