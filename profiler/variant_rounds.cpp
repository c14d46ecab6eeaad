#include "profiler/variant_rounds.h"

namespace chameleon::profiler {

bool VariantRounds::goOn(std::uint32_t op, Token token,
                         std::span<const Use> uses, bool is_counted) {
  if (!core_.matcher.isShapeVariant(op, uses)) return false;
  if (rounds_.inGroup() || !core_.matcher.path()->rounds().empty()) {
    // The rounds of a group, one by one.
    rounds_.stopGroup();
    rounds_.leaveGroup();
    if (!core_.matcher.isShapeVariant(op, uses)) return false;
  }
  if (!core_.variant.isFollowed() && !is_counted) {
    divergences_.missed(op, token, DivergenceKind::kOp);
    is_counted = true;
  }
  if (!core_.recorder.active()) {
    rounds_.startRecording();
    core_.variant.beginRound(
        core_.matcher.path()->bornBytes(core_.matcher.position()));
  }
  core_.variant.follow(true);
  core_.matcher.setPlaced();
  weighExternalInputs(uses);
  rounds_.record(op, token, uses);
  const ContextMatch known = core_.matcher.wholeRound();
  if (known.path != nullptr) { // in these very sizes
    core_.variant.leave();
    rejoiner_.continueAt(known);
  } else if (!core_.variant.sizesAreNear() || core_.matcher.path() == nullptr) {
    if (!is_counted) divergences_.missed(op, token, DivergenceKind::kOp);
    rejoiner_.findPlace();
  } else {
    core_.matcher.advanceVariant(uses);
  }
  return true;
}

bool VariantRounds::goOnAtResult(std::uint32_t position, std::uint32_t output,
                                 BlockSlot slot) {
  const OpPath* const path = core_.matcher.path();
  if (path == nullptr || !path->rounds().empty() ||
      !core_.matcher.produceInVariant(position, output, slot)) {
    return false;
  }
  weighResult(position, output, slot);
  core_.variant.follow(core_.variant.sizesAreNear());
  return core_.variant.isFollowed();
}

void VariantRounds::weighResult(std::uint32_t position, std::uint32_t output,
                                BlockSlot slot) noexcept {
  const OpPath& path = *core_.matcher.path();
  core_.variant.weigh(
      core_.blocks[slot].bytes,
      path.values()[path.results(position)[output].value()].bytes);
}

// The next op's external inputs.
void VariantRounds::weighExternalInputs(std::span<const Use> uses) noexcept {
  const OpPath& path = *core_.matcher.path();
  const std::span<const Operand> operands = path.uses(core_.matcher.position());
  for (std::size_t i = 0; i < uses.size(); ++i) {
    const PathValue& value = path.values()[operands[i].value()];
    if (!value.isExternalInput() ||
        value.birth_op != core_.matcher.position() ||
        value.identity == uses[i].identity) { // it stays
      continue;
    }
    core_.variant.weigh(core_.blocks[uses[i].slot].bytes, value.bytes);
  }
}

} // namespace chameleon::profiler
