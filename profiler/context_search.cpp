#include "profiler/context_search.h"

#include <algorithm>

namespace chameleon::profiler {
namespace {

constexpr std::uint32_t kCompared = 1024; // ops, of all candidates

} // namespace

bool ContextSearch::isSame(const OpPath& path, std::uint32_t position,
                           std::uint32_t recorded, std::uint32_t round) const {
  const OpPath& own = recorder_.path();
  if (own.op(recorded).token != path.op(position).token) return false;
  const std::span<const Operand> here = path.uses(position);
  const std::span<const Operand> there = own.uses(recorded);
  if (here.size() != there.size()) return false;
  for (std::size_t i = 0; i < here.size(); ++i) {
    const PathValue& a = path.values()[here[i].value()];
    const PathValue& b = own.values()[there[i].value()];
    if (a.identity == b.identity) continue;
    if (a.bytes != b.bytes || input_has_stayed(blocks_, a, round)) return false;
    if (a.carried() != b.carried()) {
      // In the place of one that is gone.
      if (!a.carried() || !b.isExternalInput() ||
          blocks_.stillAlive(a.slot, a.identity)) {
        return false;
      }
    } else if (a.carried()) {
      const bool same_source = a.source_path != 0 &&
                               a.source_path == b.source_path &&
                               a.source_value == b.source_value;
      if (!same_source && blocks_.stillAlive(a.slot, a.identity)) return false;
    } else if (a.output != b.output ||
               path.op(a.birth_op).token != own.op(b.birth_op).token) {
      return false;
    }
  }
  return true;
}

std::uint32_t ContextSearch::length(const OpPath& path, std::uint32_t position,
                                    std::uint32_t limit,
                                    std::uint32_t round) const {
  const std::uint32_t last = recorder_.path().size() - 1;
  limit = std::min({limit, position + 1, last + 1});
  std::uint32_t length = 0;
  while (length < limit &&
         isSame(path, position - length, last - length, round)) {
    ++length;
  }
  return length;
}

// Equal layers have equal ops: which one it is say the blocks that were there
// before.
bool ContextSearch::isAnchored(const OpPath& path, std::uint32_t position,
                               std::uint32_t length) const {
  if (position < length) return true; // the path's beginning
  for (std::uint32_t i = position; i > position - length; --i) {
    const std::span<const Operand> uses = path.uses(i);
    const bool is_anchor =
        std::any_of(uses.begin(), uses.end(), [&](Operand use) {
          const PathValue& value = path.values()[use.value()];
          return (value.carried() || value.isExternalInput()) &&
                 blocks_.stillAlive(value.slot, value.identity);
        });
    if (is_anchor) return true;
  }
  return false;
}

// How long the context is there.
std::uint32_t ContextSearch::tryPlace(OpPath& path, std::uint32_t position,
                                      bool must_be_anchored,
                                      std::uint32_t round,
                                      ContextMatch& best) const {
  const std::uint32_t found = length(path, position, Repetition::kLimit, round);
  if (found <= best.length) return found;
  // One op of context says nothing, unless its operands do.
  if ((!must_be_anchored && found > 1) || isAnchored(path, position, found)) {
    best = {&path, position, found};
  }
  return found;
}

ContextMatch ContextSearch::wholeRound(std::uint32_t round) {
  const OpPath& own = recorder_.path();
  const std::uint32_t last = own.size() - 1;
  for (const auto& path : history_.paths()) {
    if (path->size() <= last || last == 0 || !path->rounds().empty()) continue;
    // Once a round for each path: it costs as much as the round is long, and
    // ops may be lost at every op.
    if (std::ranges::find(begun_otherwise_, path->id()) !=
        begun_otherwise_.end()) {
      continue;
    }
    if (length(*path, last, kNone, round) == last + 1) {
      return {path.get(), last, last + 1};
    }
    begun_otherwise_.push_back(path->id());
  }
  return {};
}

ContextMatch ContextSearch::longest(bool in_itself, bool must_be_anchored,
                                    std::uint32_t round) {
  ContextMatch best;
  OpPath& own = recorder_.path();
  const std::uint32_t last = own.size() - 1;
  const Token token = own.op(last).token;
  std::uint32_t compared = 0;
  const auto done = [&] {
    return best.length == Repetition::kLimit || compared >= kCompared;
  };
  for (const auto& path : history_.paths()) {
    if (!path->rounds().empty()) continue; // its rounds are paths as well
    std::uint32_t before = kNone;          // the candidate before
    std::uint32_t found = 0;               // its context's
    for (std::uint32_t i = path->lastLike(token); i != kNone && !done();
         before = i, i = path->previousLike(i)) {
      ++compared;
      // In a long run of equal ops one place is as good as another.
      if (found == Repetition::kLimit && i + 1 == before) continue;
      found = tryPlace(*path, i, must_be_anchored, round, best);
      compared += found;
    }
    if (done()) break;
  }
  if (best.path != nullptr) {
    best.length = length(*best.path, best.position, kWholeContext, round);
  }
  if (in_itself) {
    const Repetition::Place place = repetition_.find(own, best.length);
    if (place.length > 0) return {&own, place.position, place.length};
  }
  return best;
}

} // namespace chameleon::profiler
