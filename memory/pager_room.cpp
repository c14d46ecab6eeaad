// Room in HBM: the ladder of what is tried for an extent, short of waiting for
// other calls.
#include "backend/runtime/check.h"
#include "memory/pager_impl.h"

namespace chameleon::memory {

using runtime::Error;

namespace {

// Moving a byte inside HBM reads and writes it there; that is some twenty times
// faster than the link. Beyond that much a further eviction, whose copy nobody
// waits for, is the cheaper way to one piece.
constexpr std::size_t kMovesPerByte = 8;

bool evictable(const Extent& extent) {
  if (extent.use != ExtentUse::kBlock) return false;
  const std::uint64_t word = extent.block->word.load(std::memory_order_relaxed);
  return Block::stateOf(word) == Residency::kResident &&
         Block::pinsOf(word) == 0;
}

} // namespace

// What is free as it is. Null: no hole is large enough, or the runtime failed.
Extent* PagerImpl::allocateFree(std::size_t bytes, End end, ExtentUse use) {
  Extent* const extent = arena_->allocate(bytes, end, use);
  if (extent != nullptr) {
    raise(counters_.peak_resident_bytes, arena_->usedBytes() - spares_.bytes());
  }
  return extent;
}

Extent* PagerImpl::place(std::size_t bytes, End end, ExtentUse use,
                         StreamIndex stream, Shortage& shortage) {
  if (bytes > admission_.budgetBytes()) return nullptr;
  for (;;) {
    if (Extent* extent = allocateFree(bytes, end, use)) return extent;
    if (giveBackSpares()) continue;
    if (const Error& error = arena_->lastError()) {
      shortage.failure = Error(error.code(), error.message());
      return nullptr;
    }
    if (arena_->freeBytes() >= bytes) {
      // Enough, but in pieces: moving a few blocks is cheaper than evicting.
      if (compactFor(bytes, kMovesPerByte * bytes, stream, shortage)) continue;
      if (shortage.failure || largestRun(/*moving=*/true, bytes) < bytes) {
        return nullptr;
      }
    }
    if (evictNext(shortage)) continue;
    if (shortage.failure || !compactFor(bytes, SIZE_MAX, stream, shortage)) {
      return nullptr;
    }
  }
}

// A block that nobody but the call that begins has pinned, or an extent that
// was placed for a missing operand of that call.
bool PagerImpl::movable(const Extent& extent) const noexcept {
  if (extent.use != ExtentUse::kBlock) return false;
  const Block& block = *extent.block;
  const std::uint64_t word = block.word.load(std::memory_order_relaxed);
  return Block::stateOf(word) != Residency::kResident ||
         Block::pinsOf(word) == block.claims;
}

std::size_t PagerImpl::largestRun(bool moving,
                                  std::size_t enough) const noexcept {
  std::size_t largest = arena_->largestFree();
  std::size_t run = 0;
  for (const Extent* extent = arena_->extents().first();
       extent != nullptr && largest < enough; extent = extent->next) {
    if (extent->use == ExtentUse::kFree || evictable(*extent)) {
      run += extent->bytes;
      largest = std::max(largest, run);
    } else if (!moving || !movable(*extent)) {
      run = 0;
    }
  }
  return largest;
}

// Makes one hole of `bytes` out of several by sliding the blocks between them
// down; of all windows that contain enough free bytes and nothing immovable it
// takes the one with the fewest bytes to move, at most `limit`. True: look
// again.
bool PagerImpl::compactFor(std::size_t bytes, std::size_t limit,
                           StreamIndex stream, Shortage& shortage) {
  Extent* best = nullptr; // the hole that a window begins with
  std::size_t best_cost = 0;
  Extent* left = nullptr;
  std::size_t free_bytes = 0; // in the window
  std::size_t cost = 0;       // bytes to move in it
  for (Extent* extent = arena_->extents().first(); extent != nullptr;
       extent = extent->next) {
    if (extent->use != ExtentUse::kFree) {
      if (left == nullptr) continue;
      cost += extent->bytes;
      if (!movable(*extent)) left = nullptr;
      continue;
    }
    if (left == nullptr) {
      left = extent;
      free_bytes = 0;
      cost = 0;
    }
    free_bytes += extent->bytes;
    while (free_bytes - left->bytes >= bytes) { // without the first hole too
      free_bytes -= left->bytes;
      for (left = left->next; left->use != ExtentUse::kFree;
           left = left->next) {
        cost -= left->bytes;
      }
    }
    if (free_bytes >= bytes && (best == nullptr || cost < best_cost)) {
      best = left;
      best_cost = cost;
    }
  }
  if (best == nullptr || best_cost > limit) return false;
  counters_.compactions.fetch_add(1, std::memory_order_relaxed);
  for (Extent* hole = best; hole->bytes < bytes;) {
    Extent* const extent = hole->next;
    if (!slide(*extent, stream, shortage)) return !shortage.failure;
    hole = extent->next;
  }
  return true;
}

// Moves the extent into the hole before it. False: its block was pinned just
// now, or the runtime failed.
bool PagerImpl::slide(Extent& extent, StreamIndex stream, Shortage& shortage) {
  Block& block = *extent.block;
  std::uint64_t word = block.word.load(std::memory_order_acquire);
  const bool resident = Block::stateOf(word) == Residency::kResident;
  Fence uses;
  if (resident) {
    if (Block::pinsOf(word) != block.claims) return false;
    const std::uint64_t moving = word - Block::stateBits(Residency::kResident) +
                                 Block::stateBits(Residency::kFetching);
    if (!block.word.compare_exchange_strong(word, moving,
                                            std::memory_order_acq_rel)) {
      return false;
    }
    uses = usesOf(block);
  }
  runtime::Result<Position> moved = arena_->slideDown(&extent, stream, uses);
  if (!moved.ok()) {
    shortage.failure = moved.takeError();
  } else if (resident) {
    extent.fence.clear(); // last_write says it from now on
    clearUses(block);
    block.last_write.store(moved->word, std::memory_order_release);
    block.device_address = arena_->address(extent);
    note(Decision::kMove, block, block.bytes);
  }
  if (resident) block.word.store(word, std::memory_order_release);
  return moved.ok();
}

// Moves everything that can be moved as far down as it goes.
void PagerImpl::slideAll(StreamIndex stream, Shortage& shortage) {
  for (Extent* extent = arena_->extents().first(); extent != nullptr;
       extent = extent->next) {
    if (extent->use != ExtentUse::kBlock || extent->previous == nullptr ||
        extent->previous->use != ExtentUse::kFree) {
      continue;
    }
    if (!slide(*extent, stream, shortage) && shortage.failure) return;
  }
}

} // namespace chameleon::memory
