#include "profiler/profiler.h"

#include <algorithm>

namespace chameleon::profiler {
namespace {

constexpr std::uint32_t kSizeCheck = 1024; // ops between looks at a size

} // namespace

Profiler::Profiler(std::size_t history_limit_bytes, LiveBlocks::Gone gone)
    : blocks_(gone), history_(history_limit_bytes) {}

// ---- blocks ----------------------------------------------------------------

// The last op before the death is number op_count - 1.
void Profiler::recordDeath(const LiveBlock& block,
                           std::uint64_t op_count) noexcept {
  const auto diedAt = [op_count](PathValue& value, std::uint64_t begin) {
    if (op_count <= begin) return; // earlier: it is heard of late
    value.free_op = static_cast<std::uint32_t>(op_count - 1 - begin);
  };
  if (recorder_.active()) {
    const std::uint32_t v = recorder_.valueOf(block);
    if (v != kNone) diedAt(recorder_.path().values()[v], recording_begin_);
  } else if (OpPath* const path = matcher_.path()) {
    const std::uint32_t v = matcher_.valueOf(block);
    if (v != kNone) diedAt(path->values()[v], round_begin_);
  }
  // It outlived the round that made it.
  if (block.birth.path != 0 && block.birth.path == previous_path_ &&
      block.birth.round != matcher_.round()) {
    OpPath* const path = history_.find(previous_path_);
    if (path == nullptr) return;
    diedAt(path->values()[block.birth_value],
           round_begin_ - std::min<std::uint64_t>(round_begin_, previous_ops_));
  }
}

// ---- ops -------------------------------------------------------------------

// A recording goes on, or the op is not the expected one on bound blocks.
OpTicket Profiler::observeWhole(std::uint32_t op, Token token,
                                std::span<const Use> uses) noexcept {
  const Guard guard(lock_);
  const bool same = matcher_.advance(quick_half(token), UseList{uses},
                                     op_count_, recorder_.active());
  countOp();
  blocks_.setNow(opCount());
  bool rebound = false;
  if (same || matcher_.advanceRebinding(token, uses, rebound)) {
    if (rebound) missed(op, token, DivergenceKind::kOperand);
    unplaced_ = 0;
    if (recorder_.active()) {
      record(op, token, uses);
      if (matcher_.position() == 1 && group_.empty()) {
        entered_at_ = recorder_.path().size() - 1;
      }
      cutIfCertain();
    }
    return ticket(!rebound);
  }
  const std::uint64_t misses = misses_;
  observeOther(op, token, uses);
  ++epoch_;
  OpTicket made = ticket(misses_ == misses);
  // The cursor may wait where an op came between.
  if (unplaced_ > 0) made.leavePath();
  return made;
}

OpTicket Profiler::ticket(bool expected) const noexcept {
  const bool follows = matcher_.path() != nullptr;
  const bool records = recorder_.active();
  return {epoch_,
          records ? recorder_.path().size() - 1 : kNone,
          follows ? matcher_.lastPosition() : kNone,
          0,
          expected,
          follows && !records};
}

void Profiler::observeOther(std::uint32_t op, Token token,
                            std::span<const Use> uses) {
  if (matcher_.atEnd() && beginsNext(token, uses.size())) {
    bool rebound = false;
    if (matcher_.advanceRebinding(token, uses, rebound)) {
      if (rebound) missed(op, token, DivergenceKind::kOperand);
      if (recorder_.active()) record(op, token, uses);
      unplaced_ = 0;
      return;
    }
  }
  if (goOnInVariant(op, token, uses)) return;
  missed(op, token, DivergenceKind::kOp);
  stopGroup();
  leaveGroup();
  if (matcher_.atEnd() && automatic() && !beginsLonger(token)) {
    endRound();
    beginRound(opCount() - 1);
    stopGroup();
    if (goOnInVariant(op, token, uses, /*is_counted=*/true)) return;
  }
  if (!recorder_.active()) startRecording();
  record(op, token, uses);
  findPlace();
}

// The round so far, which no recording was needed for.
void Profiler::startRecording() {
  const OpPath* const path = matcher_.path();
  if (path != nullptr && matcher_.position() > 0) {
    recorder_.startWithPrefix(history_.nextId(), *path, matcher_.position());
  } else {
    recorder_.start(history_.nextId());
  }
  recording_begin_ = round_begin_;
}

// What was followed to its end was only the beginning of a known longer path.
bool Profiler::beginsLonger(Token token) const {
  const OpPath& path = *matcher_.path();
  const std::uint32_t end = path.size();
  return std::any_of(
      history_.paths().begin(), history_.paths().end(), [&](const auto& other) {
        return other->size() > end && other->op(end).token == token &&
               other->op(end - 1).token == path.op(end - 1).token &&
               other->op(0).token == path.op(0).token;
      });
}

// Past a path's end: does what usually follows begin?
bool Profiler::beginsNext(Token token, std::size_t uses) {
  OpPath* const next = pathAfter();
  if (next == nullptr || next->op(0).token != token ||
      next->uses(0).size() != uses) {
    return false;
  }
  if (automatic()) {
    endRound();
    beginRound(opCount() - 1);
    return true;
  }
  // Markers say where rounds end: this one goes on, as far as known.
  OpPath* const path = matcher_.path();
  if (!recorder_.active()) startRecording();
  entered_at_ = kNone;
  round_begin_ = opCount() - 1;
  matcher_.startRound(next, path);
  watching_deaths_ = true;
  return true;
}

void Profiler::missed(std::uint32_t op, Token token, DivergenceKind kind) {
  ++misses_;
  if (matcher_.path() == nullptr) return; // nothing was expected
  // A rebound op was the expected one: the cursor is behind it.
  const bool behind = kind == DivergenceKind::kOperand;
  Divergence& divergence =
      diverged(kind, matcher_.position() - (behind ? 1 : 0));
  divergence.op = opCount() - 1;
  divergence.seen_op = op;
  divergence.seen_token = token;
  if (divergence.expected_op == kNone) {
    divergence.kind = DivergenceKind::kEnd;
  } else if (divergence.expected_token == token) {
    divergence.kind = DivergenceKind::kOperand;
  }
}

// The run is not as the path has it. REQUIRES: a path is followed.
Divergence& Profiler::diverged(DivergenceKind kind, std::uint32_t position) {
  ++divergences_;
  const OpPath& path = *matcher_.path();
  Divergence& divergence = last_divergence_;
  divergence = {};
  divergence.kind = kind;
  divergence.step = steps();
  divergence.op = opCount();
  divergence.path = path.id();
  divergence.position = position;
  if (position < path.size()) {
    divergence.expected_op = path.op(position).op;
    divergence.expected_token = path.op(position).token;
  }
  return divergence;
}

void Profiler::record(std::uint32_t op, Token token,
                      std::span<const Use> uses) {
  OpPath& path = recorder_.path();
  if (path.size() % kSizeCheck == kSizeCheck - 1 &&
      path.memoryBytes() > history_.pathLimitBytes()) [[unlikely]] {
    // Endless novelty: this much of it is a path.
    stopGroup();
    endRound();
    beginRound(opCount() - 1);
    group_.clear();
    matcher_.lose();
    recorder_.start(history_.nextId());
    recording_begin_ = round_begin_;
    entered_at_ = kNone;
  }
  recorder_.record(op, token, uses, matcher_.round());
  watching_deaths_ = true;
}

// ---- results ---------------------------------------------------------------

// In another epoch it is nobody's result: another thread's op came between, and
// left the sequence. It will be carried in where it is used.
void Profiler::otherResult(OpTicket& ticket, std::uint32_t output,
                           BlockSlot slot) noexcept {
  const Guard guard(lock_, std::adopt_lock);
  blocks_[slot].birth.path = 0;
  if (ticket.epoch != epoch_) return;
  if (ticket.position != kNone) {
    if (matcher_.bindNew(ticket.position, output, slot, blocks_[slot])) {
      weighResult(ticket.position, output, slot);
    } else {
      leaveAtResult(ticket, output, slot);
    }
  }
  if (recorder_.active() && ticket.recorded + 1 == recorder_.path().size()) {
    recorder_.recordResult(slot, output, matcher_.round());
  }
}

// The expected op made something else; or the same in another size, then the
// path may be followed on.
void Profiler::leaveAtResult(OpTicket& ticket, std::uint32_t output,
                             BlockSlot slot) {
  const OpPath& path = *matcher_.path();
  const std::uint32_t position = ticket.position;
  const PathOp op = path.op(position);
  if (!variant_.isFollowed()) {
    Divergence& divergence = diverged(DivergenceKind::kResult, position);
    divergence.op = opCount() - 1;
    divergence.seen_op = op.op;
    divergence.seen_token = op.token;
  }
  ticket.leavePath();
  if (position + 1 != matcher_.position()) return;
  stopGroup();
  blocks_.setNow(opCount());
  if (!recorder_.active()) {
    std::vector<Use> uses;
    for (const Operand use : path.uses(position)) {
      const PathValue& value = path.values()[use.value()];
      uses.push_back({value.identity, value.slot, use.flags()});
    }
    std::vector<BlockSlot> before; // earlier results of the same op
    before.reserve(output);
    for (std::uint32_t i = 0; i < output; ++i) {
      before.push_back(path.values()[path.results(position)[i].value()].slot);
    }
    recorder_.startWithPrefix(history_.nextId(), path, position);
    recording_begin_ = round_begin_;
    variant_.beginRound(path.bornBytes(position));
    record(op.op, op.token, uses);
    for (std::uint32_t i = 0; i < before.size(); ++i) {
      recorder_.recordResult(before[i], i, matcher_.round());
    }
    ticket.recorded = recorder_.path().size() - 1;
  }
  ticket.epoch = ++epoch_;
  if (produceInVariant(position, output, slot)) {
    ticket.position = position;
    return;
  }
  entered_at_ = kNone;
  variant_.leave();
  matcher_.lose();
}

void Profiler::finished(const OpTicket& ticket, std::uint64_t workspace_bytes) {
  const Guard guard(lock_);
  if (ticket.epoch != epoch_) return;
  if (ticket.position != kNone && !variant_.isFollowed()) {
    matcher_.path()->setWorkspace(ticket.position, workspace_bytes);
  }
  if (ticket.recorded != kNone && recorder_.active() &&
      ticket.recorded < recorder_.path().size()) {
    recorder_.path().setWorkspace(ticket.recorded, workspace_bytes);
  }
}

// ---- answers ---------------------------------------------------------------

// A path that was recorded when its blocks were new (a first step's weights)
// has external inputs that in fact stay from round to round: such a one was not
// seen to die, or did not die in the round before the last.
bool Profiler::outlives(const PathValue& value) const noexcept {
  return value.isExternalInput() && value.successor == kNone &&
         (value.free_op == kNone
              ? blocks_.stillAlive(value.slot, value.identity)
              : matcher_.stays(value));
}

OpPath* Profiler::pathAfter() const {
  const OpPath* const path = matcher_.path();
  if (path == nullptr) return nullptr;
  return history_.find(finder_.nextAfter(path->id()));
}

RunCounts Profiler::counts() const noexcept {
  const Guard guard(lock_);
  return {opCount(), steps(), misses_, previous_path_};
}

ProfilerState Profiler::state() const {
  const Guard guard(lock_);
  ProfilerState state;
  state.paths = history_.paths().size();
  state.recorded_ops = history_.ops();
  state.live_block_bytes = blocks_.memoryBytes();
  state.memory_bytes =
      history_.bytes() + recorder_.path().memoryBytes() + blocks_.memoryBytes();
  if (last_variant_) state.memory_bytes += last_variant_->memoryBytes();
  state.limit_bytes = history_.limitBytes();
  state.dropped_paths = history_.dropped();
  if (const OpPath* const path = matcher_.path()) {
    state.matching =
        recorder_.active() && group_.empty() && !variant_.isWholeRound()
            ? Matching::kRejoined
            : Matching::kFollowing;
    state.path = path->id();
    state.position = matcher_.position();
    state.path_ops = path->size();
    state.path_bytes = path->memoryBytes();
  }
  state.marked = markers_.used();
  state.ops = opCount();
  state.steps = steps();
  state.forecast_hits = opCount() - misses_;
  state.forecast_misses = misses_;
  state.divergences = divergences_;
  state.lock_waits = lock_.waits();
  state.last_divergence = last_divergence_;
  return state;
}

} // namespace chameleon::profiler
