// The free extents of an ExtentMap by size: best fit, steered to either end.
//
// Up to kSmallBytes there is one class per size, a linked list kept roughly by
// address: O(1), and among equals the extent *near* the asked end is found.
// Above, eight classes per doubling are each a treap by (size, offset):
// expected O(log n) of the class, and among equals the extent *nearest* to the
// asked end is found. Either way the size found is the smallest that fits.
//
// Allocates nothing after its construction: extents are linked by their own
// `links`, and must not move, nor change offset or size, while they are in it,
// but by resize(). Thread safety: none; the map's owner locks. What is found
// depends on the sequence of calls only, never on addresses or time.
//
// Tests: extent_map_random_test.cpp.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "memory/space/extent.h"

namespace chameleon::memory {

class FreeIndex {
 public:
  static constexpr std::size_t kSmallBytes = std::size_t{64} << 10;

  // For extents of at most `capacity_bytes`.
  explicit FreeIndex(std::size_t capacity_bytes);

  // REQUIRES: the extent is free and not in the index / is in it.
  void insert(Extent* extent) noexcept;
  void remove(Extent* extent) noexcept;
  // Changes the place and size of an extent that is in the index.
  void resize(Extent* extent, std::size_t offset, std::size_t bytes) noexcept;

  // The smallest extent of at least `bytes`; of several, one at `end`. Null:
  // all are smaller. REQUIRES: a multiple of Extent::kAlignment.
  Extent* find(std::size_t bytes, End end) const noexcept;
  std::size_t largestBytes() const noexcept; // 0: it is empty
  // Calls visit(extent) for each extent of at least `bytes`, by size class, in
  // no order within a class, until one says false.
  template <typename Visit>
  void visit(std::size_t bytes, Visit&& visit) const;
  // The same from the largest class down.
  template <typename Visit>
  void visitFromLargest(Visit&& visit) const;

  // Aborts with a sentence when a list or a tree is broken. Returns how many
  // extents are in the index. O(extents).
  std::size_t check() const;

 private:
  struct List { // links[0]: towards the head, links[1]: towards the tail
    Extent* head = nullptr;
    Extent* tail = nullptr;
  };

  static constexpr std::size_t kSmallClasses =
      kSmallBytes / Extent::kAlignment + 1;
  static constexpr std::size_t kClassesPerDoubling = 8;
  static constexpr std::size_t kClasses =
      kSmallClasses + kClassesPerDoubling * (64 - 16);
  static std::size_t sizeClass(std::size_t bytes) noexcept;

  std::size_t firstOccupied(std::size_t size_class) const noexcept;
  std::size_t lastOccupied(std::size_t below) const noexcept; // kClasses: none
  // Of one class. False: a visit said so.
  template <typename Visit>
  bool visitClass(std::size_t size_class, std::size_t bytes,
                  Visit& visit) const;
  Extent* findLarge(std::size_t size_class, std::size_t bytes,
                    End end) const noexcept;
  void insertLarge(Extent* extent) noexcept;
  void removeLarge(Extent* extent) noexcept;
  bool staysAlone(const Extent* extent, std::size_t bytes) const noexcept;
  template <typename Visit>
  static bool visitTree(Extent* node, std::size_t bytes, Visit& visit);

  std::array<std::uint64_t, (kClasses + 63) / 64> occupied_{};
  std::array<List, kSmallClasses> lists_{};
  std::vector<Extent*> roots_; // of the large classes up to the capacity's
};

inline std::size_t FreeIndex::sizeClass(std::size_t bytes) noexcept {
  if (bytes <= kSmallBytes) return bytes / Extent::kAlignment;
  constexpr unsigned kSmallBits = std::bit_width(kSmallBytes) - 1;
  constexpr unsigned kStepBits = std::bit_width(kClassesPerDoubling) - 1;
  const unsigned bits = static_cast<unsigned>(std::bit_width(bytes)) - 1;
  const std::size_t step =
      (bytes >> (bits - kStepBits)) & (kClassesPerDoubling - 1);
  return kSmallClasses + (bits - kSmallBits) * kClassesPerDoubling + step;
}

inline std::size_t FreeIndex::firstOccupied(
    std::size_t size_class) const noexcept {
  std::size_t word = size_class / 64;
  if (word >= occupied_.size()) return kClasses;
  std::uint64_t bits = occupied_[word] & (~std::uint64_t{0} << size_class % 64);
  while (bits == 0) {
    if (++word == occupied_.size()) return kClasses;
    bits = occupied_[word];
  }
  return word * 64 + static_cast<std::size_t>(std::countr_zero(bits));
}

inline std::size_t FreeIndex::lastOccupied(std::size_t below) const noexcept {
  std::size_t word = below / 64;
  std::uint64_t bits =
      word < occupied_.size()
          ? occupied_[word] & ((std::uint64_t{1} << below % 64) - 1)
          : 0;
  while (bits == 0) {
    if (word == 0) return kClasses;
    bits = occupied_[--word];
  }
  return word * 64 + 63 - static_cast<std::size_t>(std::countl_zero(bits));
}

inline Extent* FreeIndex::find(std::size_t bytes, End end) const noexcept {
  const std::size_t size_class = firstOccupied(sizeClass(bytes));
  if (size_class < kSmallClasses) { // all of one size
    const List& list = lists_[size_class];
    return end == End::kBottom ? list.head : list.tail;
  }
  if (size_class == kClasses) return nullptr;
  return findLarge(size_class, bytes, end);
}

// Lists are inlined where they are used; trees would only make that code slow
// to enter.
inline void FreeIndex::insert(Extent* extent) noexcept {
  if (extent->bytes > kSmallBytes) [[unlikely]] {
    insertLarge(extent);
    return;
  }
  const std::size_t size_class = extent->bytes / Extent::kAlignment;
  List& list = lists_[size_class];
  Extent* const head = list.head;
  if (head == nullptr) {
    occupied_[size_class / 64] |= std::uint64_t{1} << size_class % 64;
    extent->links = {};
    list = {extent, extent};
    return;
  }
  // Below the head and above the tail the address decides; what lies between
  // goes behind the head.
  if (extent->offset < head->offset) {
    extent->links = {nullptr, head};
    head->links[0] = extent;
    list.head = extent;
    return;
  }
  Extent* const before = extent->offset > list.tail->offset ? list.tail : head;
  Extent* const after = before->links[1];
  extent->links = {before, after};
  before->links[1] = extent;
  (after != nullptr ? after->links[0] : list.tail) = extent;
}

inline void FreeIndex::remove(Extent* extent) noexcept {
  if (extent->bytes > kSmallBytes) [[unlikely]] {
    removeLarge(extent);
    return;
  }
  const std::size_t size_class = extent->bytes / Extent::kAlignment;
  List& list = lists_[size_class];
  Extent* const before = extent->links[0];
  Extent* const after = extent->links[1];
  (before != nullptr ? before->links[1] : list.head) = after;
  (after != nullptr ? after->links[0] : list.tail) = before;
  if (list.head == nullptr) {
    occupied_[size_class / 64] &= ~(std::uint64_t{1} << size_class % 64);
  }
}

inline void FreeIndex::resize(Extent* extent, std::size_t offset,
                              std::size_t bytes) noexcept {
  const bool stays = staysAlone(extent, bytes);
  if (!stays) remove(extent);
  extent->offset = offset;
  extent->bytes = bytes;
  if (!stays) insert(extent);
}

// True for a large hole that is alone in its class and stays there, such as
// the rest of the range that small extents are cut from: its tree is right
// whatever its place and size.
inline bool FreeIndex::staysAlone(const Extent* extent,
                                  std::size_t bytes) const noexcept {
  if (bytes <= kSmallBytes || extent->bytes <= kSmallBytes) return false;
  const std::size_t size_class = sizeClass(bytes);
  return size_class == sizeClass(extent->bytes) &&
         roots_[size_class - kSmallClasses] == extent &&
         extent->links[0] == nullptr && extent->links[1] == nullptr;
}

template <typename Visit>
void FreeIndex::visit(std::size_t bytes, Visit&& visit) const {
  for (std::size_t size_class = firstOccupied(sizeClass(bytes));
       size_class != kClasses; size_class = firstOccupied(size_class + 1)) {
    if (!visitClass(size_class, bytes, visit)) return;
  }
}

template <typename Visit>
void FreeIndex::visitFromLargest(Visit&& visit) const {
  for (std::size_t size_class = lastOccupied(kClasses); size_class != kClasses;
       size_class = lastOccupied(size_class)) {
    if (!visitClass(size_class, 0, visit)) return;
  }
}

template <typename Visit>
bool FreeIndex::visitClass(std::size_t size_class, std::size_t bytes,
                           Visit& visit) const {
  if (size_class >= kSmallClasses) {
    return visitTree(roots_[size_class - kSmallClasses], bytes, visit);
  }
  for (Extent* extent = lists_[size_class].head; extent != nullptr;
       extent = extent->links[1]) {
    if (!visit(extent)) return false;
  }
  return true;
}

template <typename Visit>
bool FreeIndex::visitTree(Extent* node, std::size_t bytes, Visit& visit) {
  for (; node != nullptr; node = node->links[1]) {
    if (node->bytes < bytes) continue;
    if (!visitTree(node->links[0], bytes, visit) || !visit(node)) return false;
  }
  return true;
}

} // namespace chameleon::memory
