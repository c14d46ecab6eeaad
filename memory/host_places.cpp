#include "memory/host_places.h"

#include <cstdint>

#include "backend/runtime/check.h"
#include "memory/phase_range.h"

namespace chameleon::memory {

using runtime::Error;

HostPool::Place HostPlaces::place(const Locked& locked, std::size_t bytes,
                                  Shortage& shortage) {
  HostPool& pool = *core_.host_pool;
  HostPool::Place found = hole(locked, bytes);
  if (found.extent == nullptr && pool.lastError().ok() &&
      joinHoles(locked, bytes)) {
    found = pool.allocate(bytes);
  }
  if (found.extent != nullptr) return found;
  if (const Error& error = pool.lastError()) {
    shortage.failure = Error(error.code(), error.message());
  }
  return {};
}

HostPool::Place HostPlaces::hole(const Locked& locked, std::size_t bytes) {
  HostPool::Place place;
  do {
    place = core_.host_pool->allocate(bytes);
  } while (place.extent == nullptr && freeOldestCopy(locked));
  return place;
}

bool HostPlaces::freeOldestCopy(const Locked& locked) noexcept {
  Block* block = copies_.oldest();
  while (block != nullptr && block->host_pins > 0) block = block->newer_copy;
  if (block == nullptr) return false;
  freeCopy(locked, *block);
  return true;
}

bool HostPlaces::movable(const Extent& extent) noexcept {
  return extent.use == ExtentUse::kBlock && extent.block != nullptr &&
         extent.block->host_pins == 0 && !extent.block->host_writing;
}

// Of the runs of extents that are free or can be moved, with `bytes` free in
// them, the one with the fewest bytes to move. Returns its first extent, a
// hole; null: there is none.
Extent* HostPlaces::runWith(const Locked& /*locked*/, std::size_t bytes) {
  Extent* best = nullptr;
  std::size_t best_moves = SIZE_MAX;
  Extent* first = nullptr; // of the run that ends with `extent`
  std::size_t free = 0;
  std::size_t moves = 0;
  for (Extent* extent = core_.host_pool->extents().first(); extent != nullptr;
       extent = extent->next) {
    if (extent->use != ExtentUse::kFree) {
      if (!movable(*extent)) first = nullptr;
      moves += extent->bytes;
      continue;
    }
    if (first == nullptr) {
      first = extent;
      free = 0;
      moves = 0;
    }
    free += extent->bytes;
    while (free >= bytes) {
      if (moves < best_moves) {
        best = first;
        best_moves = moves;
      }
      if (first == extent) break;
      free -= first->bytes; // without its lowest hole, up to the next one
      for (first = first->next; first->use != ExtentUse::kFree;
           first = first->next) {
        moves -= first->bytes;
      }
    }
  }
  return best;
}

bool HostPlaces::joinHoles(const Locked& locked, std::size_t bytes) {
  Extent* hole = runWith(locked, bytes);
  if (hole == nullptr) return false;
  const PhaseRange range("compact host memory");
  while (hole->bytes < bytes) {
    Extent* const moved = hole->next;
    if (!slide(locked, *moved)) return false;
    hole = moved->next;
  }
  return true;
}

bool HostPlaces::packDown(const Locked& locked) {
  const PhaseRange range("compact host memory");
  for (Extent* extent = core_.host_pool->extents().first(); extent != nullptr;
       extent = extent->next) {
    const bool moves = movable(*extent) && extent->previous != nullptr &&
                       extent->previous->use == ExtentUse::kFree;
    if (moves && !slide(locked, *extent)) return false;
  }
  return true;
}

bool HostPlaces::slide(const Locked& /*locked*/, Extent& extent) {
  Block& block = *extent.block;
  Fence uses;
  // mutant: host-move-filled
  uses.add(block.host.ready);
  // mutant: host-move-read
  uses.add(block.host.read);
  if (!core_.host_pool->slideDown(&extent, uses)) return false;
  block.host.address = core_.host_pool->address(extent);
  block.host.ready = {};
  block.host.read = {};
  return true;
}

void HostPlaces::freeCopy(const Locked& locked, Block& block) noexcept {
  CHAMELEON_CHECK(block.host_pins == 0, "a host copy in use is dropped");
  if (block.copied_ahead && !core_.streams.passed(block.host.ready) &&
      !cancelCopyOut(locked, block.host.ready, block.host.address,
                     block.bytes)) {
    Fence both;
    core_.uses().addTo(
        both, Position{block.last_write.load(std::memory_order_acquire)});
    core_.uses().addTo(both, block.host.ready);
    const Position joined = core_.uses().join(both);
    if (!joined.none()) {
      block.last_write.store(joined.word, std::memory_order_release);
    }
  }
  // mutant: cancelled-is-clean
  block.copied_ahead = false;
  copies_.remove(block);
  block.word.fetch_and(~Block::kHostCopyBit, std::memory_order_acq_rel);
  Extent* const place = block.host.extent;
  // mutant: host-copy-uses
  const Fence uses = core_.uses().hostUsesOf(block);
  forget(locked, block);
  core_.host_pool->free(place, uses);
}

void HostPlaces::put(const Locked& /*locked*/, Block& block,
                     const HostPlace& place) noexcept {
  block.host = place;
  place.extent->block = &block;
}

void HostPlaces::forget(const Locked& /*locked*/, Block& block) noexcept {
  if (block.host.extent != nullptr) block.host.extent->block = nullptr;
  block.host = {};
}

bool HostPlaces::cancelCopyOut(const Locked& /*locked*/, Position done,
                               const std::byte* destination,
                               std::size_t bytes) noexcept {
  // mutant: not-cancelled
  if (core_.streams.passed(done) ||
      !core_.runtime.cancel(core_.streams.stream(kCopyOut), destination)) {
    return false;
  }
  core_.counters.bytes_out.fetch_sub(static_cast<std::int64_t>(bytes),
                                     std::memory_order_relaxed);
  return true;
}

} // namespace chameleon::memory
