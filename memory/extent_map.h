// Free-space book-keeping over one linear range of bytes: best fit with
// coalescing, steered to either end. It knows offsets and sizes, no memory:
// the arena and the host pool put memory behind it.
//
// Free extents are indexed by size class. Up to kSmallBytes there is one class
// per size, a linked list kept roughly by address: O(1), and among equals the
// extent *near* the asked end is taken. Above, eight classes per doubling are
// each a treap by (size, offset): expected O(log n) of the class, and among
// equals the extent *nearest* to the asked end is taken. Either way the size
// taken is the smallest that fits.
//
// Not thread safe: its owner locks. Extents come from chunks that are recycled
// and freed with the map; in steady state nothing is allocated. Every decision
// depends on the sequence of calls only, never on addresses or time.
//
// Invariants (walked by check()):
//   E1 extents tile [0, capacity) without gap or overlap, in address order;
//   E2 no two neighbouring extents are both free;
//   E3 every free extent is in exactly one free index, under its size;
//   E4 freeBytes() is the sum of the free extents' bytes;
//   E5 every size and offset is a multiple of kAlignment;
//   E6 one closed extent covers exactly [limit, capacity), if not empty.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "memory/fence.h"

namespace chameleon::memory {

struct Block;

// Why an extent is not free.
enum class ExtentUse : std::uint8_t {
  kFree,
  kBlock,   // holds (or is about to hold) the bytes of `block`
  kInCall,  // allocated inside a running op call, not (yet) a block's
  kForeign, // outlived its call without becoming a block's: never moved
  kClosed,  // outside the current budget: holds nothing
};

// Only ExtentMap writes to an extent, except for `block` (whoever owns the
// extent in use), `fence` (see there) and `use` among the three kinds in use.
struct Extent {
  std::size_t offset = 0;
  std::size_t bytes = 0;      // rounded to kAlignment
  Extent* previous = nullptr; // neighbours in address order
  Extent* next = nullptr;
  Block* block = nullptr; // kBlock: whose; else null
  // Earlier work that still touches the bytes: a stream waits for it before
  // its work writes there. Who has made a stream wait may clear the fence, if
  // the extent is freed with a later position of that same stream.
  Fence fence;
  std::array<Extent*, 2> links{}; // private to ExtentMap's free index
  std::uint32_t owner = 0;        // as given to the ExtentMap
  ExtentUse use = ExtentUse::kFree;
};
// Two of these belong to a storage (device and host): its metadata counts.
static_assert(sizeof(Extent) <= 96);

enum class End : std::uint8_t { kBottom, kTop };

// What a map calls when two free extents become one and one Fence has no slot
// left for the positions of both. Afterwards `into` must cover `from` too.
struct FenceJoiner {
  void (*join)(void* context, Fence& into, const Fence& from) = nullptr;
  void* context = nullptr;
};

class ExtentMap {
 public:
  static constexpr std::size_t kAlignment = 512;
  static constexpr std::size_t kSmallBytes = std::size_t{64} << 10;
  static constexpr std::size_t round(std::size_t bytes) {
    return (bytes + kAlignment - 1) & ~(kAlignment - 1);
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
  std::size_t largestFree() const noexcept;
  Extent* first() const noexcept { return first_; }   // then follow ->next
  Extent* closed() const noexcept { return closed_; } // null: nothing closed
  std::size_t extentCount() const noexcept { return extent_count_; }

  // Aborts with a sentence when an invariant is broken. O(extents).
  void check() const;

 private:
  struct List { // links[0]: towards the head, links[1]: towards the tail
    Extent* head = nullptr;
    Extent* tail = nullptr;
  };

  static constexpr std::size_t kSmallClasses = kSmallBytes / kAlignment + 1;
  static constexpr std::size_t kClassesPerDoubling = 8;
  static constexpr std::size_t kClasses =
      kSmallClasses + kClassesPerDoubling * (64 - 16);
  static std::size_t sizeClass(std::size_t bytes) noexcept;

  std::size_t firstOccupied(std::size_t size_class) const noexcept;
  Extent* findFit(std::size_t bytes, End end) const noexcept;
  Extent* findLarge(std::size_t size_class, std::size_t bytes,
                    End end) const noexcept;
  void insert(Extent* extent) noexcept;
  void insertLarge(Extent* extent) noexcept;
  void remove(Extent* extent) noexcept;
  void removeLarge(Extent* extent) noexcept;
  void resize(Extent* extent, std::size_t offset, std::size_t bytes) noexcept;
  bool staysAlone(const Extent* extent, std::size_t bytes) const noexcept;
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

  std::array<std::uint64_t, (kClasses + 63) / 64> occupied_{};
  std::array<List, kSmallClasses> lists_{};
  std::vector<Extent*> roots_; // of the large classes up to the capacity's
};

} // namespace chameleon::memory
