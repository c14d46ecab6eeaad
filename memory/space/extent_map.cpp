#include "memory/space/extent_map.h"

#include <algorithm>

#include "backend/runtime/check.h"

namespace chameleon::memory {
namespace {

constexpr std::size_t kMinChunkExtents = 8;
constexpr std::size_t kMaxChunkExtents = 256;

} // namespace

// ---- fences --------------------------------------------------------------

inline void ExtentMap::merge(Fence& into, const Fence& from) {
  if (from.empty()) return;
  if (into.empty()) {
    into = from;
  } else {
    mergeBoth(into, from);
  }
}

[[gnu::noinline]] void ExtentMap::mergeBoth(Fence& into, const Fence& from) {
  Position& first = into.slots()[0];
  const Position other = from.slots()[0];
  if (first.stream() == other.stream() && from.slots()[1].none()) {
    first.word = std::max(first.word, other.word); // mostly one stream
    return;
  }
  Fence both = into;
  for (const Position& position : from.slots()) {
    if (both.add(position)) continue;
    CHAMELEON_CHECK(joiner_.join != nullptr, "a fence is full");
    joiner_.join(joiner_.context, into, from);
    return;
  }
  into = both;
}

// ---- extents ---------------------------------------------------------------

// An extent in no list or index, without a block. The caller sets its offset,
// bytes, fence and use.
inline Extent* ExtentMap::take() {
  if (recycled_ == nullptr) [[unlikely]]
    addChunk();
  Extent* extent = recycled_;
  recycled_ = extent->next;
  return extent;
}

[[gnu::noinline]] void ExtentMap::addChunk() {
  chunk_extents_ =
      std::clamp(chunk_extents_ * 2, kMinChunkExtents, kMaxChunkExtents);
  chunks_.push_back(std::make_unique<Extent[]>(chunk_extents_));
  for (std::size_t i = chunk_extents_; i > 0; --i) {
    Extent* extent = &chunks_.back()[i - 1];
    extent->owner = owner_;
    extent->next = recycled_;
    recycled_ = extent;
  }
}

inline void ExtentMap::recycle(Extent* extent) noexcept {
  extent->next = recycled_;
  recycled_ = extent;
}

inline void ExtentMap::linkAfter(Extent* extent, Extent* position) noexcept {
  Extent* next = position != nullptr ? position->next : first_;
  extent->previous = position;
  extent->next = next;
  (position != nullptr ? position->next : first_) = extent;
  (next != nullptr ? next->previous : last_) = extent;
  ++extent_count_;
}

inline void ExtentMap::unlink(Extent* extent) noexcept {
  Extent* previous = extent->previous;
  Extent* next = extent->next;
  (previous != nullptr ? previous->next : first_) = next;
  (next != nullptr ? next->previous : last_) = previous;
  --extent_count_;
}

// ---- the map ---------------------------------------------------------------

ExtentMap::ExtentMap(std::size_t capacity_bytes, FenceJoiner joiner,
                     std::uint32_t owner)
    : capacity_(capacity_bytes),
      joiner_(joiner),
      owner_(owner),
      limit_(capacity_bytes),
      index_(capacity_bytes) {
  CHAMELEON_CHECK(capacity_bytes % kAlignment == 0, "unaligned capacity");
  if (capacity_ == 0) return;
  Extent* all = take();
  all->bytes = capacity_;
  linkAfter(all, nullptr);
  index_.insert(all);
  free_bytes_ = capacity_;
}

ExtentMap::~ExtentMap() = default;

Extent* ExtentMap::allocate(std::size_t bytes, End end, ExtentUse use) {
  CHAMELEON_DCHECK(bytes > 0, "an extent of no bytes");
  CHAMELEON_DCHECK(use != ExtentUse::kFree && use != ExtentUse::kClosed,
                   "an allocated extent is in use");
  if (bytes > free_bytes_) return nullptr; // also keeps round() from wrapping
  bytes = round(bytes);
  Extent* hole = index_.find(bytes, end);
  if (hole == nullptr) return nullptr;
  const std::size_t room = end == End::kBottom ? 0 : hole->bytes - bytes;
  return allocateAt(hole, hole->offset + room, bytes, use);
}

Extent* ExtentMap::allocateAt(Extent* hole, std::size_t offset,
                              std::size_t bytes, ExtentUse use) {
  const std::size_t end = hole->offset + hole->bytes;
  CHAMELEON_DCHECK(hole->use == ExtentUse::kFree && offset >= hole->offset &&
                       offset + bytes <= end && bytes > 0,
                   "room outside of the hole it is taken from");
  free_bytes_ -= bytes;
  if (hole->bytes == bytes) {
    index_.remove(hole);
    hole->use = use;
    return hole;
  }
  Extent* extent = take();
  extent->offset = offset;
  extent->bytes = bytes;
  extent->use = use;
  extent->fence = hole->fence;
  if (offset == hole->offset) {
    linkAfter(extent, hole->previous);
    index_.resize(hole, offset + bytes, hole->bytes - bytes);
    return extent;
  }
  linkAfter(extent, hole);
  // mutant: extent-bytes
  index_.resize(hole, hole->offset, offset - hole->offset);
  if (offset + bytes < end) {
    Extent* above = take();
    above->offset = offset + bytes;
    above->bytes = end - above->offset;
    above->use = ExtentUse::kFree;
    above->fence = extent->fence;
    linkAfter(above, extent);
    index_.insert(above);
  }
  return extent;
}

Extent* ExtentMap::free(Extent* extent) {
  CHAMELEON_CHECK(
      extent->use != ExtentUse::kFree && extent->use != ExtentUse::kClosed,
      "an extent is freed that is not in use");
  free_bytes_ += extent->bytes;
  extent->use = ExtentUse::kFree;
  extent->block = nullptr;
  Extent* below = extent->previous;
  Extent* above = extent->next;
  const bool join_above = above != nullptr && above->use == ExtentUse::kFree;
  if (below != nullptr && below->use == ExtentUse::kFree) {
    std::size_t bytes = below->bytes + extent->bytes;
    merge(below->fence, extent->fence);
    unlink(extent);
    recycle(extent);
    if (join_above) {
      bytes += above->bytes;
      merge(below->fence, above->fence);
      index_.remove(above);
      unlink(above);
      recycle(above);
    }
    index_.resize(below, below->offset, bytes);
    return below;
  }
  if (join_above) {
    // mutant: hole-fence
    merge(above->fence, extent->fence);
    index_.resize(above, extent->offset, extent->bytes + above->bytes);
    unlink(extent);
    recycle(extent);
    return above;
  }
  index_.insert(extent);
  return extent;
}

Extent* ExtentMap::split(Extent* extent, std::size_t bytes) {
  Extent* second = take();
  second->offset = extent->offset + bytes;
  second->bytes = extent->bytes - bytes;
  second->use = extent->use;
  second->fence = extent->fence;
  extent->bytes = bytes;
  linkAfter(second, extent);
  return second;
}

void ExtentMap::join(Extent* extent) {
  Extent* second = extent->next;
  merge(extent->fence, second->fence);
  extent->bytes += second->bytes;
  unlink(second);
  recycle(second);
}

Extent* ExtentMap::slideDown(Extent* extent) {
  Extent* hole = extent->previous;
  CHAMELEON_CHECK(hole != nullptr && hole->use == ExtentUse::kFree &&
                      extent->use != ExtentUse::kFree,
                  "slideDown needs an extent in use above a free one");
  index_.remove(hole);
  unlink(hole);
  extent->offset = hole->offset;
  hole->offset = extent->offset + extent->bytes;
  Extent* above = extent->next;
  if (above != nullptr && above->use == ExtentUse::kFree) {
    merge(hole->fence, above->fence);
    hole->bytes += above->bytes;
    index_.remove(above);
    unlink(above);
    recycle(above);
  }
  linkAfter(hole, extent);
  index_.insert(hole);
  return hole;
}

bool ExtentMap::setLimit(std::size_t limit_bytes) {
  CHAMELEON_CHECK(limit_bytes % kAlignment == 0 && limit_bytes <= capacity_,
                  "a limit is unaligned or above the capacity");
  if (limit_bytes == limit_) return true;
  Extent* tail = last();
  const bool tail_free = tail != nullptr && tail->use == ExtentUse::kFree;
  if (limit_bytes < limit_) {
    if (!tail_free || tail->offset > limit_bytes) return false;
    if (closed_ == nullptr) {
      closed_ = take();
      closed_->use = ExtentUse::kClosed;
      closed_->fence.clear();
      linkAfter(closed_, tail);
    }
    merge(closed_->fence, tail->fence);
    if (tail->offset < limit_bytes) {
      index_.resize(tail, tail->offset, limit_bytes - tail->offset);
    } else {
      index_.remove(tail);
      unlink(tail);
      recycle(tail);
    }
    free_bytes_ -= limit_ - limit_bytes;
  } else {
    CHAMELEON_CHECK(closed_ != nullptr, "nothing is closed above the limit");
    const std::size_t opened = limit_bytes - limit_;
    if (tail_free) {
      merge(tail->fence, closed_->fence);
      index_.resize(tail, tail->offset, tail->bytes + opened);
    } else {
      Extent* fresh = take();
      fresh->offset = limit_;
      fresh->bytes = opened;
      fresh->fence = closed_->fence;
      fresh->use = ExtentUse::kFree;
      linkAfter(fresh, tail);
      index_.insert(fresh);
    }
    free_bytes_ += opened;
  }
  limit_ = limit_bytes;
  closed_->offset = limit_;
  closed_->bytes = capacity_ - limit_;
  if (closed_->bytes == 0) {
    unlink(closed_);
    recycle(closed_);
    closed_ = nullptr;
  }
  return true;
}

void ExtentMap::check() const {
  std::size_t offset = 0;
  std::size_t count = 0;
  std::size_t free_count = 0;
  std::size_t free_bytes = 0;
  const Extent* previous = nullptr;
  for (const Extent* extent = first_; extent != nullptr;
       previous = extent, extent = extent->next) {
    CHAMELEON_CHECK(extent->offset == offset && extent->bytes > 0,
                    "E1: extents leave a gap or overlap");
    CHAMELEON_CHECK(extent->previous == previous, "E1: a broken back link");
    CHAMELEON_CHECK(extent->bytes % kAlignment == 0, "E5: unaligned extent");
    CHAMELEON_CHECK(extent->owner == owner_, "an extent of another map");
    CHAMELEON_CHECK((extent->use == ExtentUse::kClosed) == (extent == closed_),
                    "E6: more than one closed extent");
    CHAMELEON_CHECK(
        extent->block == nullptr || extent->use == ExtentUse::kBlock,
        "an extent without use has a block");
    offset += extent->bytes;
    ++count;
    if (extent->use != ExtentUse::kFree) continue;
    CHAMELEON_CHECK(previous == nullptr || previous->use != ExtentUse::kFree,
                    "E2: two free neighbours");
    ++free_count;
    free_bytes += extent->bytes;
  }
  CHAMELEON_CHECK(offset == capacity_ && last_ == previous,
                  "E1: extents do not cover the range");
  CHAMELEON_CHECK(count == extent_count_, "wrong extent count");
  CHAMELEON_CHECK(free_bytes == free_bytes_, "E4: wrong free bytes");
  CHAMELEON_CHECK(closed_ == nullptr
                      ? limit_ == capacity_
                      : closed_ == last_ && closed_->offset == limit_,
                  "E6: the closed extent is not [limit, capacity)");
  CHAMELEON_CHECK(index_.check() == free_count,
                  "E3: free extents are not indexed");
}

} // namespace chameleon::memory
