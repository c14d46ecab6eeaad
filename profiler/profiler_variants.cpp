// Rounds that are a known path but for sizes: another length of text, tokens
// shared anew among experts. Op by op they are variants of it, so what is known
// of the path says what comes next all the same, and a plan for it can be
// followed. The round is recorded meanwhile, and forgotten if it was a variant
// to its end, unless these sizes came before: then they are a path of their own
// from now on.
#include <algorithm>

#include "profiler/profiler.h"

namespace chameleon::profiler {
namespace {

Token tokens_of(const OpPath& path) {
  TokenHasher hasher(path.size());
  for (std::uint32_t i = 0; i < path.size(); ++i) hasher.add(path.op(i).token);
  return hasher.token();
}

} // namespace

// False: it is no variant; at most a group of rounds was left.
bool Profiler::goOnInVariant(std::uint32_t op, Token token,
                             std::span<const Use> uses, bool is_counted) {
  if (!matcher_.isShapeVariant(op, uses)) return false;
  if (!group_.empty() || !matcher_.path()->rounds().empty()) {
    // The rounds of a group, one by one.
    stopGroup();
    leaveGroup();
    if (!matcher_.isShapeVariant(op, uses)) return false;
  }
  if (!variant_.isFollowed() && !is_counted) {
    missed(op, token, DivergenceKind::kOp);
    is_counted = true;
  }
  if (!recorder_.active()) {
    startRecording();
    variant_.beginRound(matcher_.path()->bornBytes(matcher_.position()));
  }
  variant_.follow(true);
  unplaced_ = 0;
  weighExternalInputs(uses);
  record(op, token, uses);
  const ContextMatch known = matcher_.wholeRound();
  if (known.path != nullptr) { // in these very sizes
    variant_.leave();
    continueAt(known);
  } else if (!variant_.sizesAreNear() || matcher_.path() == nullptr) {
    if (!is_counted) missed(op, token, DivergenceKind::kOp);
    findPlace();
  } else {
    matcher_.advanceVariant(uses);
  }
  return true;
}

// Its result, of another size. False: too far from the path's, or not
// expected at all.
bool Profiler::produceInVariant(std::uint32_t position, std::uint32_t output,
                                BlockSlot slot) {
  const OpPath* const path = matcher_.path();
  if (path == nullptr || !path->rounds().empty() ||
      !matcher_.produceInVariant(position, output, slot)) {
    return false;
  }
  weighResult(position, output, slot);
  variant_.follow(variant_.sizesAreNear());
  return variant_.isFollowed();
}

void Profiler::weighResult(std::uint32_t position, std::uint32_t output,
                           BlockSlot slot) noexcept {
  const OpPath& path = *matcher_.path();
  variant_.weigh(blocks_[slot].bytes,
                 path.values()[path.results(position)[output].value()].bytes);
}

// The next op's external inputs.
void Profiler::weighExternalInputs(std::span<const Use> uses) noexcept {
  const OpPath& path = *matcher_.path();
  const std::span<const Operand> operands = path.uses(matcher_.position());
  for (std::size_t i = 0; i < uses.size(); ++i) {
    const PathValue& value = path.values()[operands[i].value()];
    if (!value.isExternalInput() || value.birth_op != matcher_.position() ||
        value.identity == uses[i].identity) { // it stays
      continue;
    }
    variant_.weigh(blocks_[uses[i].slot].bytes, value.bytes);
  }
}

// The round ends, and was a variant of its path. False: these sizes came
// before.
bool Profiler::endVariant() {
  const OpPath* const path = matcher_.path();
  if (!variant_.isWholeRound() || !recorder_.active() || !matcher_.atEnd())
    return false;
  if (variant_.cameBefore(tokens_of(recorder_.path()))) return false;
  bindNewAgain(recorder_.path(), 0, *path);
  recorder_.stop();
  ended(*path, path->size());
  last_variant_ = std::move(recorder_.path());
  return true;
}

// The round that ended last, with the sizes that it had; null: none has ended.
// A variant's values have the numbers of its path's. So what a round of that
// path handed on to this one, this one hands on to the next; and what has not
// been seen to die yet dies where it does on that path.
std::shared_ptr<const OpPath> Profiler::lastRound() const {
  std::shared_ptr<const OpPath> path = history_.share(previous_path_);
  if (!last_variant_ || path == nullptr) return path;
  auto round = std::make_shared<OpPath>(*last_variant_);
  round->finish();
  std::vector<PathValue>& values = round->values();
  if (values.size() != path->values().size()) return round;
  for (std::uint32_t v = 0; v < values.size(); ++v) {
    PathValue& value = values[v];
    if (value.free_op == kNone) value.free_op = path->values()[v].free_op;
    if (!value.carried() || value.source_path != path->id()) continue;
    PathValue& source = values[value.source_value];
    if (source.carried()) continue; // the path saw it first, and it stays
    value.source_path = round->id();
    source.successor = v;
  }
  return round;
}

} // namespace chameleon::profiler
