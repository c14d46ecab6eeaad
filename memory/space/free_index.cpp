#include "memory/space/free_index.h"

#include "backend/runtime/check.h"

namespace chameleon::memory {
namespace {

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

FreeIndex::FreeIndex(std::size_t capacity_bytes) {
  if (capacity_bytes > kSmallBytes) {
    roots_.resize(sizeClass(capacity_bytes) - kSmallClasses + 1);
  }
}

[[gnu::noinline]] Extent* FreeIndex::findLarge(std::size_t size_class,
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

[[gnu::noinline]] void FreeIndex::insertLarge(Extent* extent) noexcept {
  const std::size_t size_class = sizeClass(extent->bytes);
  occupied_[size_class / 64] |= std::uint64_t{1} << size_class % 64;
  insert_in_tree(roots_[size_class - kSmallClasses], extent);
}

[[gnu::noinline]] void FreeIndex::removeLarge(Extent* extent) noexcept {
  const std::size_t size_class = sizeClass(extent->bytes);
  Extent*& root = roots_[size_class - kSmallClasses];
  remove_from_tree(root, extent);
  if (root == nullptr) {
    occupied_[size_class / 64] &= ~(std::uint64_t{1} << size_class % 64);
  }
}

std::size_t FreeIndex::largestBytes() const noexcept {
  std::size_t word = occupied_.size();
  while (word > 0 && occupied_[word - 1] == 0) --word;
  if (word == 0) return 0;
  const std::size_t top =
      word * 64 - 1 -
      static_cast<std::size_t>(std::countl_zero(occupied_[word - 1]));
  if (top < kSmallClasses) return top * Extent::kAlignment;
  const Extent* largest = roots_[top - kSmallClasses];
  while (largest->links[1] != nullptr) largest = largest->links[1];
  return largest->bytes;
}

std::size_t FreeIndex::check() const {
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
  return indexed;
}

} // namespace chameleon::memory
