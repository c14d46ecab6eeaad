#include "profiler/forecast.h"

#include <algorithm>

namespace chameleon::profiler {
namespace {

bool overwrites(std::uint32_t flags) {
  return (flags & (Operand::kOverwrites | Operand::kReads)) ==
         Operand::kOverwrites;
}

} // namespace

PathPosition Forecast::position() const {
  const ProfilerCore::Guard guard(profiler_.core().lock);
  const OpPath* const path = profiler_.core().matcher.path();
  if (path == nullptr) return {};
  return {path->id(), profiler_.core().matcher.position(), path->size()};
}

PathId Forecast::following() const {
  const ProfilerCore::Guard guard(profiler_.core().lock);
  const OpPath* const next = profiler_.rounds().next();
  return next == nullptr ? 0 : next->id();
}

NextUse Forecast::nextUse(BlockSlot slot) const {
  if (slot == kNoSlot) return {};
  const ProfilerCore::Guard guard(profiler_.core().lock);
  return answer(slot);
}

void Forecast::nextUses(std::span<const BlockSlot> slots,
                        std::span<NextUse> answers) const {
  constexpr std::size_t kAtOnce = 256;
  for (std::size_t i = 0; i < slots.size();) {
    const ProfilerCore::Guard guard(profiler_.core().lock);
    const std::size_t end = std::min(slots.size(), i + kAtOnce);
    for (; i < end; ++i) {
      answers[i] = slots[i] == kNoSlot ? NextUse{} : answer(slots[i]);
    }
  }
}

void Forecast::bound(PathId path, std::span<const std::uint32_t> values,
                     std::span<Bound> answers) const {
  const ProfilerCore::Guard guard(profiler_.core().lock);
  const OpPath* const followed = profiler_.core().matcher.path();
  for (std::size_t i = 0; i < values.size(); ++i) {
    answers[i] = {};
    if (followed == nullptr || followed->id() != path || values[i] == kNone) {
      continue;
    }
    const PathValue& value = followed->values()[values[i]];
    if (!profiler_.core().blocks.alive(value.slot, value.identity)) continue;
    answers[i] = {profiler_.core().blocks[value.slot].owner, value.identity};
  }
}

void Forecast::needs(PathId id, std::uint32_t begin, std::uint32_t end,
                     std::vector<Need>& list) const {
  list.clear();
  const ProfilerCore::Guard guard(profiler_.core().lock);
  const OpPath* const path = profiler_.core().history.find(id);
  if (path == nullptr) return;
  for (std::uint32_t op = begin; op < std::min(end, path->size()); ++op) {
    for (const Operand operand : path->uses(op)) {
      const std::uint32_t v = operand.value();
      const PathValue& value = path->values()[v];
      if (overwrites(operand.flags()) ||
          !profiler_.core().blocks.stillAlive(value.slot, value.identity)) {
        continue;
      }
      const std::span<const PathUse> uses = path->usesOf(v);
      const auto first = std::partition_point(
          uses.begin(), uses.end(),
          [begin](PathUse u) { return u.position() < begin; });
      if (first->position() != op) continue; // seen before
      list.push_back(
          {profiler_.core().blocks[value.slot].owner, value.identity, v, op});
    }
  }
}

NextUse Forecast::answer(BlockSlot slot) const {
  NextUse answer;
  const OpPath* const path = profiler_.core().matcher.path();
  if (path == nullptr) return answer;
  const LiveBlock& block = profiler_.core().blocks[slot];
  const std::vector<PathValue>& values = path->values();
  const std::uint32_t now = profiler_.core().matcher.position();
  const std::uint32_t end = path->size();
  const std::uint32_t own = profiler_.core().matcher.valueOf(block);
  const bool here = own != kNone;
  answer.distance_ops = end - now;
  const bool stays = here && profiler_.core().matcher.outlives(values[own]);
  if (here && !stays && !values[own].carried() &&
      block.birth.round != profiler_.core().matcher.round()) {
    // Left from the round before, and not carried into this one.
    answer.kind = NextUseKind::kNoMore;
    return answer;
  }
  if (here) {
    const std::span<const PathUse> uses = path->usesOf(own);
    const auto use =
        std::partition_point(uses.begin(), uses.end(),
                             [now](PathUse u) { return u.position() < now; });
    if (use != uses.end()) {
      answer.kind = NextUseKind::kKnown;
      answer.distance_ops = use->position() - now;
      answer.in_ns = path->elapsed_ns(use->position()) - path->elapsed_ns(now);
      answer.overwritten_first = overwrites(use->flags());
      return answer;
    }
  }
  // Not in the rest of this path: in the one that comes after it.
  const OpPath* const next = profiler_.rounds().next();
  if (next == nullptr) return answer;
  std::uint32_t value = kNone;
  if (here && next == path) {
    const PathValue& known = values[own];
    value = known.successor;
    const bool dies = known.free_op != kNone && known.free_op < end;
    if (value == kNone &&
        (stays ||
         (known.carried() && known.source_path != path->id() && !dies))) {
      value = own; // persistent
    }
  } else {
    value = next->valueBoundTo(block.identity);
  }
  if (value == kNone) {
    if (here) answer.kind = NextUseKind::kNoMore;
    return answer;
  }
  const PathUse use = next->usesOf(value).front();
  answer.kind = NextUseKind::kKnown;
  answer.distance_ops = end - now + use.position();
  answer.in_ns = path->elapsed_ns(end) - path->elapsed_ns(now) +
                 next->elapsed_ns(use.position());
  answer.overwritten_first = overwrites(use.flags());
  return answer;
}

Forecast::Known Forecast::valueOf(BlockSlot slot) const {
  const ProfilerCore::Guard guard(profiler_.core().lock);
  const OpPath* const path = profiler_.core().matcher.path();
  if (path == nullptr) return {};
  const std::uint32_t value =
      profiler_.core().matcher.valueOf(profiler_.core().blocks[slot]);
  if (value == kNone) return {};
  return {path->id(), value};
}

std::vector<Forecast::Expected> Forecast::expected(
    std::uint32_t distance) const {
  const ProfilerCore::Guard guard(profiler_.core().lock);
  std::vector<Expected> list;
  const OpPath* const path = profiler_.core().matcher.path();
  if (path == nullptr) return list;
  const std::uint32_t position = profiler_.core().matcher.position() + distance;
  if (position >= path->size()) return list;
  for (const Operand use : path->uses(position)) {
    const PathValue& value = path->values()[use.value()];
    const bool live = profiler_.core().blocks.alive(value.slot, value.identity);
    list.push_back(
        {live ? value.slot : kNoSlot, live ? value.identity : 0, use.flags()});
  }
  return list;
}

} // namespace chameleon::profiler
