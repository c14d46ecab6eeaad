#include "profiler/sequence_matcher.h"

#include <algorithm>

namespace chameleon::profiler {
namespace {

constexpr std::uint32_t kPatience = 4; // unknown ops before all is unknown

} // namespace

const OpPath* SequenceMatcher::pathOf(PathId id) const noexcept {
  if (id == 0) return nullptr;
  if (path() != nullptr && path()->id() == id) return path();
  if (recorder_.active() && recorder_.path().id() == id) {
    return &recorder_.path();
  }
  return history_.find(id);
}

// ---- bindings ------------------------------------------------------------

bool SequenceMatcher::outlives(const PathValue& value) const noexcept {
  return value.isExternalInput() && value.successor == kNone &&
         (value.free_op == kNone
              ? blocks_.stillAlive(value.slot, value.identity)
              : input_has_stayed(blocks_, value, walk_.round));
}

// By a block of this round, or by an external input that stays.
bool SequenceMatcher::isTaken(const PathValue& value) const {
  if (!blocks_.stillAlive(value.slot, value.identity)) return false;
  return blocks_[value.slot].birth.round == walk_.round ||
         input_has_stayed(blocks_, value, walk_.round);
}

bool SequenceMatcher::bindable(const OpPath& path, std::uint32_t position,
                               const PathValue& value, const LiveBlock& block,
                               Sizes sizes, bool& rebound) const {
  if (value.identity == block.identity) return true;
  if (sizes == Sizes::kEqual && value.bytes != block.bytes) return false;
  const bool born_now =
      block.birth.path != 0 && block.birth.round == walk_.round;
  if (!value.carried()) {
    if (isTaken(value)) return false;
    if (value.birth_op == position) return blocks_.begins(block);
    if (!born_now) return false;
    const OpPath* const birth = pathOf(block.birth.path);
    if (birth == nullptr) return false;
    const PathValue& born = birth->values()[block.birth_value];
    if (born.carried() || born.output != value.output) return false;
    const PathOp& there = birth->op(born.birth_op);
    const PathOp& here = path.op(value.birth_op);
    return sizes == Sizes::kEqual ? there.token == here.token
                                  : there.op == here.op;
  }
  if (born_now) return false;
  if (block.birth.path != 0 && value.source_path == block.birth.path &&
      value.source_value == block.birth_value) {
    return true;
  }
  if (blocks_.stillAlive(value.slot, value.identity)) return false;
  rebound = true;
  return true;
}

bool SequenceMatcher::advanceRebinding(Token token, std::span<const Use> uses,
                                       bool& rebound) {
  if (cursor_.isPastEnd() || cursor_.next().token != token) return false;
  bool other = false;
  if (!allBindable(uses, Sizes::kEqual, other)) return false;
  rebound = other;
  bindAll(uses);
  cursor_.moveOn();
  return true;
}

bool SequenceMatcher::isShapeVariant(std::uint32_t op,
                                     std::span<const Use> uses) const {
  if (cursor_.isPastEnd() || cursor_.next().op != op) return false;
  bool rebound = false;
  return allBindable(uses, Sizes::kAny, rebound);
}

// Can the values that the next op uses be these?
bool SequenceMatcher::allBindable(std::span<const Use> uses, Sizes sizes,
                                  bool& rebound) const {
  const std::span<const Operand> operands = path()->uses(position());
  if (operands.size() != uses.size()) return false;
  for (std::size_t i = 0; i < uses.size(); ++i) {
    if (!bindable(*path(), position(), cursor_.values()[operands[i].value()],
                  blocks_[uses[i].slot], sizes, rebound)) {
      return false;
    }
  }
  return true;
}

void SequenceMatcher::advanceVariant(std::span<const Use> uses) {
  bindAll(uses);
  variant_at_ = position();
  cursor_.moveOn();
}

// The values that the next op uses, to the blocks that it uses.
void SequenceMatcher::bindAll(std::span<const Use> uses) {
  const std::span<const Operand> operands = path()->uses(position());
  for (std::size_t i = 0; i < uses.size(); ++i) {
    const std::uint32_t v = operands[i].value();
    const LiveBlock& block = blocks_[uses[i].slot];
    if (cursor_.values()[v].identity == block.identity) continue;
    bind(v, uses[i].slot);
    if (cursor_.values()[v].carried() && block.birth.path != 0) {
      path()->link(v, block.birth.path, block.birth_value);
    }
  }
}

// To an operand of the op that is being observed.
void SequenceMatcher::bind(std::uint32_t v, BlockSlot slot) {
  PathValue& value = cursor_.values()[v];
  LiveBlock& block = blocks_[slot];
  if (!value.carried() && blocks_.begins(block)) {
    begin(v, slot);
    return;
  }
  value.identity = block.identity;
  value.slot = slot;
  block.value = v;
  if (value.carried()) blocks_.beganBefore(block);
}

void SequenceMatcher::bindOp(OpPath& path, std::uint32_t position,
                             const OpPath& recording, std::uint32_t recorded) {
  const std::span<const Operand> here = path.operands(position);
  const std::span<const Operand> there = recording.operands(recorded);
  const std::size_t count = std::min(here.size(), there.size());
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint32_t v = here[i].value();
    PathValue& value = path.values()[v];
    const PathValue& actual = recording.values()[there[i].value()];
    if (value.bytes != actual.bytes) continue;
    const bool other = value.identity != actual.identity;
    value.identity = actual.identity;
    value.slot = actual.slot;
    if (!blocks_.alive(actual.slot, actual.identity)) continue;
    LiveBlock& block = blocks_[actual.slot];
    block.value = v;
    // (One that begins there only replaces another one.)
    if (other && value.carried() && actual.birth_op != recorded &&
        block.birth.path != 0) {
      path.link(v, block.birth.path, block.birth_value);
    }
  }
}

// ---- moving --------------------------------------------------------------

void SequenceMatcher::setCursor(OpPath* path, std::uint32_t position) noexcept {
  cursor_.set(path, path != nullptr ? position : 0);
  variant_at_ = kNone;
  if (path != nullptr) walk_.path = path->id();
}

// Queries find a block's value by its hint: what was there before is known
// before its first use. Once a round: it costs as much as the path is long, and
// a round may come back to a path at every op.
void SequenceMatcher::hintCarried(const OpPath& path) {
  if (std::find(hinted_.begin(), hinted_.end(), path.id()) != hinted_.end()) {
    return;
  }
  hinted_.push_back(path.id());
  for (const auto& [identity, v] : path.identities()) {
    const PathValue& value = path.values()[v];
    if (blocks_.alive(value.slot, value.identity)) {
      blocks_[value.slot].value = v;
    }
  }
}

std::uint32_t SequenceMatcher::valueOf(const LiveBlock& block) const noexcept {
  if (path() == nullptr) return kNone;
  const std::vector<PathValue>& values = path()->values();
  if (block.value < values.size() &&
      values[block.value].identity == block.identity) {
    return block.value;
  }
  return path()->valueBoundTo(block.identity);
}

void SequenceMatcher::startRound(OpPath* path, OpPath* previous) {
  ++walk_.round;
  const bool other = path != cursor_.path();
  setCursor(path, 0);
  if (path == nullptr) return;
  history_.used(*path);
  path->walked();
  if (other) hintCarried(*path);
  if (previous == nullptr) return;
  for (const std::uint32_t v : path->linked()) {
    PathValue& value = path->values()[v];
    if (value.source_path != previous->id()) continue;
    const PathValue& source = previous->values()[value.source_value];
    if (!blocks_.alive(source.slot, source.identity)) continue;
    value.identity = source.identity;
    value.slot = source.slot;
    blocks_[source.slot].value = v;
  }
}

void SequenceMatcher::follow(const ContextMatch& match) {
  if (path() != match.path) {
    history_.used(*match.path);
    hintCarried(*match.path);
  }
  setCursor(match.path, match.position + 1);
  const std::uint32_t last = recorder_.path().size() - 1;
  for (std::uint32_t k = match.length; k-- > 0;) {
    bindOp(*path(), match.position - k, recorder_.path(), last - k);
  }
}

void SequenceMatcher::lose() noexcept {
  if (path() != nullptr) {
    left_path_ = path()->id();
    left_position_ = position();
  }
  setCursor(nullptr, 0);
}

// ---- relocation ------------------------------------------------------------

// Does the op recorded last fit the path as it is bound in this round?
bool SequenceMatcher::fits(const OpPath& path, std::uint32_t position) const {
  const OpPath& own = recorder_.path();
  const std::uint32_t last = own.size() - 1;
  const std::span<const Operand> here = path.uses(position);
  const std::span<const Operand> there = own.uses(last);
  if (own.op(last).token != path.op(position).token ||
      here.size() != there.size()) {
    return false;
  }
  bool rebound = false;
  for (std::size_t i = 0; i < here.size(); ++i) {
    if (!bindable(path, position, path.values()[here[i].value()],
                  blocks_[own.values()[there[i].value()].slot], Sizes::kEqual,
                  rebound)) {
      return false;
    }
  }
  return true;
}

// Is an operand of the op recorded last the very block that is expected there?
bool SequenceMatcher::onBound(const OpPath& path,
                              std::uint32_t position) const {
  const OpPath& own = recorder_.path();
  const std::span<const Operand> here = path.uses(position);
  const std::span<const Operand> there = own.uses(own.size() - 1);
  for (std::size_t i = 0; i < here.size(); ++i) {
    if (path.values()[here[i].value()].identity ==
        own.values()[there[i].value()].identity) {
      return true;
    }
  }
  return false;
}

// Ops came between or were left out: on in the path that was left. (An op that
// came between may be like one of the next layer.)
ContextMatch SequenceMatcher::resume() {
  OpPath* const path = history_.find(left_path_);
  if (path == nullptr) return {};
  const std::uint32_t end =
      std::min(path->size(), left_position_ + kMostSkipped + 1);
  for (std::uint32_t i = left_position_; i < end; ++i) {
    if (!fits(*path, i) || (i > left_position_ && !onBound(*path, i))) continue;
    return {path, i,
            std::max(search_.length(*path, i, ContextSearch::kWholeContext,
                                    walk_.round),
                     1U)};
  }
  return {};
}

ContextMatch SequenceMatcher::findPlace(bool in_itself) {
  const bool must_be_anchored = unplaced_ops_ < kPatience && path() != nullptr;
  lose();
  ContextMatch match = wholeRound();
  if (match.path == nullptr) match = resume();
  if (match.path == nullptr) {
    match = search_.longest(in_itself, must_be_anchored, walk_.round);
  }
  if (match.path != nullptr) {
    unplaced_ops_ = 0;
  } else if (++unplaced_ops_ <= kPatience) {
    setCursor(history_.find(left_path_), left_position_);
  }
  return match;
}

} // namespace chameleon::profiler
