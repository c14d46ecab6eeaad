// Free-space book-keeping over one linear range of bytes: best fit with
// coalescing, steered to either end. It knows offsets and sizes, no memory:
// the arena and the host pool put memory behind it.
// Which free extent is found, and how fast: free_index.h.
//
// Thread safety: none; its owner locks. Extents come from chunks that are
// recycled and freed with the map; in steady state nothing is allocated. Every
// decision depends on the sequence of calls only, never on addresses or time.
//
// Invariants (walked by check()):
//   E1 extents tile [0, capacity) without gap or overlap, in address order;
//   E2 no two neighbouring extents are both free;
//   E3 every free extent is in the free index, under its size;
//   E4 freeBytes() is the sum of the free extents' bytes;
//   E5 every size and offset is a multiple of kAlignment;
//   E6 one closed extent covers exactly [limit, capacity), if not empty.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "memory/space/extent.h"
#include "memory/space/free_index.h"

namespace chameleon::memory {

// What a map calls when two free extents become one and one Fence has no slot
// left for the positions of both. Afterwards `into` must cover `from` too.
struct FenceJoiner {
  void (*join)(void* context, Fence& into, const Fence& from) = nullptr;
  void* context = nullptr;
};

class ExtentMap {
 public:
  static constexpr std::size_t kAlignment = Extent::kAlignment;
  static constexpr std::size_t round(std::size_t bytes) {
    return (bytes + kAlignment - 1) & ~(kAlignment - 1);
  }
  static constexpr std::size_t roundDown(std::size_t bytes) {
    return bytes & ~(kAlignment - 1);
  }

  // All of [0, capacity) is free at first. Without a joiner, fences must never
  // overflow. `owner` is copied into every extent.
  // REQUIRES: capacity_bytes is a multiple of kAlignment.
  explicit ExtentMap(std::size_t capacity_bytes, FenceJoiner joiner = {},
                     std::uint32_t owner = 0);
  ~ExtentMap();
  ExtentMap(const ExtentMap&) = delete;
  ExtentMap& operator=(const ExtentMap&) = delete;

  // The smallest free extent of at least `bytes`, cut at `end`. It carries the
  // fence of the hole it came from. Null: no hole is large enough.
  // REQUIRES: bytes > 0; `use` is one of the three kinds in use.
  Extent* allocate(std::size_t bytes, End end, ExtentUse use);

  // The bytes [offset, offset + bytes) of a free extent, wherever they lie in
  // it. REQUIRES: multiples of kAlignment inside `hole`, else as above.
  Extent* allocateAt(Extent* hole, std::size_t offset, std::size_t bytes,
                     ExtentUse use);

  // Frees an extent in use; extent->fence must cover all work on it. Returns
  // the free extent that now holds its bytes and those of free neighbours.
  Extent* free(Extent* extent);

  // Cuts an extent in use in two, the first of `bytes`; returns the second.
  // Both carry its fence. It is no block's. REQUIRES: a multiple of kAlignment.
  Extent* split(Extent* extent, std::size_t bytes);
  // The extent in use behind it becomes a part of it, with its fence.
  void join(Extent* extent);

  // Compaction: exchanges `extent` (in use) with the free extent directly
  // before it, so that the used one moves down and keeps its identity. Returns
  // the hole that follows it, coalesced; the hole keeps its fence.
  // REQUIRES: extent->previous is free.
  Extent* slideDown(Extent* extent);

  // Moves the border between usable and closed space: bytes at or above
  // `limit_bytes` are never handed out. False (nothing changed) when an extent
  // in use lies above. The closed extent's fence covers what was closed.
  // REQUIRES: a multiple of kAlignment, at most the capacity.
  bool setLimit(std::size_t limit_bytes);

  std::size_t capacity() const noexcept { return capacity_; }
  std::size_t limit() const noexcept { return limit_; } // bytes usable
  std::size_t freeBytes() const noexcept { return free_bytes_; }
  std::size_t usedBytes() const noexcept { return limit_ - free_bytes_; }
  std::size_t largestFree() const noexcept { return index_.largestBytes(); }
  // Calls visit(extent) for each free extent of at least `bytes`, about the
  // smallest first, until one says false / for all, about the largest first.
  // It must not change the map.
  template <typename Visit>
  void visitFree(std::size_t bytes, Visit&& visit) const {
    index_.visit(round(bytes), std::forward<Visit>(visit));
  }
  template <typename Visit>
  void visitLargestFree(Visit&& visit) const {
    index_.visitFromLargest(std::forward<Visit>(visit));
  }
  Extent* first() const noexcept { return first_; }   // then follow ->next
  Extent* closed() const noexcept { return closed_; } // null: nothing closed
  Extent* last() const noexcept { // that is not closed; null: all is
    return closed_ != nullptr ? closed_->previous : last_;
  }
  std::size_t extentCount() const noexcept { return extent_count_; }

  // Aborts with a sentence when an invariant is broken. O(extents).
  void check() const;

 private:
  void merge(Fence& into, const Fence& from);
  void mergeBoth(Fence& into, const Fence& from);

  Extent* take();
  void addChunk();
  void recycle(Extent* extent) noexcept;
  void linkAfter(Extent* extent, Extent* position) noexcept;
  void unlink(Extent* extent) noexcept;

  const std::size_t capacity_;
  const FenceJoiner joiner_;
  const std::uint32_t owner_;
  std::size_t limit_;
  std::size_t free_bytes_ = 0;
  std::size_t extent_count_ = 0;
  Extent* first_ = nullptr;
  Extent* last_ = nullptr;
  Extent* closed_ = nullptr;
  Extent* recycled_ = nullptr; // by ->next
  std::vector<std::unique_ptr<Extent[]>> chunks_;
  std::size_t chunk_extents_ = 0; // in the newest chunk
  FreeIndex index_;
};

} // namespace chameleon::memory
