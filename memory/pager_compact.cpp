// Compaction: free bytes that lie in pieces become one hole, by copies inside
// HBM on the move stream.
#include <algorithm>
#include <iterator>
#include <map>
#include <span>
#include <vector>

#include "backend/runtime/check.h"
#include "memory/pager_impl.h"
#include "memory/phase_range.h"

namespace chameleon::memory {

namespace {

// A move of a block waits for what is under way to or from it, and with it all
// later moves and whoever gets the room: such blocks count this many times.
constexpr std::size_t kUnderWay = 8;
// Bytes moved for a byte that does not have to leave. Without a plan a victim
// is what would leave soon. With one it is what the plan keeps: it crosses the
// link out and in, and meanwhile HBM moves so much. Up to most of HBM: for a
// large piece that would be all there is, and a small part of it leaving helps
// too.
constexpr std::size_t kMovesPerVictim = 16;
constexpr std::size_t kMovesPerKept = 80;
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

// A block that nobody but the call that begins has pinned, or an extent that
// was placed for a missing operand of that call.
bool PagerImpl::movable(const Extent& extent) const noexcept {
  if (extent.use != ExtentUse::kBlock) return false;
  const Block& block = *extent.block;
  const std::uint64_t word = block.word.load(std::memory_order_relaxed);
  return Block::stateOf(word) != BlockState::kResident ||
         Block::pinsOf(word) == block.claims;
}

// Makes one hole of `bytes` by moves, while that is cheaper than to have the
// next victim leave. True: look again.
//
// It takes a victim as it is: one that is larger than what is missing is worth
// more.
bool PagerImpl::moveFor(std::size_t bytes, StreamIndex stream,
                        Shortage& shortage) {
  std::size_t spared = bytes;
  const Block* const victim =
      policy_->nextVictim(&evictable, {room_needed_at_, bytes});
  if (victim != nullptr) spared = std::max(spared, victim->rounded_bytes);
  spared += kCopyBytes;
  std::size_t most = kMovesPerVictim * spared;
  if (policy_->plan() != nullptr) {
    const std::size_t most_of_hbm = admission_.budgetBytes() / 4 * 3;
    most = std::clamp(most_of_hbm, most, kMovesPerKept * spared);
  }
  return compactFor(bytes, most + 1, stream, shortage);
}

// In bytes to move, and what the move waits for.
std::size_t PagerImpl::costOfMove(const Block& block,
                                  StreamIndex stream) noexcept {
  const std::size_t bytes = block.rounded_bytes + kCopyBytes;
  return inOrder(usesOf(block), stream) ? bytes : kUnderWay * bytes;
}

// Makes one hole of `bytes` by moves that cost less than `limit`, if there is a
// way. True: look again.
bool PagerImpl::compactFor(std::size_t bytes, std::size_t limit,
                           StreamIndex stream, Shortage& shortage) {
  if (arena_->freeBytes() < bytes) return false;
  const PhaseRange range("compact");
  const ExtentMap& map = arena_->extents();
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
      parts.push_back(partOf(*extents[i], stream));
    }
    end += parts.back().bytes;
  }
  const auto found = find_evacuation(parts, bytes, limit, looks);
  return found && evacuate(extents, *found, shortage);
}

Part PagerImpl::partOf(const Extent& extent, StreamIndex stream) noexcept {
  if (extent.use == ExtentUse::kFree) {
    return {Part::Kind::kFree, extent.bytes, arena_->waits(extent, stream)};
  }
  if (!movable(extent)) return {Part::Kind::kStays, extent.bytes, 0};
  // What was only placed so far is found by its extent.
  const bool resident = extent.block->state() == BlockState::kResident;
  return {resident ? Part::Kind::kMovable : Part::Kind::kSlides, extent.bytes,
          costOfMove(*extent.block, stream)};
}

// True: done, or what is movable is not what it was. Some of it may have moved.
bool PagerImpl::evacuate(std::span<Extent* const> extents,
                         const Evacuation& evacuation, Shortage& shortage) {
  counters_.compactions.fetch_add(1, std::memory_order_relaxed);
  HolesByOffset holes(extents);
  for (const Evacuation::Move& move : evacuation.moves) {
    Extent& from = *extents[move.from];
    if (move.slides) {
      holes.taken(*from.previous);
      if (!slide(from, move.offset, shortage)) return !shortage.failure;
      holes.freed(*from.next);
      if (from.previous != nullptr) holes.freed(*from.previous);
      continue;
    }
    Extent* const target =
        arena_->allocateAt(holes.around(move.offset), move.offset, from.bytes);
    if (target == nullptr) return false;
    holes.taken(*target);
    if (!relocate(from, *target, shortage)) return !shortage.failure;
    holes.freed(*arena_->free(&from, {}));
  }
  return true;
}

// Moves the extent's block into `target`. False: it was pinned just now, or the
// runtime failed.
bool PagerImpl::relocate(Extent& extent, Extent& target, Shortage& shortage) {
  Block& block = *extent.block;
  target.block = &block;
  std::uint64_t word = block.word.load(std::memory_order_acquire);
  const std::uint64_t moving = word - Block::stateBits(BlockState::kResident) +
                               Block::stateBits(BlockState::kFetching);
  if (Block::pinsOf(word) != block.claims ||
      !block.word.compare_exchange_strong(word, moving,
                                          std::memory_order_acq_rel)) {
    arena_->free(&target, {});
    return false;
  }
  runtime::Result<Position> moved =
      arena_->move(&extent, &target, usesOf(block));
  if (moved.ok()) {
    clearUses(block);
    block.last_write.store(moved->word, std::memory_order_release);
    block.device = &target;
    block.device_address = arena_->address(target);
    note(Decision::kMove, block, block.bytes);
  } else {
    shortage.failure = moved.takeError();
    arena_->free(&target, {});
  }
  block.word.store(word, std::memory_order_release);
  return moved.ok();
}

// Moves the extent to `offset`, in the hole before it. False: its block was
// pinned just now, or the runtime failed.
bool PagerImpl::slide(Extent& extent, std::size_t offset, Shortage& shortage) {
  Block& block = *extent.block;
  std::uint64_t word = block.word.load(std::memory_order_acquire);
  const bool resident = Block::stateOf(word) == BlockState::kResident;
  Fence uses;
  if (resident) {
    if (Block::pinsOf(word) != block.claims) return false;
    const std::uint64_t moving = word -
                                 Block::stateBits(BlockState::kResident) +
                                 Block::stateBits(BlockState::kFetching);
    if (!block.word.compare_exchange_strong(word, moving,
                                            std::memory_order_acq_rel)) {
      return false;
    }
    uses = usesOf(block);
  }
  runtime::Result<Position> moved = arena_->slideDown(&extent, offset, uses);
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
void PagerImpl::slideAll(Shortage& shortage) {
  for (Extent* extent = arena_->extents().first(); extent != nullptr;
       extent = extent->next) {
    if (extent->use != ExtentUse::kBlock || extent->previous == nullptr ||
        extent->previous->use != ExtentUse::kFree) {
      continue;
    }
    const std::size_t lowest = extent->previous->offset;
    if (!slide(*extent, lowest, shortage) && shortage.failure) return;
  }
}

} // namespace chameleon::memory
