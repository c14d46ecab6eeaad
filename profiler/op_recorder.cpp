#include "profiler/op_recorder.h"

namespace chameleon::profiler {

void OpRecorder::start(PathId id, std::uint64_t first_op) {
  path_.clear(id);
  first_op_ = first_op;
  entered_at_ = kNone;
  active_ = true;
}

void OpRecorder::startWithPrefix(PathId id, const OpPath& path,
                                 std::uint32_t ops, std::uint64_t first_op) {
  OpPath prefix = path.part(0, ops, id);
  for (PathValue& value : prefix.values()) {
    // Later deaths are those of earlier rounds.
    if (value.free_op != kNone && value.free_op >= ops) value.free_op = kNone;
  }
  continueWith(std::move(prefix), first_op);
}

void OpRecorder::continueWith(OpPath rest, std::uint64_t first_op) {
  path_ = std::move(rest);
  first_op_ = first_op;
  entered_at_ = kNone;
  active_ = true;
  std::vector<PathValue>& values = path_.values();
  for (std::uint32_t v = 0; v < values.size(); ++v) {
    PathValue& value = values[v];
    value.successor = kNone;
    if (!blocks_.alive(value.slot, value.identity)) continue;
    LiveBlock& block = blocks_[value.slot];
    block.recorded_value = v;
    if (!value.carried()) {
      block.birth.path = path_.id();
      block.birth_value = v;
    }
  }
}

std::uint32_t OpRecorder::valueOf(const LiveBlock& block) const noexcept {
  const std::vector<PathValue>& values = path_.values();
  const std::uint32_t v = block.recorded_value;
  return v < values.size() && values[v].identity == block.identity ? v : kNone;
}

void OpRecorder::record(std::uint32_t op, Token token,
                        std::span<const Use> uses, std::uint32_t round) {
  path_.addOp(op, token);
  std::uint32_t output = PathValue::kExternalInput;
  for (const Use& use : uses) {
    LiveBlock& block = blocks_[use.slot];
    std::uint32_t flags = use.flags;
    std::uint32_t v = valueOf(block);
    if (v == kNone && blocks_.begins(block)) {
      v = bindNew(use.slot, output++, round);
      blocks_.beginNow(block);
      flags |= Operand::kCreates;
    } else if (v == kNone) {
      PathValue value;
      value.identity = block.identity;
      value.bytes = block.bytes;
      value.slot = use.slot;
      value.source_path = block.birth.path;
      value.source_value = block.birth_value;
      v = path_.addValue(value);
      block.recorded_value = v;
    }
    path_.addUse(v, flags);
  }
}

void OpRecorder::recordResult(BlockSlot slot, std::uint32_t output,
                              std::uint32_t round) {
  path_.addResult(bindNew(slot, output, round));
}

// A value that begins with the op recorded last.
std::uint32_t OpRecorder::bindNew(BlockSlot slot, std::uint32_t output,
                                  std::uint32_t round) {
  LiveBlock& block = blocks_[slot];
  PathValue value;
  value.identity = block.identity;
  value.bytes = block.bytes;
  value.slot = slot;
  value.birth_op = path_.size() - 1;
  value.output = output;
  const std::uint32_t v = path_.addValue(value);
  block.recorded_value = v;
  block.birth = {path_.id(), round};
  block.birth_value = v;
  return v;
}

} // namespace chameleon::profiler
