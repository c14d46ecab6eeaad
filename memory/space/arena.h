// The device memory that blocks and in-call allocations live in: one reserved
// address range, mapped in large units up to the budget. One
// implementation for every runtime.
//
// The range is opened from below, unit by unit, when no hole in what is open is
// large enough. So what is mapped is not much more than what is used at a time,
// and once steps repeat nothing is mapped any more.
//
// Thread safety: none, but for range().contains(); the pager's lock guards the
// rest.
//
// Freed extents carry the fence after which they may be reused; the caller
// makes its *stream* wait for the fence of what it gets (extent->fence), never
// the host.
//
// All bytes are counted as rounded (ExtentMap::round). Invariants: E1..E6 of
// extent_map.h;
//   A1 the bytes of every extent in use are mapped, and none above the budget
//      rounded up to the runtime's commit granularity;
//   A2 usedBytes() <= budgetBytes() at all times;
//   A3 blockBytes() + inCallBytes() + foreignBytes() == usedBytes();
//   A4 find() knows exactly the kInCall and kForeign extents.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "backend/runtime/device_runtime.h"
#include "memory/space/extent_index.h"
#include "memory/space/extent_map.h"
#include "memory/space/freed_room.h"
#include "memory/space/mapped_range.h"
#include "memory/streams/stream_positions.h"

namespace chameleon::memory {

class Arena {
 public:
  // Reserves `range_bytes` of address space (at least the largest budget that
  // will ever be asked for). Maps nothing yet.
  static runtime::Result<std::unique_ptr<Arena>> create(
      runtime::DeviceRuntime& runtime, StreamPositions& streams,
      std::size_t range_bytes, std::size_t budget_bytes);
  // Host-waits for everything submitted, then gives the range back.
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Null: no hole of that size within the budget (lastError().ok()), or the
  // runtime could not map memory (lastError() says why). An extent for a block
  // gets its `block` from the caller.
  //
  // `stream` will write there first: where parts of the free space are still
  // in use by earlier work, room is taken for which it waits least.
  Extent* allocate(std::size_t bytes, End end, ExtentUse use,
                   StreamIndex stream = kFirstCompute);
  // The same in a hole, for a block. REQUIRES: the bytes are in it.
  Extent* allocateAt(Extent* hole, std::size_t offset, std::size_t bytes);
  // The hole that these bytes lie in. Null: some are in use.
  Extent* holeAround(std::size_t offset, std::size_t bytes) noexcept;
  // Those bytes, which are free / what is in use ends there.
  Extent* allocateAt(std::size_t offset, std::size_t bytes, ExtentUse use);
  std::size_t usedEnd() const noexcept;
  // How late `stream` can write to all of a hole: 0 at once, else the more the
  // later it was freed.
  std::uint64_t waits(const Extent& hole, StreamIndex stream) const {
    return apart_ ? freed_.youngest(hole.offset, hole.bytes, stream) : 0;
  }
  // `fence`: work that still uses the bytes (what is left in extent->fence is
  // kept too). Callers with no such work pass an empty fence. Returns the hole
  // that the extent is part of now.
  Extent* free(Extent* extent, const Fence& fence);

  // Parts of an in-call extent (ReservedHole), see ExtentMap.
  Extent* split(Extent* extent, std::size_t bytes);
  void join(Extent* extent);
  // Who gets the extent's bytes next waits for `fence` as well.
  void addFence(Extent* extent, const Fence& fence);
  // An extent's bytes hold no value any more / are about to be written.
  void discarded(const Extent& extent) noexcept {
    discarded(extent.offset, extent.bytes);
  }
  void revived(const Extent& extent) noexcept {
    revived(extent.offset, extent.bytes);
  }

  // From now on free space keeps its fences piece by piece. It costs some time,
  // so it begins when blocks first leave.
  void keepFreedApart() noexcept { apart_ = true; }

  // A kInCall or kForeign extent becomes `block`'s / a kInCall one outlives
  // its call.
  void adopt(Extent* extent, Block* block);
  void makeForeign(Extent* extent);
  // A block's extent outlives the call as well; it is no block's any more.
  void orphan(Extent* extent);
  // The kInCall or kForeign extent that starts at `address`, else null.
  Extent* find(const void* address) const noexcept;

  std::byte* address(const Extent& extent) const noexcept {
    return range_.at(extent.offset);
  }
  const MappedRange& range() const noexcept { return range_; }

  // Grows or shrinks what may be used. False, and nothing changed: extents in
  // use lie above the new border (evict or slide them first), the range is
  // smaller than that, or the runtime failed (then lastError() says so).
  // Unmaps what is no longer needed after host-waiting for its fences
  // (rare, user-driven).
  bool setBudget(std::size_t budget_bytes);

  std::size_t budgetBytes() const noexcept { return budget_bytes_; }
  std::size_t openBytes() const noexcept { return extents_.limit(); }
  std::size_t usedBytes() const noexcept { return extents_.usedBytes(); }
  std::size_t freeBytes() const noexcept { // open or not
    return extents_.freeBytes() + closedBytes();
  }
  std::size_t blockBytes() const noexcept {
    return usedBytes() - in_call_bytes_ - foreign_bytes_;
  }
  std::size_t inCallBytes() const noexcept { return in_call_bytes_; }
  std::size_t foreignBytes() const noexcept { return foreign_bytes_; }
  std::size_t largestFree() const noexcept {
    return std::max(extents_.largestFree(), bytesAtTop());
  }
  ExtentMap& extents() noexcept { return extents_; } // to walk, not to change
  const runtime::Error& lastError() const noexcept { return last_error_; }
  void check() const;

  // Moves a kBlock extent down, to `offset` in the hole before it, by a copy on
  // the move stream, which first waits for `uses` and for the fences of both.
  // Returns the copy's position: the block's last write, and the fence of the
  // extent and of the hole that follows it. The block's device_address is the
  // caller's to update. On an Error nothing has moved.
  // May block the host on a runtime that moves inline.
  // REQUIRES: extent->previous is free, and `offset` in it.
  runtime::Result<Position> slideDown(Extent* extent, std::size_t offset,
                                      const Fence& uses);

  // Moves a kBlock extent's bytes to `target`, an extent of the same size, by a
  // copy on the move stream, which first waits for `uses` and for the fences of
  // both. `extent` is nobody's afterwards, until the caller gives it back; its
  // fence is the copy. Else as slideDown().
  runtime::Result<Position> move(Extent* extent, Extent* target,
                                 const Fence& uses);

 private:
  Arena(runtime::DeviceRuntime& runtime, StreamPositions& streams,
        std::byte* base, std::size_t range_bytes);
  // Within the budget, of what is closed / of that and the hole below it.
  std::size_t closedBytes() const noexcept {
    return ExtentMap::roundDown(budget_bytes_) - extents_.limit();
  }
  std::size_t bytesAtTop() const noexcept;
  // Opens so much that `bytes` fit below the new border, or all there is.
  // False: all is open.
  bool openMore(std::size_t bytes);
  Extent* findOpen(std::size_t bytes, End end, ExtentUse use,
                   StreamIndex stream);
  Extent* choose(std::size_t bytes, End end, ExtentUse use, StreamIndex stream);
  Extent* takeUp(Extent* extent);
  runtime::Error submitMove(const runtime::Copy& copy);
  runtime::Error awaitClosed();
  void discarded(std::size_t offset, std::size_t bytes) noexcept;
  void revived(std::size_t offset, std::size_t bytes) noexcept;

  runtime::DeviceRuntime& runtime_;
  StreamPositions& streams_;
  const bool checks_callers_;
  MappedRange range_;
  ExtentMap extents_;
  ExtentIndex index_; // kInCall and kForeign
  FreedRoom freed_;   // empty while !apart_
  bool apart_ = false;

  std::size_t budget_bytes_ = 0;
  std::size_t in_call_bytes_ = 0;
  std::size_t foreign_bytes_ = 0;
  runtime::Error last_error_;
};

} // namespace chameleon::memory
