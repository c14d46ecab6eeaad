// Extents in use by their address: how the arena finds what a kernel frees.
//
// Tests: extent_map_random_test.cpp.
#pragma once

#include <cstddef>
#include <vector>

#include "memory/space/extent.h"

namespace chameleon::memory {

// Extents by the offset at which they start: open addressing, linear probing.
// Extents in it must not move. Thread safety: none; the arena's owner locks.
class ExtentIndex {
 public:
  ExtentIndex();
  void insert(Extent* extent);
  void erase(const Extent* extent) noexcept;       // REQUIRES: it is in
  Extent* find(std::size_t offset) const noexcept; // null: not in
  std::size_t size() const noexcept { return size_; }

 private:
  std::size_t slotOf(std::size_t offset) const noexcept;

  std::vector<Extent*> slots_; // a power of two, at most half full
  unsigned shift_;
  std::size_t size_ = 0;
};

} // namespace chameleon::memory
