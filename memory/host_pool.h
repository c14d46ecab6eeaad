// Host memory for evicted blocks: slabs from the runtime (pinned where the
// runtime can), exact sizes (rounded to 512 bytes, never to a power of two), a
// hard cap. A slab without any extent in use is given back when another is
// needed or on trim().
//
// The slab with the smallest largest hole that is large enough serves a
// request, so emptier slabs stay empty; inside a slab it is best fit. Finding
// it is one pass over the slabs' largest holes (a flat array; 64 GiB are 1,024
// slabs), which is nothing beside the copy that follows.
//
// Thread safety: none; the pager's lock guards it. An extent's fence says which
// copies still read or write its bytes: the copy stream that fills a new
// extent waits for extent->fence first.
//
// Invariants: E1..E6 of extent_map.h in every slab;
//   H1 reservedBytes() is the sum of the slabs, and <= budgetBytes();
//   H2 usedBytes() is the sum of the extents in use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "backend/runtime/device_runtime.h"
#include "memory/extent_map.h"
#include "memory/stream_positions.h"

namespace chameleon::memory {

class HostPool {
 public:
  static constexpr std::size_t kSlabBytes = std::size_t{64} << 20;

  HostPool(runtime::DeviceRuntime& runtime, StreamPositions& streams,
           std::size_t budget_bytes, std::size_t slab_bytes = kSlabBytes);
  // Host-waits for everything submitted, then gives the slabs back.
  ~HostPool();
  HostPool(const HostPool&) = delete;
  HostPool& operator=(const HostPool&) = delete;

  struct Place {
    Extent* extent = nullptr;
    std::byte* address = nullptr;
  };
  // Null: the cap is reached (lastError().ok()) or the runtime has no memory
  // (lastError() says why). May host-wait for copies that still use an empty
  // slab which has to make room for one of another size.
  Place allocate(std::size_t bytes);
  // `fence`: copies that still use the bytes.
  void free(Extent* extent, const Fence& fence);
  std::byte* address(const Extent& extent) const noexcept;

  // Slab bytes obtained from the runtime never exceed the budget; empty slabs
  // are given back for that. False when slabs in use need more; nothing
  // changed.
  bool setBudget(std::size_t budget_bytes);
  // From now on the budget grows by `share` of what the machine's memory
  // grows: some machines get theirs as it is used. Looked up where the cap is
  // reached. 0, as at first: it is fixed.
  void followMachine(double share);
  void trim(); // gives back every empty slab
  // Gives back empty slabs that no copy uses any more, while more than
  // `keep_bytes` are left, and `most_bytes` at most. The host does not wait.
  void giveBackIdle(std::size_t keep_bytes, std::size_t most_bytes);

  std::size_t budgetBytes() const noexcept { return budget_bytes_; }
  std::size_t usedBytes() const noexcept { return used_bytes_; }
  std::size_t reservedBytes() const noexcept { return reserved_bytes_; }
  std::size_t peakUsedBytes() const noexcept { return peak_used_bytes_; }
  void resetPeak() noexcept { peak_used_bytes_ = used_bytes_; }
  // The most bytes in use at a time since it was last asked.
  std::size_t takeStepPeak() noexcept {
    return std::exchange(step_peak_bytes_, used_bytes_);
  }
  std::size_t slabCount() const noexcept;
  const runtime::Error& lastError() const noexcept { return last_error_; }
  void check() const;

 private:
  struct Slab;
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};

  std::uint32_t bestSlab(std::size_t bytes) const noexcept;
  std::uint32_t addSlab(std::size_t bytes);
  bool budgetGrows();
  bool giveBack(std::uint32_t slab);
  bool giveBackUntil(std::size_t reserved_bytes);

  runtime::DeviceRuntime& runtime_;
  StreamPositions& streams_;
  const std::size_t slab_bytes_;
  std::size_t budget_bytes_;
  double share_ = 0;
  std::size_t machine_bytes_ = 0; // when the budget was made of it
  std::size_t reserved_bytes_ = 0;
  std::size_t used_bytes_ = 0;
  std::size_t peak_used_bytes_ = 0;
  std::size_t step_peak_bytes_ = 0;
  std::vector<std::unique_ptr<Slab>> slabs_; // null: given back, to be reused
  std::vector<std::size_t> largest_free_;    // of each slab, 0 for null ones
  runtime::Error last_error_;
};

} // namespace chameleon::memory
