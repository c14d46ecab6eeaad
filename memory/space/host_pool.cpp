#include "memory/space/host_pool.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <ranges>
#include <string>
#include <utility>

#include "backend/runtime/address_space.h"
#include "backend/runtime/check.h"
#include "memory/phase_range.h"
#include "memory/space/fence_joiner.h"

namespace chameleon::memory {

using runtime::Error;
using runtime::kPageBytes;
using runtime::Result;

namespace {

// How many holes an allocation looks at: it is nothing beside the copy that
// follows.
constexpr std::size_t kMostHoles = 64;

} // namespace

Result<std::unique_ptr<HostPool>> HostPool::create(
    runtime::DeviceRuntime& runtime, StreamPositions& streams,
    std::size_t budget_bytes, std::size_t unit_bytes) {
  CHAMELEON_CHECK(unit_bytes > 0 && unit_bytes % kPageBytes == 0,
                  "a unit of host memory has whole pages");
  constexpr std::size_t kMostBytes = std::size_t{1} << 46; // of addresses
  std::size_t bytes =
      std::clamp(std::max(budget_bytes, runtime.hostMemory().total_bytes),
                 kRangeBytes, kMostBytes);
  for (;; bytes /= 2) {
    bytes = bytes / unit_bytes * unit_bytes;
    Result<std::byte*> base = runtime.reserveAddresses(bytes);
    if (base.ok()) {
      std::unique_ptr<HostPool> pool(
          new HostPool(runtime, streams, *base, bytes, unit_bytes));
      CHAMELEON_CHECK(pool->setBudget(budget_bytes), "an empty pool is full");
      return pool;
    }
    if (bytes / 2 < unit_bytes) {
      return Error(base.error().code(),
                   "cannot reserve " + std::to_string(bytes) +
                       " bytes of address space for evicted tensors (raise "
                       "the limit on virtual memory, ulimit -v): " +
                       base.error().message());
    }
  }
}

HostPool::HostPool(runtime::DeviceRuntime& runtime, StreamPositions& streams,
                   std::byte* base, std::size_t range_bytes,
                   std::size_t unit_bytes)
    : runtime_(runtime),
      streams_(streams),
      base_(base),
      range_bytes_(range_bytes),
      unit_bytes_(unit_bytes),
      extents_(range_bytes),
      freed_(streams) {
  CHAMELEON_CHECK(extents_.setLimit(0), "an empty pool is full");
}

HostPool::~HostPool() {
  // A failure means that the device is lost: nothing uses the slabs then.
  (void)streams_.synchronizeAll().ok();
  while (!slabs_.empty()) giveBack(slabs_.begin(), 0);
  runtime_.unreserve(base_, range_bytes_);
}

HostPool::Place HostPool::allocate(std::size_t bytes) {
  last_error_ = {};
  if (bytes > range_bytes_) return {}; // also keeps round() from wrapping
  bytes = ExtentMap::round(bytes);
  Extent* extent = cut(bytes);
  if (extent == nullptr && budgetGrows()) extent = cut(bytes);
  if (extent == nullptr) return {};
  freed_.take(extent->offset, bytes, extent->fence);
  if (Error error = obtain(extent->offset, bytes)) {
    last_error_ = std::move(error);
    putBack(extent);
    return {};
  }
  peak_used_bytes_ = std::max(peak_used_bytes_, usedBytes());
  step_peak_bytes_ = std::max(step_peak_bytes_, usedBytes());
  return {extent, address(*extent)};
}

void HostPool::free(Extent* extent, const Fence& fence) {
  if (!fence.empty()) {
    const FenceJoiner joiner = fence_joiner(streams_);
    joiner.join(joiner.context, extent->fence, fence);
  }
  putBack(extent);
}

void HostPool::putBack(Extent* extent) {
  freed_.add(extent->offset, extent->bytes, extent->fence);
  extent->fence.clear();
  extents_.free(extent);
}

// The host waits for the last copies of free bytes.
Error HostPool::awaitLast(std::size_t offset, std::size_t bytes) {
  Fence last;
  freed_.take(offset, bytes, last);
  // mutant: last-copies
  Error error = synchronize(streams_, last);
  if (error) freed_.add(offset, bytes, last);
  return error;
}

bool HostPool::slideDown(Extent* extent, const Fence& uses) {
  const std::size_t to = extent->previous->offset;
  last_error_ = awaitLast(to, std::min(extent->bytes, extent->offset - to));
  if (last_error_.ok()) last_error_ = synchronize(streams_, uses);
  if (last_error_.ok()) last_error_ = obtain(to, extent->bytes);
  if (!last_error_.ok()) return false;
  if (runtime_.holdsData()) {
    std::memmove(base_ + to, address(*extent), extent->bytes);
  }
  extents_.slideDown(extent);
  return true;
}

std::size_t HostPool::usableBytes(std::size_t budget_bytes) const noexcept {
  // mutant: pool-budget
  const std::size_t pages = budget_bytes & ~(kPageBytes - 1);
  return std::min(pages, range_bytes_);
}

bool HostPool::setBudget(std::size_t budget_bytes) {
  last_error_ = {};
  const std::size_t old_limit = extents_.limit();
  const std::size_t limit = usableBytes(budget_bytes);
  if (!extents_.setLimit(limit)) return false;
  if (Error error = giveBackAbove(limit)) {
    CHAMELEON_CHECK(extents_.setLimit(old_limit), "closed space is in use");
    last_error_ = std::move(error);
    return false;
  }
  budget_bytes_ = budget_bytes;
  return true;
}

void HostPool::followMachine(double share) {
  share_ = share;
  machine_bytes_ = runtime_.hostMemory().total_bytes;
}

bool HostPool::budgetGrows() {
  if (share_ == 0) return false;
  const std::size_t now = runtime_.hostMemory().total_bytes;
  if (now <= machine_bytes_) return false;
  const auto gained = static_cast<std::size_t>(
      share_ * static_cast<double>(now - machine_bytes_));
  machine_bytes_ = now;
  CHAMELEON_CHECK(setBudget(budget_bytes_ + gained), "a pool cannot grow");
  return true;
}

void HostPool::trim() { last_error_ = giveBackIdle(); }

// Of holes whose bytes are there the one that fits best, of equal ones the
// lowest; else the one that fits best. Null: none is large enough.
Extent* HostPool::cut(std::size_t bytes) {
  Extent* found = nullptr;
  std::size_t found_at = 0;
  std::size_t looks = 0;
  extents_.visitFree(bytes, [&](Extent* hole) {
    const std::size_t at = placeIn(*hole, bytes);
    if (at != kNone && (found == nullptr || hole->bytes < found->bytes ||
                        (hole->bytes == found->bytes && at < found_at))) {
      found = hole;
      found_at = at;
    }
    return ++looks < kMostHoles;
  });
  if (found == nullptr) {
    return extents_.allocate(bytes, End::kBottom, ExtentUse::kBlock);
  }
  return extents_.allocateAt(found, found_at, bytes, ExtentUse::kBlock);
}

// The lowest place in a hole where all bytes are there; kNone.
std::size_t HostPool::placeIn(const Extent& hole,
                              std::size_t bytes) const noexcept {
  const std::size_t hole_end = hole.offset + hole.bytes;
  std::size_t begin = hole.offset; // of slabs side by side
  std::size_t end = hole.offset;
  for (auto slab = firstSlabAbove(hole.offset);
       slab != slabs_.end() && slab->first < hole_end; ++slab) {
    if (slab->first > end) begin = slab->first;
    end = std::min(slab->first + slab->second, hole_end);
    if (end - begin >= bytes) return begin;
  }
  return kNone;
}

// The first slab that has bytes at `offset` or above.
HostPool::Slabs::const_iterator HostPool::firstSlabAbove(
    std::size_t offset) const noexcept {
  const auto above = slabs_.upper_bound(offset);
  if (above == slabs_.begin()) return above;
  const auto below = std::prev(above);
  return below->first + below->second > offset ? below : above;
}

// Slabs for what has none of these bytes. What was obtained stays when a later
// slab is refused.
Error HostPool::obtain(std::size_t offset, std::size_t bytes) {
  const std::size_t end = offset + bytes;
  bool may_give_back = true;
  for (std::size_t at = offset; at < end;) {
    const auto slab = firstSlabAbove(at);
    if (slab != slabs_.end() && slab->first <= at) {
      at = slab->first + slab->second;
      continue;
    }
    // All that its unit still lacks there.
    std::size_t begin = at / unit_bytes_ * unit_bytes_;
    std::size_t stop = std::min(begin + unit_bytes_, extents_.limit());
    if (slab != slabs_.end()) stop = std::min(stop, slab->first);
    if (slab != slabs_.begin()) {
      const auto below = std::prev(slab);
      begin = std::max(begin, below->first + below->second);
    }
    const PhaseRange range("allocate host memory");
    Error refused = runtime_.allocateHost(base_ + begin, stop - begin);
    if (!refused) {
      slabs_.emplace(begin, stop - begin);
      reserved_bytes_ += stop - begin;
      at = stop;
      continue;
    }
    // The machine has less than the budget allows: what lies idle may do.
    const std::size_t before = reserved_bytes_;
    if (may_give_back) (void)giveBackIdle().ok();
    if (reserved_bytes_ == before) return refused;
    may_give_back = false;
    at = offset; // a move's destination lay idle as well
  }
  return {};
}

// Where slabs without an extent in use begin, ascending.
std::vector<std::size_t> HostPool::idleSlabs() const {
  std::vector<std::size_t> idle;
  const Extent* extent = extents_.first();
  for (const auto& [offset, bytes] : slabs_) {
    while (extent->offset + extent->bytes <= offset) extent = extent->next;
    if (extent->use == ExtentUse::kFree &&
        extent->offset + extent->bytes >= offset + bytes) {
      idle.push_back(offset);
    }
  }
  return idle;
}

// An error: the last copies of one failed.
Error HostPool::giveBackIdle() {
  for (const std::size_t offset : idleSlabs()) {
    const auto slab = slabs_.find(offset);
    if (Error error = awaitLast(offset, slab->second)) return error;
    giveBack(slab, 0);
  }
  return {};
}

void HostPool::giveBackUnneeded(std::size_t keep_bytes,
                                std::size_t most_bytes) {
  if (reserved_bytes_ <= keep_bytes) return;
  const std::size_t before = reserved_bytes_;
  const std::vector<std::size_t> idle = idleSlabs();
  for (const std::size_t offset : std::views::reverse(idle)) {
    const auto slab = slabs_.find(offset);
    const std::size_t bytes = slab->second;
    const std::size_t left = reserved_bytes_ - bytes;
    if (left < keep_bytes || before - left > most_bytes) continue;
    Fence last;
    freed_.take(offset, bytes, last);
    const bool passed = std::ranges::all_of(
        last.slots(),
        [this](Position position) { return streams_.poll(position); });
    if (passed) {
      giveBack(slab, 0);
    } else {
      freed_.add(offset, bytes, last);
    }
  }
}

// REQUIRES: all above `limit_bytes` is closed.
Error HostPool::giveBackAbove(std::size_t limit_bytes) {
  auto slab = slabs_.lower_bound(limit_bytes);
  if (slab != slabs_.begin()) {
    const auto below = std::prev(slab);
    if (below->first + below->second > limit_bytes) slab = below;
  }
  if (slab == slabs_.end()) return {};
  if (Error error = awaitLast(limit_bytes, range_bytes_ - limit_bytes)) {
    return error;
  }
  if (slab->first < limit_bytes) {
    // What stays of it may be in use.
    for (const StreamIndex copies : {kCopyIn, kCopyOut}) {
      if (Error error = streams_.synchronize(streams_.advance(copies))) {
        return error;
      }
    }
    slab = giveBack(slab, limit_bytes - slab->first);
  }
  while (slab != slabs_.end()) slab = giveBack(slab, 0);
  return {};
}

// Returns the slab behind it.
HostPool::Slabs::iterator HostPool::giveBack(Slabs::iterator slab,
                                             std::size_t kept_bytes) {
  const std::size_t gone = slab->second - kept_bytes;
  runtime_.freeHost(base_ + slab->first + kept_bytes, gone);
  reserved_bytes_ -= gone;
  slab->second = kept_bytes;
  return kept_bytes == 0 ? slabs_.erase(slab) : std::next(slab);
}

void HostPool::check() const {
  extents_.check();
  CHAMELEON_CHECK(extents_.limit() == usableBytes(budget_bytes_),
                  "H4: the extents have another limit than the budget");
  std::size_t reserved = 0;
  std::size_t end = 0;
  for (const auto& [offset, bytes] : slabs_) {
    CHAMELEON_CHECK(bytes > 0 && offset >= end, "H4: slabs overlap");
    end = offset + bytes;
    CHAMELEON_CHECK(offset / unit_bytes_ == (end - 1) / unit_bytes_ &&
                        end <= extents_.limit(),
                    "H4: a slab lies in two units, or above the budget");
    reserved += bytes;
  }
  CHAMELEON_CHECK(reserved == reserved_bytes_ && reserved <= budget_bytes_,
                  "H1: slabs exceed the budget or do not add up");
  std::size_t used = 0;
  for (const Extent* extent = extents_.first(); extent != nullptr;
       extent = extent->next) {
    if (extent->use != ExtentUse::kBlock) {
      CHAMELEON_CHECK(extent->fence.empty(), "H5: a free extent has a fence");
      continue;
    }
    used += extent->bytes;
    CHAMELEON_CHECK(freed_.empty(extent->offset, extent->bytes),
                    "H5: bytes in use count as freed");
    CHAMELEON_CHECK(placeIn(*extent, extent->bytes) == extent->offset,
                    "H3: an extent in use lies outside of slabs");
  }
  CHAMELEON_CHECK(used == usedBytes() && used <= peak_used_bytes_,
                  "H2: used bytes do not add up");
}

} // namespace chameleon::memory
