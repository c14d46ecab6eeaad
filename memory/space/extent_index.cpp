#include "memory/space/extent_index.h"

#include <bit>
#include <cstdint>
#include <utility>

#include "backend/runtime/check.h"

namespace chameleon::memory {
namespace {

constexpr std::size_t kFirstSlots = 64;

} // namespace

ExtentIndex::ExtentIndex()
    : slots_(kFirstSlots),
      shift_(64 - static_cast<unsigned>(std::countr_zero(kFirstSlots))) {}

std::size_t ExtentIndex::slotOf(std::size_t offset) const noexcept {
  // Fibonacci hashing: the product's top bits are the best mixed ones.
  return (offset / Extent::kAlignment * 0x9e3779b97f4a7c15ULL) >> shift_;
}

void ExtentIndex::insert(Extent* extent) {
  if ((size_ + 1) * 2 > slots_.size()) {
    const std::vector<Extent*> old =
        std::exchange(slots_, std::vector<Extent*>(slots_.size() * 2));
    --shift_;
    size_ = 0;
    for (Extent* other : old) {
      if (other != nullptr) insert(other);
    }
  }
  const std::size_t mask = slots_.size() - 1;
  std::size_t slot = slotOf(extent->offset);
  while (slots_[slot] != nullptr) slot = (slot + 1) & mask;
  slots_[slot] = extent;
  ++size_;
}

void ExtentIndex::erase(const Extent* extent) noexcept {
  const std::size_t mask = slots_.size() - 1;
  std::size_t hole = slotOf(extent->offset);
  while (slots_[hole] != extent) {
    CHAMELEON_CHECK(slots_[hole] != nullptr, "erased extent is not indexed");
    hole = (hole + 1) & mask;
  }
  // Moves later members of the run back, so that no probe ends too early.
  for (std::size_t slot = (hole + 1) & mask; slots_[slot] != nullptr;
       slot = (slot + 1) & mask) {
    const std::size_t home = slotOf(slots_[slot]->offset);
    if (((slot - home) & mask) < ((slot - hole) & mask)) continue;
    slots_[hole] = slots_[slot];
    hole = slot;
  }
  slots_[hole] = nullptr;
  --size_;
}

Extent* ExtentIndex::find(std::size_t offset) const noexcept {
  const std::size_t mask = slots_.size() - 1;
  for (std::size_t slot = slotOf(offset); slots_[slot] != nullptr;
       slot = (slot + 1) & mask) {
    if (slots_[slot]->offset == offset) return slots_[slot];
  }
  return nullptr;
}

} // namespace chameleon::memory
