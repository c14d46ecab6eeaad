#include "profiler/profiler.h"

#include <mutex>

namespace chameleon::profiler {

Profiler::Profiler(std::size_t history_limit_bytes, LiveBlocks::Gone gone)
    : core_(history_limit_bytes, gone) {}

// ---- ops -------------------------------------------------------------------

// A recording goes on, or the op is not the expected one on bound blocks.
OpTicket Profiler::observeWhole(std::uint32_t op, Token token,
                                std::span<const Use> uses) noexcept {
  const Guard guard(core_.lock);
  const bool same =
      core_.matcher.advance(quick_half(token), UseList{uses}, core_.op_count,
                            core_.recorder.active());
  core_.countOp();
  core_.blocks.setNow(opCount());
  bool rebound = false;
  if (same || core_.matcher.advanceRebinding(token, uses, rebound)) {
    if (rebound) divergences_.missed(op, token, DivergenceKind::kOperand);
    core_.matcher.setPlaced();
    if (core_.recorder.active()) {
      rounds_.record(op, token, uses);
      if (core_.matcher.position() == 1 && !rounds_.inGroup()) {
        core_.recorder.setEnteredAt(core_.recorder.path().size() - 1);
      }
      rejoiner_.cutIfCertain();
    }
    return ticket(!rebound);
  }
  const std::uint64_t misses = divergences_.misses();
  observeOther(op, token, uses);
  ++core_.epoch;
  OpTicket made = ticket(divergences_.misses() == misses);
  // The cursor may wait where an op came between.
  if (core_.matcher.isUnplaced()) made.leavePath();
  return made;
}

OpTicket Profiler::ticket(bool expected) const noexcept {
  const bool follows = core_.matcher.path() != nullptr;
  const bool records = core_.recorder.active();
  return {core_.epoch,
          records ? core_.recorder.path().size() - 1 : kNone,
          follows ? core_.matcher.position() - 1 : kNone,
          0,
          expected,
          follows && !records};
}

void Profiler::observeOther(std::uint32_t op, Token token,
                            std::span<const Use> uses) {
  if (core_.matcher.atEnd() && rounds_.beginsNext(token, uses.size())) {
    bool rebound = false;
    if (core_.matcher.advanceRebinding(token, uses, rebound)) {
      if (rebound) divergences_.missed(op, token, DivergenceKind::kOperand);
      if (core_.recorder.active()) rounds_.record(op, token, uses);
      core_.matcher.setPlaced();
      return;
    }
  }
  if (variants_.goOn(op, token, uses)) return;
  divergences_.missed(op, token, DivergenceKind::kOp);
  rounds_.stopGroup();
  rounds_.leaveGroup();
  if (core_.matcher.atEnd() && rounds_.automatic() &&
      !rounds_.beginsLonger(token)) {
    rounds_.end();
    rounds_.begin(opCount() - 1);
    rounds_.stopGroup();
    if (variants_.goOn(op, token, uses, /*is_counted=*/true)) return;
  }
  if (!core_.recorder.active()) rounds_.startRecording();
  rounds_.record(op, token, uses);
  rejoiner_.findPlace();
}

void Profiler::step() {
  const Guard guard(core_.lock);
  rounds_.step();
}

// ---- results ---------------------------------------------------------------

// In another epoch it is nobody's result: another thread's op came between, and
// left the sequence. It will be carried in where it is used.
void Profiler::otherResult(OpTicket& ticket, std::uint32_t output,
                           BlockSlot slot) noexcept {
  const Guard guard(core_.lock, std::adopt_lock);
  core_.blocks[slot].birth.path = 0;
  if (ticket.epoch != core_.epoch) return;
  if (ticket.position != kNone) {
    if (core_.matcher.bindNew(ticket.position, output, slot,
                              core_.blocks[slot])) {
      variants_.weighResult(ticket.position, output, slot);
    } else {
      leaveAtResult(ticket, output, slot);
    }
  }
  if (core_.recorder.active() &&
      ticket.recorded + 1 == core_.recorder.path().size()) {
    core_.recorder.recordResult(slot, output, core_.matcher.round());
  }
}

// The expected op made something else; or the same in another size, then the
// path may be followed on.
void Profiler::leaveAtResult(OpTicket& ticket, std::uint32_t output,
                             BlockSlot slot) {
  const OpPath& path = *core_.matcher.path();
  const std::uint32_t position = ticket.position;
  const PathOp op = path.op(position);
  if (!core_.variant.isFollowed()) {
    Divergence& divergence =
        divergences_.diverged(DivergenceKind::kResult, position);
    divergence.op = opCount() - 1;
    divergence.seen_op = op.op;
    divergence.seen_token = op.token;
  }
  ticket.leavePath();
  if (position + 1 != core_.matcher.position()) return;
  rounds_.stopGroup();
  core_.blocks.setNow(opCount());
  if (!core_.recorder.active()) recordFromResult(ticket, position, output);
  ticket.epoch = ++core_.epoch;
  if (variants_.goOnAtResult(position, output, slot)) {
    ticket.position = position;
    return;
  }
  core_.recorder.setEnteredAt(kNone);
  core_.variant.leave();
  core_.matcher.lose();
}

// Records the round from its beginning to the op at `position`, with the
// results before this one.
void Profiler::recordFromResult(OpTicket& ticket, std::uint32_t position,
                                std::uint32_t output) {
  const OpPath& path = *core_.matcher.path();
  const PathOp op = path.op(position);
  std::vector<Use> uses;
  for (const Operand use : path.uses(position)) {
    const PathValue& value = path.values()[use.value()];
    uses.push_back({value.identity, value.slot, use.flags()});
  }
  std::vector<BlockSlot> before;
  before.reserve(output);
  for (std::uint32_t i = 0; i < output; ++i) {
    before.push_back(path.values()[path.results(position)[i].value()].slot);
  }
  rounds_.startRecording(position);
  core_.variant.beginRound(path.bornBytes(position));
  rounds_.record(op.op, op.token, uses);
  for (std::uint32_t i = 0; i < before.size(); ++i) {
    core_.recorder.recordResult(before[i], i, core_.matcher.round());
  }
  ticket.recorded = core_.recorder.path().size() - 1;
}

void Profiler::finished(const OpTicket& ticket, std::uint64_t workspace_bytes) {
  const Guard guard(core_.lock);
  if (ticket.epoch != core_.epoch) return;
  if (ticket.position != kNone && !core_.variant.isFollowed()) {
    core_.matcher.path()->setWorkspace(ticket.position, workspace_bytes);
  }
  if (ticket.recorded != kNone && core_.recorder.active() &&
      ticket.recorded < core_.recorder.path().size()) {
    core_.recorder.path().setWorkspace(ticket.recorded, workspace_bytes);
  }
}

// ---- answers ---------------------------------------------------------------

RunCounts Profiler::counts() const noexcept {
  const Guard guard(core_.lock);
  return {opCount(), steps(), divergences_.misses(), rounds_.lastPathId()};
}

ProfilerState Profiler::state() const {
  const Guard guard(core_.lock);
  ProfilerState state;
  state.paths = core_.history.paths().size();
  state.recorded_ops = core_.history.ops();
  state.live_block_bytes = core_.blocks.memoryBytes();
  state.memory_bytes = core_.history.bytes() +
                       core_.recorder.path().memoryBytes() +
                       core_.blocks.memoryBytes() + rounds_.memoryBytes();
  state.limit_bytes = core_.history.limitBytes();
  state.dropped_paths = core_.history.dropped();
  if (const OpPath* const path = core_.matcher.path()) {
    state.matching = core_.recorder.active() && !rounds_.inGroup() &&
                             !core_.variant.isWholeRound()
                         ? Matching::kRejoined
                         : Matching::kFollowing;
    state.path = path->id();
    state.position = core_.matcher.position();
    state.path_ops = path->size();
    state.path_bytes = path->memoryBytes();
  }
  state.marked = rounds_.marked();
  state.ops = opCount();
  state.steps = steps();
  state.forecast_hits = opCount() - divergences_.misses();
  state.forecast_misses = divergences_.misses();
  state.divergences = divergences_.divergences();
  state.lock_waits = core_.lock.waits();
  state.last_divergence = divergences_.last();
  return state;
}

} // namespace chameleon::profiler
