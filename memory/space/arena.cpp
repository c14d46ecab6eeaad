#include "memory/space/arena.h"

#include <algorithm>
#include <bit>
#include <string>
#include <utility>

#include "backend/runtime/check.h"
#include "memory/space/fence_joiner.h"

namespace chameleon::memory {
namespace {

using runtime::Error;
using runtime::ErrorCode;
using runtime::Result;

// Of the budget. What is smaller is quick to compute: an op's wait for it is
// short, and it is not worth a search. (A copy in waits in front of all that
// are queued behind it, however small it is.)
constexpr std::size_t kApartShare = std::size_t{1} << 14;

// How many places an allocation looks at: a look takes as long as the link
// takes for some 4 KiB, and the better place is worth less than a copy.
std::size_t most_places(std::size_t bytes) {
  return std::clamp<std::size_t>(bytes / 4096, 16, 256);
}

std::size_t round_up(std::size_t bytes, std::size_t power_of_two) {
  return (bytes + power_of_two - 1) & ~(power_of_two - 1);
}

std::size_t round_down(std::size_t bytes, std::size_t power_of_two) {
  return bytes & ~(power_of_two - 1);
}

} // namespace

Result<std::unique_ptr<Arena>> Arena::create(runtime::DeviceRuntime& runtime,
                                             StreamPositions& streams,
                                             std::size_t range_bytes,
                                             std::size_t budget_bytes) {
  const std::size_t granularity = runtime.commitGranularity();
  CHAMELEON_CHECK(
      std::has_single_bit(granularity) && granularity >= ExtentMap::kAlignment,
      "the commit granularity is no power of two >= 512");
  if (range_bytes > round_down(SIZE_MAX, granularity) ||
      budget_bytes > range_bytes) {
    return Error(ErrorCode::kInvalidArgument,
                 "a device memory budget of " + std::to_string(budget_bytes) +
                     " bytes does not fit an address range of " +
                     std::to_string(range_bytes) + " bytes; lower hbm_budget");
  }
  range_bytes = round_up(range_bytes, granularity);
  Result<std::byte*> base = runtime.reserve(range_bytes);
  if (!base.ok()) return base.takeError();
  std::unique_ptr<Arena> arena(new Arena(runtime, streams, *base, range_bytes));
  CHAMELEON_CHECK(arena->setBudget(budget_bytes), "an empty arena is full");
  return arena;
}

Arena::Arena(runtime::DeviceRuntime& runtime, StreamPositions& streams,
             std::byte* base, std::size_t range_bytes)
    : runtime_(runtime),
      streams_(streams),
      checks_callers_(runtime.checksCallers()),
      range_(runtime, base, range_bytes),
      extents_(range_bytes, fence_joiner(streams)),
      freed_(streams) {
  CHAMELEON_CHECK(extents_.setLimit(0), "an empty arena is full");
}

Arena::~Arena() {
  // A failure means that the device is lost: nothing uses the range then.
  (void)streams_.synchronizeAll().ok();
}

Extent* Arena::allocate(std::size_t bytes, End end, ExtentUse use,
                        StreamIndex stream) {
  Extent* extent = findOpen(bytes, end, use, stream);
  while (extent == nullptr && openMore(bytes)) {
    extent = findOpen(bytes, end, use, stream);
  }
  if (extent == nullptr) {
    last_error_ = {};
    return nullptr;
  }
  return takeUp(extent);
}

// In what is open.
Extent* Arena::findOpen(std::size_t bytes, End end, ExtentUse use,
                        StreamIndex stream) {
  const bool search =
      apart_ && (stream == kCopyIn || bytes >= budget_bytes_ / kApartShare);
  return search ? choose(ExtentMap::round(bytes), end, use, stream)
                : extents_.allocate(bytes, end, use);
}

std::size_t Arena::bytesAtTop() const noexcept {
  const std::size_t closed_bytes = closedBytes();
  if (closed_bytes == 0) return 0; // the hole there is one like others
  const Extent* const last = extents_.last();
  const bool is_hole = last != nullptr && last->use == ExtentUse::kFree;
  return closed_bytes + (is_hole ? last->bytes : 0);
}

bool Arena::openMore(std::size_t bytes) {
  const std::size_t closed_bytes = closedBytes();
  if (closed_bytes == 0) return false;
  const std::size_t hole_bytes = bytesAtTop() - closed_bytes;
  const std::size_t open_bytes = openBytes();
  const std::size_t missing_bytes =
      std::min(bytes - std::min(bytes, hole_bytes), closed_bytes);
  const std::size_t border = std::min(
      range_.unitsEnd(open_bytes + std::max<std::size_t>(missing_bytes, 1)),
      open_bytes + closed_bytes);
  CHAMELEON_CHECK(extents_.setLimit(border), "more room is less");
  return true;
}

Extent* Arena::allocateAt(Extent* hole, std::size_t offset, std::size_t bytes) {
  return takeUp(extents_.allocateAt(hole, offset, bytes, ExtentUse::kBlock));
}

Extent* Arena::holeAround(std::size_t offset, std::size_t bytes) noexcept {
  const std::size_t end = offset + bytes;
  while (end > openBytes() && openMore(end)) {
  }
  Extent* found = nullptr;
  extents_.visitFree(bytes, [&](Extent* hole) {
    if (hole->offset <= offset && end <= hole->offset + hole->bytes) {
      found = hole;
    }
    return found == nullptr;
  });
  return found;
}

Extent* Arena::allocateAt(std::size_t offset, std::size_t bytes,
                          ExtentUse use) {
  last_error_ = {};
  Extent* const hole = holeAround(offset, bytes);
  if (hole == nullptr) return nullptr;
  return takeUp(extents_.allocateAt(hole, offset, bytes, use));
}

std::size_t Arena::usedEnd() const noexcept {
  const Extent* const last = extents_.last();
  const bool is_hole = last != nullptr && last->use == ExtentUse::kFree;
  return is_hole ? last->offset : openBytes();
}

// What was free just now is to be used. Null: it cannot be mapped.
Extent* Arena::takeUp(Extent* extent) {
  if (apart_) freed_.take(extent->offset, extent->bytes, extent->fence);
  if (Error error = range_.map(extent->offset, extent->bytes)) {
    last_error_ = std::move(error);
    extents_.free(extent);
    return nullptr;
  }
  if (extent->use != ExtentUse::kBlock) {
    index_.insert(extent);
    (extent->use == ExtentUse::kInCall ? in_call_bytes_ : foreign_bytes_) +=
        extent->bytes;
  }
  revived(extent->offset, extent->bytes);
  return extent;
}

// Looks at places in holes: their ends, and the borders of what is in them; of
// very many at some, in the holes that fit best. The one that `stream` can have
// first; of those a hole that is filled exactly; of those the nearest to `end`.
Extent* Arena::choose(std::size_t bytes, End end, ExtentUse use,
                      StreamIndex stream) {
  struct Place {
    std::uint64_t waits;
    bool splits;
    std::size_t distance;
    auto operator<=>(const Place&) const = default;
  };
  Extent* found = nullptr;
  std::size_t found_at = 0;
  Place best{};
  std::size_t looks = 0;
  const std::size_t most_looks = most_places(bytes);
  extents_.visitFree(bytes, [&](Extent* hole) {
    const std::size_t last = hole->offset + hole->bytes - bytes;
    const auto consider = [&](std::size_t offset) {
      if (offset < hole->offset || offset > last) return;
      ++looks;
      const Place place{freed_.youngest(offset, bytes, stream),
                        hole->bytes != bytes,
                        end == End::kBottom ? offset : range_.bytes() - offset};
      if (found != nullptr && !(place < best)) return;
      found = hole;
      found_at = offset;
      best = place;
    };
    consider(hole->offset);
    consider(last);
    freed_.visit(hole->offset, hole->bytes,
                 [&](std::size_t offset, std::size_t piece_bytes) {
                   const std::size_t above = offset + piece_bytes;
                   consider(offset);
                   consider(above);
                   if (above >= bytes) consider(above - bytes);
                   if (offset >= bytes) consider(offset - bytes);
                   return looks < most_looks;
                 });
    return looks < most_looks;
  });
  if (found == nullptr) return nullptr;
  return extents_.allocateAt(found, found_at, bytes, use);
}

Extent* Arena::free(Extent* extent, const Fence& fence) {
  if (extent->use == ExtentUse::kInCall || extent->use == ExtentUse::kForeign) {
    adopt(extent, nullptr);
  }
  addFence(extent, fence);
  discarded(extent->offset, extent->bytes);
  if (apart_) {
    freed_.add(extent->offset, extent->bytes, extent->fence);
    extent->fence.clear();
  }
  return extents_.free(extent);
}

void Arena::addFence(Extent* extent, const Fence& fence) {
  if (fence.empty()) return;
  if (extent->fence.empty()) {
    extent->fence = fence;
    return;
  }
  const FenceJoiner joiner = fence_joiner(streams_);
  joiner.join(joiner.context, extent->fence, fence);
}

Extent* Arena::split(Extent* extent, std::size_t bytes) {
  CHAMELEON_CHECK(
      extent->use == ExtentUse::kInCall && bytes > 0 && bytes < extent->bytes,
      "a part of an extent that is not in-call, or not a part");
  Extent* const second = extents_.split(extent, bytes);
  index_.insert(second);
  return second;
}

void Arena::join(Extent* extent) {
  CHAMELEON_CHECK(extent->use == ExtentUse::kInCall &&
                      extent->next != nullptr &&
                      extent->next->use == ExtentUse::kInCall,
                  "in-call extents that are joined are no neighbours");
  index_.erase(extent->next);
  extents_.join(extent);
}

void Arena::adopt(Extent* extent, Block* block) {
  CHAMELEON_CHECK(
      extent->use == ExtentUse::kInCall || extent->use == ExtentUse::kForeign,
      "an adopted extent is neither in-call nor foreign");
  (extent->use == ExtentUse::kInCall ? in_call_bytes_ : foreign_bytes_) -=
      extent->bytes;
  index_.erase(extent);
  extent->use = ExtentUse::kBlock;
  extent->block = block;
}

void Arena::makeForeign(Extent* extent) {
  CHAMELEON_CHECK(extent->use == ExtentUse::kInCall,
                  "an extent that is not in-call becomes foreign");
  in_call_bytes_ -= extent->bytes;
  foreign_bytes_ += extent->bytes;
  extent->use = ExtentUse::kForeign;
}

void Arena::orphan(Extent* extent) {
  CHAMELEON_CHECK(extent->use == ExtentUse::kBlock,
                  "an orphan was no block's extent");
  foreign_bytes_ += extent->bytes;
  index_.insert(extent);
  extent->use = ExtentUse::kForeign;
  extent->block = nullptr;
}

Extent* Arena::find(const void* address) const noexcept {
  if (!range_.contains(address)) return nullptr;
  return index_.find(range_.offsetOf(address));
}

bool Arena::setBudget(std::size_t budget_bytes) {
  last_error_ = {};
  if (budget_bytes > range_.bytes()) return false;
  const std::size_t old_limit = extents_.limit();
  const std::size_t limit =
      std::min(old_limit, ExtentMap::roundDown(budget_bytes));
  if (!extents_.setLimit(limit)) return false;
  if (apart_ && extents_.closed() != nullptr) {
    freed_.take(limit, range_.bytes() - limit, extents_.closed()->fence);
  }
  Error error;
  if (range_.isMappedAbove(budget_bytes)) error = awaitClosed();
  if (!error) error = range_.setLimit(budget_bytes);
  if (error) {
    CHAMELEON_CHECK(extents_.setLimit(old_limit), "closed space is in use");
    last_error_ = std::move(error);
    return false;
  }
  budget_bytes_ = budget_bytes;
  return true;
}

// The host waits until no work uses what lies above the border.
Error Arena::awaitClosed() {
  if (extents_.closed() == nullptr) return {};
  Fence& fence = extents_.closed()->fence;
  if (Error error = synchronize(streams_, fence)) return error;
  fence.clear();
  return {};
}

Result<Position> Arena::slideDown(Extent* extent, std::size_t to,
                                  const Fence& uses) {
  Extent* hole = extent->previous;
  CHAMELEON_CHECK(extent->use == ExtentUse::kBlock && hole != nullptr &&
                      hole->use == ExtentUse::kFree && hole->offset <= to &&
                      to < extent->offset,
                  "slideDown needs a block's extent above a free one");
  const std::size_t from = extent->offset;
  const std::size_t bytes = extent->bytes;
  const std::size_t distance = from - to;
  // The way down may lead over space that was never used.
  if (Error error = range_.map(to, bytes)) return error;
  Fence below;
  if (apart_) freed_.take(to, std::min(bytes, distance), below);
  const std::size_t gained = std::min(distance, bytes);
  const auto failed = [&](Error error) {
    if (apart_) freed_.add(to, gained, below);
    return error;
  };
  for (const Fence* fence :
       {&uses, &std::as_const(hole->fence), &std::as_const(extent->fence),
        &std::as_const(below)}) {
    if (Error error = streams_.wait(kMoves, *fence)) {
      return failed(std::move(error));
    }
  }
  revived(to, gained);
  const runtime::Copy copy{range_.at(to), range_.at(from), bytes};
  if (Error error = submitMove(copy)) {
    discarded(to, gained);
    return failed(std::move(error));
  }
  const Position moved = streams_.advance(kMoves);
  Extent* kept = nullptr; // of the hole, below the extent's new place
  if (hole->offset < to) {
    kept = extents_.allocateAt(hole, hole->offset, to - hole->offset,
                               ExtentUse::kBlock);
  }
  extent->fence.clear();
  extent->fence.add(moved);
  if (apart_) {
    const std::size_t end = from + bytes;
    const std::size_t vacated = std::max(from, to + bytes);
    freed_.add(vacated, end - vacated, extent->fence);
  } else {
    hole->fence = extent->fence;
  }
  extents_.slideDown(extent);
  if (kept != nullptr) extents_.free(kept);
  discarded(from + bytes - gained, gained);
  return moved;
}

Result<Position> Arena::move(Extent* extent, Extent* target,
                             const Fence& uses) {
  for (const Fence* fence :
       {&uses, &std::as_const(target->fence), &std::as_const(extent->fence)}) {
    if (Error error = streams_.wait(kMoves, *fence)) return error;
  }
  const runtime::Copy copy{address(*target), address(*extent), extent->bytes};
  if (Error error = submitMove(copy)) return error;
  const Position moved = streams_.advance(kMoves);
  streams_.mark(kMoves);
  target->block = std::exchange(extent->block, nullptr);
  target->fence.clear();
  extent->fence.clear();
  // mutant: emptied-fence
  extent->fence.add(moved);
  return moved;
}

// Where it fails nothing of it is under way any more.
Error Arena::submitMove(const runtime::Copy& copy) {
  Error error = runtime_.copy(streams_.stream(kMoves), {&copy, 1});
  if (error) (void)streams_.synchronize(streams_.advance(kMoves)).ok();
  return error;
}

void Arena::discarded(std::size_t offset, std::size_t bytes) noexcept {
  if (checks_callers_) [[unlikely]] {
    runtime_.discarded({range_.at(offset), bytes});
  }
}

void Arena::revived(std::size_t offset, std::size_t bytes) noexcept {
  if (checks_callers_) [[unlikely]]
    runtime_.revived({range_.at(offset), bytes});
}

void Arena::check() const {
  extents_.check();
  std::size_t in_call_bytes = 0;
  std::size_t foreign_bytes = 0;
  std::size_t indexed = 0;
  for (const Extent* extent = extents_.first(); extent != nullptr;
       extent = extent->next) {
    const bool in_call = extent->use == ExtentUse::kInCall;
    const bool foreign = extent->use == ExtentUse::kForeign;
    if (in_call) in_call_bytes += extent->bytes;
    if (foreign) foreign_bytes += extent->bytes;
    CHAMELEON_CHECK(
        (index_.find(extent->offset) == extent) == (in_call || foreign),
        "A4: find() misses an extent or knows one too many");
    indexed += in_call || foreign ? 1 : 0;
    if (extent->use == ExtentUse::kFree || extent->use == ExtentUse::kClosed) {
      continue;
    }
    CHAMELEON_CHECK(range_.isMapped(extent->offset, extent->bytes),
                    "A1: an extent in use is not mapped");
  }
  CHAMELEON_CHECK(indexed == index_.size(), "A4: a stale entry in the index");
  CHAMELEON_CHECK(
      in_call_bytes == in_call_bytes_ && foreign_bytes == foreign_bytes_,
      "A3: bytes by use do not add up");
  range_.check();
  CHAMELEON_CHECK(usedBytes() <= budget_bytes_,
                  "A2: more is used than the budget allows");
}

} // namespace chameleon::memory
