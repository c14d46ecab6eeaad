#include "memory/policy/readahead.h"

#include <algorithm>

#include "memory/policy/victim_order.h"

namespace chameleon::memory {

using profiler::kNone;
using profiler::NextUse;
using profiler::NextUseKind;

// ---- where the run is ------------------------------------------------------

void Readahead::enter(const FollowedPath& path,
                      std::uint32_t position) noexcept {
  const std::uint32_t ahead = distance(path);
  const std::uint32_t tail = path.ops - std::min(path.ops, ahead);
  tail_ = position < tail ? tail : kNone;
}

void Readahead::restart(std::uint32_t position, bool is_foreseen) noexcept {
  looked_to_ = position;
  if (!is_foreseen) arrived_at_ = profiler_.opCount();
  returns_.clear();
}

std::uint32_t Readahead::distance(const FollowedPath& path) const noexcept {
  const std::uint32_t most =
      std::max(path.ops / VictimOrder::kRanksPerCycle, kLeastAhead);
  const std::uint64_t followed = profiler_.opCount() - arrived_at_;
  return static_cast<std::uint32_t>(
      std::min<std::uint64_t>(most, kLeastAhead + kOpening * followed));
}

// ---- what comes back -------------------------------------------------------

bool Readahead::expect(Block& block) {
  const NextUse use =
      forecast_.nextUse(block.profiler_slot.load(std::memory_order_relaxed));
  if (use.kind != NextUseKind::kKnown || use.overwritten_first) {
    return false;
  }
  push({profiler_.opCount() + use.distance_ops, &block, block.identity});
  return true;
}

void Readahead::advance(const FollowedPath& path, const PathPlan* plan,
                        std::uint32_t position,
                        std::vector<PlannedAction>& list) {
  if (position >= tail_) {
    tail_ = kNone;
    const profiler::PathId next = forecast_.following();
    if (next != path.id) {
      lookInto(next, nullptr, 0, distance(path), path.begin + path.ops);
    }
  }
  lookAlong(path, plan, position);
  bringBack(path, list);
}

std::uint32_t Readahead::nextPosition(const FollowedPath& path) const noexcept {
  std::uint32_t position = tail_;
  const std::uint32_t ahead = distance(path);
  if (looked_to_ < path.ops) {
    position = std::min(position, looked_to_ - std::min(looked_to_, ahead));
  }
  if (path.ops != 0 && !returns_.empty()) {
    const std::uint64_t now = path.begin + ahead; // at position 0
    const std::uint64_t next_use = returns_.front().next_use;
    position = static_cast<std::uint32_t>(
        std::min<std::uint64_t>(position, next_use > now ? next_use - now : 0));
  }
  return position;
}

void Readahead::lookAlong(const FollowedPath& path, const PathPlan* plan,
                          std::uint32_t position) {
  const std::uint32_t ahead = distance(path);
  if (looked_to_ >= path.ops || position + ahead < looked_to_) return;
  const std::uint32_t end =
      std::min(path.ops, looked_to_ + kLookedAhead * ahead);
  lookInto(path.id, plan, looked_to_, end, path.begin + looked_to_);
  looked_to_ = end;
}

// What a path needs between `begin` and `end`, is not there and is not fetched
// by `plan` comes back ahead of its use. The op at `begin` has the number
// `at_begin`.
void Readahead::lookInto(profiler::PathId path, const PathPlan* plan,
                         std::uint32_t begin, std::uint32_t end,
                         std::uint64_t at_begin) {
  forecast_.needs(path, begin, end, needs_);
  fetches_.clear();
  if (plan != nullptr) findFetches(*plan, begin, end);
  for (const profiler::Forecast::Need& need : needs_) {
    Block* const block = static_cast<Block*>(need.owner);
    const BlockState state = block->state();
    if (state != BlockState::kHost && state != BlockState::kEvicting) continue;
    const auto planned = std::lower_bound(fetches_.begin(), fetches_.end(),
                                          std::pair(need.value, begin));
    if (planned != fetches_.end() && planned->first == need.value &&
        planned->second <= need.op) {
      continue;
    }
    push({at_begin + (need.op - begin), block, need.identity});
  }
}

// The path's values that the plan fetches before ops [begin, end).
void Readahead::findFetches(const PathPlan& plan, std::uint32_t begin,
                            std::uint32_t end) {
  for (std::uint32_t op = begin; op < end; ++op) {
    for (const Action action : plan.plan->actionsBefore(op)) {
      if (action.kind() != Action::Kind::kFetch) continue;
      const PathPlan::Names& names = plan.names[action.value()];
      for (const std::uint32_t value : {names.first, names.second}) {
        if (value != kNone) fetches_.emplace_back(value, op);
      }
    }
  }
  std::sort(fetches_.begin(), fetches_.end());
}

void Readahead::push(const Return& due) {
  returns_.push_back(due);
  std::push_heap(returns_.begin(), returns_.end());
}

void Readahead::bringBack(const FollowedPath& path,
                          std::vector<PlannedAction>& list) {
  if (path.ops == 0) return;
  const std::uint64_t now = profiler_.opCount() - 1;
  bool joined = false; // they are one batch
  while (!returns_.empty() &&
         returns_.front().next_use <= now + distance(path)) {
    const Return due = returns_.front();
    std::pop_heap(returns_.begin(), returns_.end());
    returns_.pop_back();
    if (due.next_use <= now) continue; // that is no longer ahead
    list.push_back(
        {Action::Kind::kFetch, due.block, due.identity, joined, due.next_use});
    joined = true;
  }
}

} // namespace chameleon::memory
