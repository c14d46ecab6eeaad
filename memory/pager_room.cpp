// Room in HBM: the ladder of what is tried for an extent, short of waiting for
// other calls.
#include <algorithm>

#include "memory/pager_impl.h"

namespace chameleon::memory {

using runtime::Error;

namespace {

constexpr std::size_t kMorePieces = 16;

} // namespace

// What is free as it is. Null: no hole is large enough, or the runtime failed.
Extent* PagerImpl::allocateFree(std::size_t bytes, End end, ExtentUse use,
                                StreamIndex stream) {
  Extent* const extent = arena_->allocate(bytes, end, use, stream);
  if (extent != nullptr) {
    raise(counters_.peak_resident_bytes, residentNow());
    noteHostUse();
  }
  return extent;
}

Extent* PagerImpl::place(std::size_t bytes, End end, ExtentUse use,
                         StreamIndex stream, Shortage& shortage) {
  if (bytes > admission_.budgetBytes()) return nullptr;
  for (;;) {
    if (Extent* extent = allocateFree(bytes, end, use, stream)) return extent;
    if (giveBackSpares()) continue;
    if (const Error& error = arena_->lastError()) {
      shortage.failure = Error(error.code(), error.message());
      return nullptr;
    }
    if (!climb(bytes, stream, shortage)) return nullptr;
  }
}

bool PagerImpl::makeFree(std::size_t bytes, StreamIndex stream,
                         Shortage& shortage) {
  while (arena_->largestFree() < bytes) {
    if (!giveBackSpares() && !climb(bytes, stream, shortage)) return false;
  }
  return true;
}

bool PagerImpl::climb(std::size_t bytes, StreamIndex stream,
                      Shortage& shortage) {
  if (arena_->freeBytes() >= bytes) {
    // Enough, but in pieces: moving a few blocks is cheaper than evicting.
    if (moveFor(bytes, stream, shortage)) return true;
    if (shortage.failure || largestRun(/*moving=*/true, bytes) < bytes) {
      return false;
    }
  }
  // Where enough is free, but in pieces, a few more make the search easier.
  const std::size_t free_bytes = arena_->freeBytes();
  const bool in_pieces = free_bytes >= bytes;
  const std::size_t more = in_pieces ? bytes / kMorePieces : bytes - free_bytes;
  if (evictNext(shortage, std::max<std::size_t>(more, 1),
                in_pieces ? bytes : 0)) {
    return true;
  }
  // What is fetched ahead is not worth moves without end.
  return !shortage.failure && room_needed_at_ == 0 &&
         compactFor(bytes, SIZE_MAX, stream, shortage);
}

std::size_t PagerImpl::largestRun(bool moving,
                                  std::size_t enough) const noexcept {
  std::size_t largest = arena_->largestFree();
  std::size_t run = 0;
  for (const Extent* extent = arena_->extents().first();
       extent != nullptr && largest < enough; extent = extent->next) {
    if (extent->use == ExtentUse::kFree ||
        (extent->use == ExtentUse::kBlock && evictable(*extent->block))) {
      run += extent->bytes;
      largest = std::max(largest, run);
    } else if (!moving || !movable(*extent)) {
      run = 0;
    }
  }
  return largest;
}

} // namespace chameleon::memory
