// Host memory for evicted blocks: one range of addresses of which the budget
// may be used, exact sizes (rounded to 512 bytes, never to a power of two), a
// hard cap. What extents touch is obtained from the runtime in slabs (pinned
// where the runtime can), each a unit of the range at a fixed place, or a part
// of one; extents lie across their borders as they like.
//
// A request gets the hole that fits best of those whose bytes are there
// already, as low as it can in it, so that upper units stay empty. A slab
// without any extent in use is given back on trim(), at the end of a step where
// the last steps did not need it (giveBackUnneeded()), where the budget is
// lowered below it, and where the machine refuses another one.
//
// Thread safety: none; the pager's lock guards it. An extent's fence says which
// copies still read or write its bytes: the copy stream that fills a new
// extent waits for extent->fence first. Free bytes keep theirs piece by piece,
// so that nobody waits for copies of a hole's other bytes.
//
// Invariants: E1..E6 of extent_map.h;
//   H1 reservedBytes() is the sum of the slabs, and <= budgetBytes();
//   H2 usedBytes() is the sum of the extents in use;
//   H3 extents in use lie in slabs;
//   H4 slabs do not overlap, and each lies in one unit, below the budget;
//   H5 extents that are free have no fence, and bytes in use no earlier work
//      but their extent's.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "backend/runtime/device_runtime.h"
#include "memory/space/extent_map.h"
#include "memory/space/freed_room.h"
#include "memory/streams/stream_positions.h"

namespace chameleon::memory {

class HostPool {
 public:
  static constexpr std::size_t kUnitBytes = std::size_t{64} << 20;
  // More than machines have: a budget may grow to that.
  static constexpr std::size_t kRangeBytes = std::size_t{1} << 40;

  // Reserves addresses, for the budget, for all memory that the machine has,
  // and for kRangeBytes; a half, a quarter ... of it where the system refuses.
  // What a budget has above that cannot be used.
  // REQUIRES: a unit has whole pages.
  static runtime::Result<std::unique_ptr<HostPool>> create(
      runtime::DeviceRuntime& runtime, StreamPositions& streams,
      std::size_t budget_bytes, std::size_t unit_bytes = kUnitBytes);
  // Host-waits for everything submitted, then gives all back.
  ~HostPool();
  HostPool(const HostPool&) = delete;
  HostPool& operator=(const HostPool&) = delete;

  struct Place {
    Extent* extent = nullptr;
    std::byte* address = nullptr;
  };
  // Null: no hole of that size within the budget (lastError().ok()), or the
  // runtime has no memory (lastError() says why). The caller sets the extent's
  // `block`, once a block has its bytes there. Host-waits for the last copies
  // of slabs that are given back because the machine refuses others.
  Place allocate(std::size_t bytes);
  // `fence`: copies that still use the bytes.
  void free(Extent* extent, const Fence& fence);
  std::byte* address(const Extent& extent) const noexcept {
    return base_ + extent.offset;
  }
  // Moves an extent in use, with its bytes, down to where the hole before it
  // begins, after a host wait for `uses`, copies from and to its bytes, and for
  // the fence of the hole. What then is free nothing uses any more. False, and
  // nothing has moved: lastError() says why.
  // REQUIRES: extent->previous is free.
  bool slideDown(Extent* extent, const Fence& uses);

  // Bytes obtained from the runtime never exceed the budget. What lies above a
  // lower one is given back; where a slab in use is cut, after a host wait for
  // all copies. False, and nothing has changed: an extent in use lies above
  // (lastError().ok()), or waiting failed.
  bool setBudget(std::size_t budget_bytes);
  // From now on the budget grows by `share` of what the machine's memory
  // grows: some machines get theirs as it is used. Looked up where the cap is
  // reached. 0, as at first: it is fixed.
  void followMachine(double share);
  void trim(); // gives back every slab without an extent in use
  // Gives back such slabs, the upper ones first, while more than `keep_bytes`
  // are left: `most_bytes` at most, and none that a copy still uses. The host
  // does not wait.
  void giveBackUnneeded(std::size_t keep_bytes, std::size_t most_bytes);

  std::size_t budgetBytes() const noexcept { return budget_bytes_; }
  // What of a budget can be used.
  std::size_t usableBytes(std::size_t budget_bytes) const noexcept;
  std::size_t usedBytes() const noexcept { return extents_.usedBytes(); }
  std::size_t freeBytes() const noexcept { return extents_.freeBytes(); }
  std::size_t reservedBytes() const noexcept { return reserved_bytes_; }
  std::size_t peakUsedBytes() const noexcept { return peak_used_bytes_; }
  void resetPeak() noexcept { peak_used_bytes_ = usedBytes(); }
  // The most bytes in use at a time since it was last asked.
  std::size_t takeStepPeak() noexcept {
    return std::exchange(step_peak_bytes_, usedBytes());
  }
  std::size_t slabCount() const noexcept { return slabs_.size(); }
  const ExtentMap& extents() const noexcept { return extents_; } // to walk
  const runtime::Error& lastError() const noexcept { return last_error_; }
  void check() const;

 private:
  static constexpr std::size_t kNone = ~std::size_t{0};
  using Slabs = std::map<std::size_t, std::size_t>; // bytes, by offset

  HostPool(runtime::DeviceRuntime& runtime, StreamPositions& streams,
           std::byte* base, std::size_t range_bytes, std::size_t unit_bytes);
  Extent* cut(std::size_t bytes);
  std::size_t placeIn(const Extent& hole, std::size_t bytes) const noexcept;
  Slabs::const_iterator firstSlabAbove(std::size_t offset) const noexcept;
  void putBack(Extent* extent);
  runtime::Error awaitLast(std::size_t offset, std::size_t bytes);
  runtime::Error obtain(std::size_t offset, std::size_t bytes);
  bool budgetGrows();
  std::vector<std::size_t> idleSlabs() const;
  runtime::Error giveBackIdle();
  runtime::Error giveBackAbove(std::size_t limit_bytes);
  Slabs::iterator giveBack(Slabs::iterator slab, std::size_t kept_bytes);

  runtime::DeviceRuntime& runtime_;
  StreamPositions& streams_;
  std::byte* const base_;
  const std::size_t range_bytes_;
  const std::size_t unit_bytes_;
  ExtentMap extents_; // its limit is what of the budget can be used
  FreedRoom freed_;   // extents that are free carry no fence
  Slabs slabs_;
  std::size_t budget_bytes_ = 0;
  double share_ = 0;
  std::size_t machine_bytes_ = 0; // when the budget was made of it
  std::size_t reserved_bytes_ = 0;
  std::size_t peak_used_bytes_ = 0;
  std::size_t step_peak_bytes_ = 0;
  runtime::Error last_error_;
};

} // namespace chameleon::memory
