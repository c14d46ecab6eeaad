#include "memory/policy/victim_order.h"

#include <algorithm>

#include "backend/runtime/check.h"

namespace chameleon::memory {

using profiler::kNone;
using profiler::NextUse;
using profiler::NextUseKind;

void VictimOrder::add(Block& block) {
  CHAMELEON_CHECK(block.policy_slot == kNone, "a block entered twice");
  block.policy_slot = static_cast<std::uint32_t>(blocks_.size());
  blocks_.push_back(&block);
}

void VictimOrder::remove(Block& block) noexcept {
  if (block.policy_slot == kNone) return;
  Block* const last = blocks_.back();
  blocks_[block.policy_slot] = last;
  last->policy_slot = block.policy_slot;
  blocks_.pop_back();
  block.policy_slot = kNone;
}

bool VictimOrder::better(const Victim& a, const Victim& b) noexcept {
  if (a.small != b.small) return b.small;
  if (a.far != b.far) return a.far;
  if (!a.far && a.distance_ops != b.distance_ops) {
    return a.distance_ops > b.distance_ops;
  }
  if (a.tick != b.tick) return a.tick < b.tick;
  return a.identity < b.identity;
}

void VictimOrder::rank(std::uint64_t small_bytes, bool reruns) {
  const profiler::PathPosition at = forecast_.position();
  ranked_at_ = profiler_.opCount();
  ranked_.clear();
  slots_.clear();
  for (const Block* block : blocks_) {
    slots_.push_back(block->profiler_slot.load(std::memory_order_relaxed));
  }
  uses_.resize(slots_.size());
  forecast_.nextUses(slots_, uses_);
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    const Block& block = *blocks_[i];
    NextUse& use = uses_[i];
    if (reruns && slots_[i] == profiler::kNoSlot) {
      // The program has let it go; ops that run again will read it.
      use.kind = NextUseKind::kKnown;
      use.distance_ops = (at.ops - at.next_op) / 2;
    }
    const bool far =
        use.kind != NextUseKind::kKnown || 2 * use.distance_ops > at.ops;
    ranked_.push_back({blocks_[i], block.identity,
                       block.rounded_bytes <= small_bytes, far,
                       block.last_use_tick.load(std::memory_order_relaxed),
                       ranked_at_ + use.distance_ops,
                       use.distance_ops * (block.hasHostCopy() ? 2 : 1)});
  }
  std::sort(ranked_.begin(), ranked_.end(),
            [](const Victim& a, const Victim& b) { return better(b, a); });
}

// It is what it was when blocks were put in order.
bool VictimOrder::isVictim(const Victim& victim,
                           Policy::Usable usable) noexcept {
  const Block& block = *victim.block;
  return block.identity == victim.identity && block.policy_slot != kNone &&
         block.last_use_tick.load(std::memory_order_relaxed) == victim.tick &&
         usable(block);
}

const VictimOrder::Victim* VictimOrder::find(Policy::Usable usable,
                                             const Policy::Need& need,
                                             std::uint64_t small_bytes,
                                             bool reruns) {
  const std::uint64_t ops = profiler_.opCount();
  const std::uint32_t cycle = forecast_.position().ops;
  bool fresh = false;
  const std::uint64_t in_order_for = cycle != 0 ? cycle : blocks_.size();
  if (ops - ranked_at_ > in_order_for / kRanksPerCycle) ranked_.clear();
  for (;;) {
    while (!ranked_.empty() && !isVictim(ranked_.back(), usable)) {
      ranked_.pop_back();
    }
    if (!ranked_.empty()) break;
    if (fresh) return nullptr;
    rank(small_bytes, reruns);
    fresh = true;
  }
  const Victim& found = need.piece_bytes == 0
                            ? ranked_.back()
                            : fitting(usable, need.piece_bytes);
  const bool sooner =
      need.needed_at != 0 && !found.far && found.next_use <= need.needed_at;
  return sooner ? nullptr : &found;
}

// The last one is the best, if it were not for its size.
const VictimOrder::Victim& VictimOrder::fitting(
    Policy::Usable usable, std::size_t piece_bytes) const noexcept {
  const Victim& best = ranked_.back();
  const Victim* found = &best;
  for (std::size_t i = ranked_.size() - 1; i-- > 0;) {
    const Victim& victim = ranked_[i];
    if (found->block->rounded_bytes <= piece_bytes ||
        victim.small != best.small || victim.far != best.far ||
        (!best.far && victim.distance_ops < kAsFar * best.distance_ops)) {
      break; // those behind it are no better
    }
    const std::size_t bytes = victim.block->rounded_bytes;
    if (piece_bytes <= bytes && bytes < found->block->rounded_bytes &&
        isVictim(victim, usable)) {
      found = &victim;
    }
  }
  return *found;
}

Block& VictimOrder::take(const Victim& victim) noexcept {
  Block& block = *victim.block;
  ranked_.erase(ranked_.begin() + (&victim - ranked_.data()));
  remove(block);
  return block;
}

} // namespace chameleon::memory
