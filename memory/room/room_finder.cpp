#include "memory/room/room_finder.h"

#include <algorithm>
#include <utility>

#include "memory/phase_range.h"
#include "memory/policy/swapping/planner.h"

namespace chameleon::memory {

using runtime::Error;

namespace {

// Where enough is free, but in pieces, this part of it more leaves at a time.
constexpr std::size_t kMorePieces = 16;

} // namespace

Extent* RoomFinder::place(const Locked& locked, const RoomRequest& request,
                          Shortage& shortage) {
  if (request.bytes > core_.admission.budgetBytes()) return nullptr;
  if (Extent* extent = allocatePlanned(locked, request)) return extent;
  for (;;) {
    if (Extent* extent = allocateFree(locked, request)) return extent;
    if (table_.giveBackSpares(locked)) continue;
    if (const Error& error = core_.arena->lastError()) {
      shortage.failure = Error(error.code(), error.message());
      return nullptr;
    }
    if (!climb(locked, request.bytes, request.stream, request.needed_at,
               shortage)) {
      return nullptr;
    }
  }
}

bool RoomFinder::placeBlock(const Locked& locked, WantedBlock& wanted,
                            StreamIndex writer, Shortage& shortage,
                            std::uint64_t needed_at,
                            const profiler::OpTicket* planned_for) {
  wanted.extent = place(locked,
                        {wanted.block->rounded_bytes, End::kBottom,
                         ExtentUse::kBlock, writer, needed_at, planned_for},
                        shortage);
  if (wanted.extent == nullptr) return false;
  wanted.extent->block = wanted.block;
  return true;
}

void RoomFinder::giveBack(const Locked& /*locked*/,
                          const WantedBlock& wanted) noexcept {
  wanted.extent->block = nullptr;
  core_.arena->free(wanted.extent, {});
}

bool RoomFinder::hasPlaces(const Locked& /*locked*/,
                           const profiler::OpTicket& op) noexcept {
  const PlannedPlaces planned = core_.policy->placesOf(op);
  for (const Placement::Place& place : planned.places) {
    const std::size_t offset = planned.base_bytes + place.offset;
    if (core_.arena->holeAround(offset, place.bytes) == nullptr) return false;
  }
  return !planned.places.empty();
}

// Of several places of one size the first that is free. Null: there is none.
Extent* RoomFinder::allocatePlanned(const Locked& locked,
                                    const RoomRequest& request) {
  if (request.planned_for == nullptr) return nullptr;
  const PlannedPlaces planned = core_.policy->placesOf(*request.planned_for);
  for (const Placement::Place& place : planned.places) {
    const bool fits = place.is_workspace ? request.bytes <= place.bytes
                                         : request.bytes == place.bytes;
    if (!fits) continue;
    Extent* const extent = core_.arena->allocateAt(
        planned.base_bytes + place.offset, request.bytes, request.use);
    if (extent != nullptr) return counted(locked, extent);
  }
  return nullptr;
}

// What is free as it is. Null: no hole is large enough, or the runtime failed.
Extent* RoomFinder::allocateFree(const Locked& locked,
                                 const RoomRequest& request) {
  Extent* const extent = core_.arena->allocate(request.bytes, request.end,
                                               request.use, request.stream);
  return extent == nullptr ? nullptr : counted(locked, extent);
}

Extent* RoomFinder::counted(const Locked& locked, Extent* extent) {
  raise(core_.counters.peak_resident_bytes, table_.residentNow(locked));
  last_resort_.noteHostUse(locked);
  return extent;
}

bool RoomFinder::makeFree(const Locked& locked, std::size_t bytes,
                          StreamIndex stream, Shortage& shortage) {
  while (core_.arena->largestFree() < bytes) {
    if (!table_.giveBackSpares(locked) &&
        !climb(locked, bytes, stream, /*needed_at=*/0, shortage)) {
      return false;
    }
  }
  return true;
}

bool RoomFinder::climb(const Locked& locked, std::size_t bytes,
                       StreamIndex stream, std::uint64_t needed_at,
                       Shortage& shortage) {
  if (core_.arena->freeBytes() >= bytes) {
    // Enough, but in pieces: moving a few blocks is cheaper than evicting.
    if (compaction_.compactIfCheaper(locked, bytes, stream, needed_at,
                                     shortage)) {
      return true;
    }
    if (shortage.failure ||
        largestRun(locked, /*moving=*/true, bytes) < bytes) {
      return false;
    }
  }
  // Where enough is free, but in pieces, a few more make the search easier.
  const std::size_t free_bytes = core_.arena->freeBytes();
  const bool in_pieces = free_bytes >= bytes;
  const std::size_t more = in_pieces ? bytes / kMorePieces : bytes - free_bytes;
  if (evictNext(locked, shortage, std::max<std::size_t>(more, 1),
                {needed_at, in_pieces ? bytes : 0})) {
    return true;
  }
  // What is fetched ahead is not worth moves without end.
  return !shortage.failure && needed_at == 0 &&
         compaction_.compactBelow(locked, bytes, SIZE_MAX, stream, shortage);
}

bool RoomFinder::evictNext(const Locked& locked, Shortage& shortage,
                           std::size_t bytes, const Policy::Need& need) {
  if (table_.giveBackSpares(locked)) {
    shortage = {};
    return true;
  }
  const PhaseRange range("evict");
  const LinkModel link = meter_.link().now();
  // As in plans: a batch's room is free when all of it is copied.
  const auto batch_bytes =
      static_cast<std::size_t>(PlannerOptions::kBatchLatencies *
                               link.latency_ns * link.out_bytes_per_ns);
  Shortage why;
  bool done = false;
  std::size_t chosen_bytes = 0;
  std::size_t out_bytes = 0; // of the open batch
  set_aside_.clear();
  const auto close = [&]() REQUIRES(pager_lock) {
    const std::size_t others = set_aside_.size();
    for (const Residency::CopyOut& out : residency_.batch(locked)) {
      set_aside_.push_back(out.block);
    }
    if (!residency_.copyOut(locked, why)) return false; // they stay
    done = done || set_aside_.size() > others;
    set_aside_.resize(others);
    out_bytes = 0;
    return true;
  };
  while (chosen_bytes < bytes) {
    Block* const victim = core_.policy->victim(&Residency::evictable, need);
    if (victim == nullptr) break;
    const std::size_t victim_bytes = victim->rounded_bytes;
    if (need.piece_bytes != 0 && chosen_bytes != 0 && victim_bytes > bytes) {
      // Enough is free as it is: first look whether moves do by now.
      set_aside_.push_back(victim);
      break;
    }
    if (out_bytes + victim_bytes > batch_bytes && !close()) {
      set_aside_.push_back(victim);
      break;
    }
    const std::size_t outs = residency_.batch(locked).size();
    const Residency::Evicted result =
        residency_.beginEvict(locked, *victim, why, Decision::kVictim);
    // Where the host is full the next victim may still be a clean one.
    if (result == Residency::Evicted::kHostFull) why.host_full = true;
    if (result != Residency::Evicted::kDone) {
      set_aside_.push_back(victim);
      continue;
    }
    chosen_bytes += victim_bytes;
    if (residency_.batch(locked).size() > outs) {
      out_bytes += victim_bytes;
    } else {
      done = true;
    }
  }
  (void)close();
  for (Block* block : set_aside_) core_.policy->entered(*block);
  if (!done && why.host_full && !why.failure) {
    done = last_resort_.giveUpForHost(locked, bytes);
  }
  if (done) why = {};
  shortage = std::move(why);
  return done;
}

std::size_t RoomFinder::largestRun(const Locked& /*locked*/, bool moving,
                                   std::size_t enough) const noexcept {
  std::size_t largest = core_.arena->largestFree();
  std::size_t run = 0;
  for (const Extent* extent = core_.arena->extents().first();
       extent != nullptr && largest < enough; extent = extent->next) {
    if (extent->use == ExtentUse::kFree ||
        (extent->use == ExtentUse::kBlock &&
         Residency::evictable(*extent->block))) {
      run += extent->bytes;
      largest = std::max(largest, run);
    } else if (!moving || !Residency::movable(*extent)) {
      run = 0;
    }
  }
  return largest;
}

std::size_t RoomFinder::pinnedBytes(const Locked& /*locked*/) const noexcept {
  std::size_t bytes = 0;
  for (const Extent* extent = core_.arena->extents().first(); extent != nullptr;
       extent = extent->next) {
    const bool pinned =
        extent->use == ExtentUse::kInCall ||
        extent->use == ExtentUse::kForeign ||
        (extent->use == ExtentUse::kBlock && extent->block->pins() > 0);
    if (pinned) bytes += extent->bytes;
  }
  return bytes;
}

} // namespace chameleon::memory
