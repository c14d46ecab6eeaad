#include "memory/extent_map.h"

#include <algorithm>
#include <bit>

#include "backend/runtime/check.h"

namespace chameleon::memory {
namespace {

constexpr std::size_t kMinChunkExtents = 8;
constexpr std::size_t kMaxChunkExtents = 256;

// ---- treaps: links[0] is the left child, links[1] the right one -----------

// A hash of the offset, so that the shape does not follow the layout. The
// finalizer of MurmurHash3 is a bijection: there are no ties.
std::uint64_t priority(const Extent* extent) noexcept {
  std::uint64_t hash = extent->offset;
  hash = (hash ^ (hash >> 33)) * 0xff51afd7ed558ccdULL;
  hash = (hash ^ (hash >> 33)) * 0xc4ceb9fe1a85ec53ULL;
  return hash ^ (hash >> 33);
}

bool precedes(const Extent* left, const Extent* right) noexcept {
  return left->bytes != right->bytes ? left->bytes < right->bytes
                                     : left->offset < right->offset;
}

void insert_in_tree(Extent*& root, Extent* extent) noexcept {
  Extent** place = &root;
  const std::uint64_t rank = priority(extent);
  while (*place != nullptr && priority(*place) > rank) {
    place = &(*place)->links[precedes(*place, extent)];
  }
  // Splits what is below: smaller keys to the left, larger ones to the right.
  Extent* rest = *place;
  Extent** left = &extent->links[0];
  Extent** right = &extent->links[1];
  while (rest != nullptr) {
    if (precedes(rest, extent)) {
      *left = rest;
      left = &rest->links[1];
      rest = *left;
    } else {
      *right = rest;
      right = &rest->links[0];
      rest = *right;
    }
  }
  *left = nullptr;
  *right = nullptr;
  *place = extent;
}

void remove_from_tree(Extent*& root, Extent* extent) noexcept {
  Extent** place = &root;
  while (*place != extent) {
    CHAMELEON_DCHECK(*place != nullptr, "free extent missing in its tree");
    place = &(*place)->links[precedes(*place, extent)];
  }
  Extent* left = extent->links[0];
  Extent* right = extent->links[1];
  while (left != nullptr && right != nullptr) {
    if (priority(left) > priority(right)) {
      *place = left;
      place = &left->links[1];
      left = *place;
    } else {
      *place = right;
      place = &right->links[0];
      right = *place;
    }
  }
  *place = left != nullptr ? left : right;
}

// The smallest extent of at least `bytes`; of several, the one nearest to
// `end`. Null: all are smaller.
Extent* find_in_tree(Extent* root, std::size_t bytes, End end) noexcept {
  Extent* found = nullptr; // also the lowest of its size
  for (Extent* at = root; at != nullptr;) {
    const bool fits = at->bytes >= bytes;
    if (fits) found = at;
    at = at->links[fits ? 0 : 1];
  }
  if (end == End::kBottom || found == nullptr) return found;
  const std::size_t size = found->bytes;
  for (Extent* at = root; at != nullptr;) {
    const bool below = at->bytes <= size;
    if (below) found = at;
    at = at->links[below ? 1 : 0];
  }
  return found;
}

// Counts the nodes and checks both orders. `previous`: the node before.
std::size_t check_tree(const Extent* node, const Extent*& previous) {
  if (node == nullptr) return 0;
  std::size_t count = check_tree(node->links[0], previous);
  CHAMELEON_CHECK(previous == nullptr || precedes(previous, node),
                  "a tree of free extents is not ordered");
  for (const Extent* child : node->links) {
    CHAMELEON_CHECK(child == nullptr || priority(child) < priority(node),
                    "a tree of free extents is not a heap");
  }
  CHAMELEON_CHECK(node->use == ExtentUse::kFree, "extent in use is indexed");
  previous = node;
  ++count;
  return count + check_tree(node->links[1], previous);
}

} // namespace

// ---- the free index --------------------------------------------------------

inline std::size_t ExtentMap::sizeClass(std::size_t bytes) noexcept {
  if (bytes <= kSmallBytes) return bytes / kAlignment;
  constexpr unsigned kSmallBits = std::bit_width(kSmallBytes) - 1;
  constexpr unsigned kStepBits = std::bit_width(kClassesPerDoubling) - 1;
  const unsigned bits = static_cast<unsigned>(std::bit_width(bytes)) - 1;
  const std::size_t step =
      (bytes >> (bits - kStepBits)) & (kClassesPerDoubling - 1);
  return kSmallClasses + (bits - kSmallBits) * kClassesPerDoubling + step;
}

inline std::size_t ExtentMap::firstOccupied(
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

inline Extent* ExtentMap::findFit(std::size_t bytes, End end) const noexcept {
  std::size_t size_class = firstOccupied(sizeClass(bytes));
  if (size_class < kSmallClasses) { // all of one size
    const List& list = lists_[size_class];
    return end == End::kBottom ? list.head : list.tail;
  }
  if (size_class == kClasses) return nullptr;
  return findLarge(size_class, bytes, end);
}

[[gnu::noinline]] Extent* ExtentMap::findLarge(std::size_t size_class,
                                               std::size_t bytes,
                                               End end) const noexcept {
  // The class of `bytes` itself may hold smaller extents only; any later one
  // holds larger extents only.
  Extent* found = find_in_tree(roots_[size_class - kSmallClasses], bytes, end);
  if (found != nullptr) return found;
  size_class = firstOccupied(size_class + 1);
  if (size_class == kClasses) return nullptr;
  return find_in_tree(roots_[size_class - kSmallClasses], bytes, end);
}

// Lists are inlined where they are used; trees would only make that code slow
// to enter.
inline void ExtentMap::insert(Extent* extent) noexcept {
  if (extent->bytes > kSmallBytes) [[unlikely]] {
    insertLarge(extent);
    return;
  }
  const std::size_t size_class = extent->bytes / kAlignment;
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

inline void ExtentMap::remove(Extent* extent) noexcept {
  if (extent->bytes > kSmallBytes) [[unlikely]] {
    removeLarge(extent);
    return;
  }
  const std::size_t size_class = extent->bytes / kAlignment;
  List& list = lists_[size_class];
  Extent* const before = extent->links[0];
  Extent* const after = extent->links[1];
  (before != nullptr ? before->links[1] : list.head) = after;
  (after != nullptr ? after->links[0] : list.tail) = before;
  if (list.head == nullptr) {
    occupied_[size_class / 64] &= ~(std::uint64_t{1} << size_class % 64);
  }
}

[[gnu::noinline]] void ExtentMap::insertLarge(Extent* extent) noexcept {
  const std::size_t size_class = sizeClass(extent->bytes);
  occupied_[size_class / 64] |= std::uint64_t{1} << size_class % 64;
  insert_in_tree(roots_[size_class - kSmallClasses], extent);
}

[[gnu::noinline]] void ExtentMap::removeLarge(Extent* extent) noexcept {
  const std::size_t size_class = sizeClass(extent->bytes);
  Extent*& root = roots_[size_class - kSmallClasses];
  remove_from_tree(root, extent);
  if (root == nullptr) {
    occupied_[size_class / 64] &= ~(std::uint64_t{1} << size_class % 64);
  }
}

// Changes a free extent's place and size under the index.
inline void ExtentMap::resize(Extent* extent, std::size_t offset,
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
inline bool ExtentMap::staysAlone(const Extent* extent,
                                  std::size_t bytes) const noexcept {
  if (bytes <= kSmallBytes || extent->bytes <= kSmallBytes) return false;
  const std::size_t size_class = sizeClass(bytes);
  return size_class == sizeClass(extent->bytes) &&
         roots_[size_class - kSmallClasses] == extent &&
         extent->links[0] == nullptr && extent->links[1] == nullptr;
}

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
      limit_(capacity_bytes) {
  CHAMELEON_CHECK(capacity_bytes % kAlignment == 0, "unaligned capacity");
  if (capacity_ > kSmallBytes) {
    roots_.resize(sizeClass(capacity_) - kSmallClasses + 1);
  }
  if (capacity_ == 0) return;
  Extent* all = take();
  all->bytes = capacity_;
  linkAfter(all, nullptr);
  insert(all);
  free_bytes_ = capacity_;
}

ExtentMap::~ExtentMap() = default;

Extent* ExtentMap::allocate(std::size_t bytes, End end, ExtentUse use) {
  CHAMELEON_DCHECK(bytes > 0, "an extent of no bytes");
  CHAMELEON_DCHECK(use != ExtentUse::kFree && use != ExtentUse::kClosed,
                   "an allocated extent is in use");
  if (bytes > free_bytes_) return nullptr; // also keeps round() from wrapping
  bytes = round(bytes);
  Extent* hole = findFit(bytes, end);
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
    remove(hole);
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
    resize(hole, offset + bytes, hole->bytes - bytes);
    return extent;
  }
  linkAfter(extent, hole);
  resize(hole, hole->offset, offset - hole->offset);
  if (offset + bytes < end) {
    Extent* above = take();
    above->offset = offset + bytes;
    above->bytes = end - above->offset;
    above->use = ExtentUse::kFree;
    above->fence = extent->fence;
    linkAfter(above, extent);
    insert(above);
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
      remove(above);
      unlink(above);
      recycle(above);
    }
    resize(below, below->offset, bytes);
    return below;
  }
  if (join_above) {
    merge(above->fence, extent->fence);
    resize(above, extent->offset, extent->bytes + above->bytes);
    unlink(extent);
    recycle(extent);
    return above;
  }
  insert(extent);
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
  remove(hole);
  unlink(hole);
  extent->offset = hole->offset;
  hole->offset = extent->offset + extent->bytes;
  Extent* above = extent->next;
  if (above != nullptr && above->use == ExtentUse::kFree) {
    merge(hole->fence, above->fence);
    hole->bytes += above->bytes;
    remove(above);
    unlink(above);
    recycle(above);
  }
  linkAfter(hole, extent);
  insert(hole);
  return hole;
}

bool ExtentMap::setLimit(std::size_t limit_bytes) {
  CHAMELEON_CHECK(limit_bytes % kAlignment == 0 && limit_bytes <= capacity_,
                  "a limit is unaligned or above the capacity");
  if (limit_bytes == limit_) return true;
  Extent* tail = closed_ != nullptr ? closed_->previous : last_;
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
      resize(tail, tail->offset, limit_bytes - tail->offset);
    } else {
      remove(tail);
      unlink(tail);
      recycle(tail);
    }
    free_bytes_ -= limit_ - limit_bytes;
  } else {
    CHAMELEON_CHECK(closed_ != nullptr, "nothing is closed above the limit");
    const std::size_t opened = limit_bytes - limit_;
    if (tail_free) {
      merge(tail->fence, closed_->fence);
      resize(tail, tail->offset, tail->bytes + opened);
    } else {
      Extent* fresh = take();
      fresh->offset = limit_;
      fresh->bytes = opened;
      fresh->fence = closed_->fence;
      fresh->use = ExtentUse::kFree;
      linkAfter(fresh, tail);
      insert(fresh);
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

std::size_t ExtentMap::largestFree() const noexcept {
  std::size_t word = occupied_.size();
  while (word > 0 && occupied_[word - 1] == 0) --word;
  if (word == 0) return 0;
  const std::size_t top =
      word * 64 - 1 -
      static_cast<std::size_t>(std::countl_zero(occupied_[word - 1]));
  if (top < kSmallClasses) return top * kAlignment;
  const Extent* largest = roots_[top - kSmallClasses];
  while (largest->links[1] != nullptr) largest = largest->links[1];
  return largest->bytes;
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

  std::size_t indexed = 0;
  const auto occupied = [this](std::size_t size_class) {
    return (occupied_[size_class / 64] >> size_class % 64 & 1) != 0;
  };
  for (std::size_t i = 0; i < kSmallClasses; ++i) {
    CHAMELEON_CHECK(occupied(i) == (lists_[i].head != nullptr),
                    "E3: the map of occupied classes is wrong");
    const Extent* before = nullptr;
    for (const Extent* extent = lists_[i].head; extent != nullptr;
         before = extent, extent = extent->links[1]) {
      CHAMELEON_CHECK(extent->use == ExtentUse::kFree &&
                          sizeClass(extent->bytes) == i &&
                          extent->links[0] == before,
                      "E3: a list of free extents is broken");
      ++indexed;
    }
    CHAMELEON_CHECK(lists_[i].tail == before, "E3: a wrong list tail");
  }
  for (std::size_t i = 0; i < roots_.size(); ++i) {
    const std::size_t size_class = kSmallClasses + i;
    CHAMELEON_CHECK(occupied(size_class) == (roots_[i] != nullptr),
                    "E3: the map of occupied classes is wrong");
    const Extent* largest = nullptr;
    indexed += check_tree(roots_[i], largest);
    if (largest == nullptr) continue;
    const Extent* smallest = roots_[i];
    while (smallest->links[0] != nullptr) smallest = smallest->links[0];
    CHAMELEON_CHECK(sizeClass(smallest->bytes) == size_class &&
                        sizeClass(largest->bytes) == size_class,
                    "E3: a free extent is in the wrong class");
  }
  CHAMELEON_CHECK(indexed == free_count, "E3: free extents are not indexed");
}

} // namespace chameleon::memory
