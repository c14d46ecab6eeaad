#include "memory/spare_blocks.h"

#include <bit>
#include <thread>

#include "backend/runtime/check.h"

namespace chameleon::memory {

static_assert(SpareBlocks::kSizes == 64, "a place is a bit of a word");

void SpareBlocks::enter() noexcept {
  while (!tryEnter()) std::this_thread::yield();
}

Block* SpareBlocks::takeAll() noexcept {
  if (bytes() == 0) return nullptr;
  enter();
  Block* all = nullptr;
  for (; occupied_ != 0; occupied_ &= occupied_ - 1) {
    Place& place =
        places_[static_cast<std::size_t>(std::countr_zero(occupied_))];
    while (place.newest != nullptr) {
      Block* const block = place.newest;
      place.newest = block->next_released;
      block->next_released = all;
      all = block;
    }
    place.count = 0;
  }
  add(-bytes());
  leave();
  return all;
}

void SpareBlocks::check() noexcept {
  enter();
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < kSizes; ++i) {
    const Place& place = places_[i];
    std::uint32_t count = 0;
    for (const Block* block = place.newest; block != nullptr;
         block = block->next_released) {
      CHAMELEON_CHECK(block->rounded_bytes == place.rounded_bytes &&
                          placeOf(block->rounded_bytes) == i &&
                          block->pins() == 0,
                      "a spare block in a wrong place, or pinned");
      bytes += block->rounded_bytes;
      ++count;
    }
    CHAMELEON_CHECK(count == place.count && count <= kMaxPerSize &&
                        (occupied_ >> i & 1) == (count > 0 ? 1u : 0u),
                    "spare blocks are miscounted");
  }
  CHAMELEON_CHECK(bytes == this->bytes(), "bytes of spare blocks are wrong");
  leave();
}

} // namespace chameleon::memory
