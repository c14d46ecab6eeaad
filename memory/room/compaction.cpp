#include "memory/room/compaction.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <vector>

#include "memory/phase_range.h"

namespace chameleon::memory {

namespace {

// A move of a block waits for what is under way to or from it, and with it all
// later moves and whoever gets the room: such blocks count this many times.
constexpr std::size_t kUnderWay = 8;
// Bytes moved for a byte that does not have to leave: while it crosses the
// link, HBM moves so much.
constexpr std::size_t kMovesPerVictim = 16;
// A copy costs some microseconds beside its bytes: in these HBM moves so much.
constexpr std::size_t kCopyBytes = 2 << 20;

// A search should not take longer than to have as much leave over the link,
// which moves some 256 bytes in the time of a look.
std::size_t looks_worth(std::size_t bytes) {
  return std::clamp<std::size_t>(bytes / 256, 128, kMostLooks);
}
constexpr std::size_t kLooksPerHole = 16;

// While blocks move.
class HolesByOffset {
 public:
  explicit HolesByOffset(std::span<Extent* const> extents) {
    for (Extent* extent : extents) add(extent);
  }
  Extent* around(std::size_t offset) const {
    return std::prev(holes_.upper_bound(offset))->second;
  }
  void taken(const Extent& extent) {
    holes_.erase(extent.offset);
    add(extent.previous);
    add(extent.next);
  }
  void freed(Extent& hole) { // with its neighbours
    holes_.erase(holes_.lower_bound(hole.offset),
                 holes_.lower_bound(hole.offset + hole.bytes));
    add(&hole);
  }

 private:
  void add(Extent* extent) {
    if (extent != nullptr && extent->use == ExtentUse::kFree) {
      holes_[extent->offset] = extent;
    }
  }
  std::map<std::size_t, Extent*> holes_;
};

std::vector<Extent*> all_extents(const ExtentMap& map) {
  std::vector<Extent*> extents;
  for (Extent* each = map.first(); each != nullptr; each = each->next) {
    extents.push_back(each);
  }
  return extents;
}

// Some `most` of those within `bytes` of the largest holes: what is moved least
// lies there. In address order; null stands for all between two of them.
std::vector<Extent*> extents_around_holes(const ExtentMap& map,
                                          std::size_t bytes, std::size_t most) {
  std::vector<Extent*> holes;
  map.visitLargestFree([&](Extent* hole) {
    holes.push_back(hole);
    return holes.size() < most / kLooksPerHole;
  });
  std::ranges::sort(holes, {}, &Extent::offset);
  std::vector<Extent*> extents;
  std::size_t end = 0; // of the last of them
  for (Extent* hole : holes) {
    const std::size_t from = hole->offset - std::min(hole->offset, bytes);
    Extent* next = hole->offset < end ? extents.back()->next : hole;
    if (hole->offset >= end) {
      while (next->offset > std::max(from, end)) next = next->previous;
      if (next->offset > end) extents.push_back(nullptr);
    }
    const std::size_t to = hole->offset + hole->bytes + bytes;
    for (; next != nullptr && next->offset < to; next = next->next) {
      extents.push_back(next);
      end = next->offset + next->bytes;
    }
    if (extents.size() > most) break;
  }
  return extents;
}

} // namespace

// It takes a victim as it is: one that is larger than what is missing is worth
// more.
bool Compaction::compactIfCheaper(const Locked& locked, std::size_t bytes,
                                  StreamIndex stream, std::uint64_t needed_at,
                                  Shortage& shortage) {
  std::size_t spared = bytes;
  const Block* const victim =
      core_.policy->nextVictim(&Residency::evictable, {needed_at, bytes});
  if (victim != nullptr) spared = std::max(spared, victim->rounded_bytes);
  const std::size_t most = kMovesPerVictim * (spared + kCopyBytes);
  return compactBelow(locked, bytes, most + 1, stream, shortage);
}

// In bytes to move, and what the move waits for.
std::size_t Compaction::costOfMove(const Locked& /*locked*/, const Block& block,
                                   StreamIndex stream) noexcept {
  const std::size_t bytes = block.rounded_bytes + kCopyBytes;
  return core_.uses().inOrder(core_.uses().usesOf(block), stream)
             ? bytes
             : kUnderWay * bytes;
}

bool Compaction::compactBelow(const Locked& locked, std::size_t bytes,
                              std::size_t limit, StreamIndex stream,
                              Shortage& shortage) {
  if (core_.arena->freeBytes() < bytes) return false;
  const PhaseRange range("compact");
  const ExtentMap& map = core_.arena->extents();
  const bool is_last_way = limit == SIZE_MAX; // worth the whole search
  const std::size_t looks = is_last_way ? kMostLooks : looks_worth(bytes);
  const bool all = is_last_way || map.extentCount() <= looks;
  const std::vector<Extent*> extents =
      all ? all_extents(map) : extents_around_holes(map, bytes, looks);
  std::vector<Part> parts;
  std::size_t end = 0; // of the part before
  for (std::size_t i = 0; i < extents.size(); ++i) {
    if (extents[i] == nullptr) { // what is not looked at stays
      parts.push_back({Part::Kind::kStays, extents[i + 1]->offset - end, 0});
    } else {
      parts.push_back(partOf(locked, *extents[i], stream));
    }
    end += parts.back().bytes;
  }
  const auto found = find_evacuation(parts, bytes, limit, looks);
  return found && evacuate(locked, extents, *found, shortage);
}

Part Compaction::partOf(const Locked& locked, const Extent& extent,
                        StreamIndex stream) noexcept {
  if (extent.use == ExtentUse::kFree) {
    return {Part::Kind::kFree, extent.bytes,
            core_.arena->waits(extent, stream)};
  }
  if (!Residency::movable(extent)) return {Part::Kind::kStays, extent.bytes, 0};
  // What was only placed so far is found by its extent.
  const bool resident = extent.block->state() == BlockState::kResident;
  return {resident ? Part::Kind::kMovable : Part::Kind::kSlides, extent.bytes,
          costOfMove(locked, *extent.block, stream)};
}

// True: done, or what is movable is not what it was. Some of it may have moved.
bool Compaction::evacuate(const Locked& locked,
                          std::span<Extent* const> extents,
                          const Evacuation& evacuation, Shortage& shortage) {
  core_.counters.compactions.fetch_add(1, std::memory_order_relaxed);
  HolesByOffset holes(extents);
  for (const Evacuation::Move& move : evacuation.moves) {
    Extent& from = *extents[move.from];
    if (move.slides) {
      holes.taken(*from.previous);
      if (!residency_.slide(locked, from, move.offset_bytes, shortage))
        return !shortage.failure;
      holes.freed(*from.next);
      if (from.previous != nullptr) holes.freed(*from.previous);
      continue;
    }
    Extent* const target = core_.arena->allocateAt(
        holes.around(move.offset_bytes), move.offset_bytes, from.bytes);
    if (target == nullptr) return false;
    holes.taken(*target);
    if (!residency_.relocate(locked, from, *target, shortage))
      return !shortage.failure;
    holes.freed(*core_.arena->free(&from, {}));
  }
  return true;
}

void Compaction::packDown(const Locked& locked, Shortage& shortage) {
  for (Extent* extent = core_.arena->extents().first(); extent != nullptr;
       extent = extent->next) {
    if (extent->use != ExtentUse::kBlock || extent->previous == nullptr ||
        extent->previous->use != ExtentUse::kFree) {
      continue;
    }
    const std::size_t lowest = extent->previous->offset;
    if (!residency_.slide(locked, *extent, lowest, shortage) &&
        shortage.failure)
      return;
  }
}

} // namespace chameleon::memory
