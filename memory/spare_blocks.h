// Blocks whose storage died while they were Resident, kept whole for the next
// result of their size: extent, logical address and place in the policy stay as
// they are, so that memory inside a call costs neither a lock nor a search.
//
// Spare blocks are free memory in every figure and in every decision: the pager
// gives all of them back (takeAll) before it moves, evicts or refuses anything.
// They are Resident and unpinned like any other block, so whoever takes one
// must still pin it and may lose it to an eviction.
//
// A block is found by its rounded size. There are kSizes places for a size
// each; sizes that meet in one place displace each other, the newest wins. Of
// one size the block that came last goes first: its bytes are in the caches,
// and a run of one thread repeats.
//
// Thread safety: any method from any thread. put() and take() never wait:
// while another thread is inside they decline. takeAll() does wait, for the few
// instructions that put() and take() last; it is called under the pager's lock,
// and nothing is locked, called or allocated inside.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "memory/block.h"
#include "memory/space/extent_map.h"

namespace chameleon::memory {

class SpareBlocks {
 public:
  static constexpr std::size_t kSizes = 64;
  static constexpr std::uint32_t kMaxPerSize = 32;

  // Keeps `block`, unless there would be more than `limit_bytes` then. Returns
  // what has no place here, linked by next_released: nothing, the block itself,
  // or the blocks of another size that made way for it.
  Block* put(Block& block, std::size_t limit_bytes) noexcept;
  // A block of exactly `rounded_bytes`, or null.
  Block* take(std::size_t rounded_bytes) noexcept;
  // All of them, linked by next_released.
  Block* takeAll() noexcept;

  // Rounded, of all blocks in here.
  std::size_t bytes() const noexcept {
    return bytes_.load(std::memory_order_relaxed);
  }
  // Aborts when the counts do not add up. Waits as takeAll() does.
  void check() noexcept;

 private:
  struct Place {
    std::size_t rounded_bytes = 0;
    std::uint32_t count = 0;
    Block* newest = nullptr;
  };
  static std::size_t placeOf(std::size_t rounded_bytes) noexcept {
    // Fibonacci hashing: the product's top bits are the best mixed ones.
    return (rounded_bytes / ExtentMap::kAlignment * 0x9e3779b97f4a7c15ULL) >>
           58;
  }

  bool tryEnter() noexcept {
    return !busy_.exchange(true, std::memory_order_acquire);
  }
  void enter() noexcept;
  void leave() noexcept { busy_.store(false, std::memory_order_release); }
  void add(std::size_t bytes) noexcept { // wraps around to subtract
    bytes_.store(bytes_.load(std::memory_order_relaxed) + bytes,
                 std::memory_order_relaxed);
  }

  std::atomic<bool> busy_{false};
  std::atomic<std::size_t> bytes_{0}; // written inside only
  // Everything below is touched inside only.
  std::uint64_t occupied_ = 0; // one bit for each place
  std::array<Place, kSizes> places_{};
};

inline Block* SpareBlocks::take(std::size_t rounded_bytes) noexcept {
  if (bytes() == 0 || !tryEnter()) return nullptr;
  const std::size_t index = placeOf(rounded_bytes);
  Place& place = places_[index];
  Block* found = nullptr;
  if (place.rounded_bytes == rounded_bytes && place.newest != nullptr) {
    found = place.newest;
    place.newest = found->next_released;
    if (--place.count == 0) occupied_ &= ~(std::uint64_t{1} << index);
    add(-rounded_bytes);
  }
  leave();
  return found;
}

inline Block* SpareBlocks::put(Block& block, std::size_t limit_bytes) noexcept {
  const std::size_t rounded_bytes = block.rounded_bytes;
  block.next_released = nullptr;
  if (!tryEnter()) return &block;
  const std::size_t index = placeOf(rounded_bytes);
  Place& place = places_[index];
  Block* rejected = &block;
  if (bytes() + rounded_bytes <= limit_bytes) {
    if (place.rounded_bytes != rounded_bytes) [[unlikely]] {
      rejected = place.newest;
      add(-(place.count * place.rounded_bytes));
      place = {rounded_bytes, 0, nullptr};
    } else if (place.count < kMaxPerSize) {
      rejected = nullptr;
    }
    if (rejected != &block) {
      block.next_released = place.newest;
      place.newest = &block;
      ++place.count;
      occupied_ |= std::uint64_t{1} << index;
      add(rounded_bytes);
    }
  }
  leave();
  return rejected;
}

} // namespace chameleon::memory
