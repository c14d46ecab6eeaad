#include "profiler/rounds.h"

#include <algorithm>

namespace chameleon::profiler {
namespace {

constexpr std::uint32_t kSizeCheck = 1024; // ops between looks at a size
constexpr std::uint32_t kFirstWalks = 4;
constexpr std::uint32_t kWalksBetween = 16;

Token tokens_of(const OpPath& path) {
  TokenHasher hasher(path.size());
  for (std::uint32_t i = 0; i < path.size(); ++i) hasher.add(path.op(i).token);
  return hasher.token();
}

} // namespace

// ---- where rounds end ------------------------------------------------------

void Rounds::step() {
  markers_.mark(core_.opCount());
  stopGroup();
  if (core_.opCount() == begin_) return;
  const SequenceMatcher& matcher = core_.matcher;
  if (matcher.path() != nullptr && !matcher.atEnd()) {
    (void)divergences_.diverged(DivergenceKind::kNewRound, matcher.position());
  }
  end();
  begin(core_.opCount());
  ++core_.epoch;
}

void Rounds::end() {
  if (!group_.empty()) {
    if (endGroup()) return;
    stopGroup();
  }
  if (endVariant()) return;
  OpRecorder& recorder = core_.recorder;
  const SequenceMatcher& matcher = core_.matcher;
  if (!recorder.active()) {
    const OpPath* const path = matcher.path();
    if (path == nullptr || matcher.position() == 0) return;
    if (matcher.atEnd()) {
      ended(*path, path->size());
      return;
    }
    startRecording();
  }
  const std::uint32_t ops = recorder.path().size();
  if (ops > 0) ended(close(std::move(recorder.path())), ops);
  recorder.stop();
}

// One more round of the group that is being recorded; with the last one the
// group is a path. False: the round was another one.
bool Rounds::endGroup() {
  OpRecorder& recorder = core_.recorder;
  const OpPath* const path = core_.matcher.path();
  const std::size_t done = group_rounds_.size();
  if (!core_.matcher.atEnd() || group_[done] != path->id()) return false;
  group_rounds_.push_back({recorder.path().size() - path->size(), path->id()});
  ended(*path, path->size());
  if (done + 1 < group_.size()) return true; // on with the recording
  group_.clear();
  const std::uint32_t ops = recorder.path().size();
  recorder.path().setRounds(std::move(group_rounds_));
  const OpPath& whole = close(std::move(recorder.path()));
  recorder.stop();
  finder_.grouped(whole.id(), ops);
  previous_path_ = whole.id();
  previous_ops_ = ops;
  return true;
}

// The round was a shape variant of its path. False: it was none, or these sizes
// came before.
bool Rounds::endVariant() {
  OpRecorder& recorder = core_.recorder;
  const OpPath* const path = core_.matcher.path();
  if (!core_.variant.isWholeRound() || !recorder.active() ||
      !core_.matcher.atEnd()) {
    return false;
  }
  if (core_.variant.cameBefore(tokens_of(recorder.path()))) return false;
  moveBirths(recorder.path(), 0, *path);
  recorder.stop();
  ended(*path, path->size());
  last_variant_ = std::move(recorder.path());
  return true;
}

void Rounds::begin(std::uint64_t first_op) {
  OpRecorder& recorder = core_.recorder;
  SequenceMatcher& matcher = core_.matcher;
  begin_ = first_op;
  recorder.setEnteredAt(kNone);
  core_.variant.leave();
  if (group_.empty() && automatic()) {
    group_ = finder_.group();
    if (!group_.empty()) {
      group_rounds_.clear();
      recorder.start(core_.history.nextId(), first_op);
    }
  }
  matcher.forgetRound();
  matcher.startRound(core_.history.find(finder_.next()),
                     core_.history.find(previous_path_));
  // Deaths are learned in a path's first rounds, and looked at again now and
  // then: for two rounds, since some die in the round after.
  const OpPath* const path = matcher.path();
  if (!recorder.active() && path != nullptr && path->id() == previous_path_) {
    recorder.release(); // steady
  }
  watches_deaths_ = path == nullptr || recorder.active() ||
                    path->walks() <= kFirstWalks ||
                    path->walks() % kWalksBetween < 2;
}

void Rounds::ended(const OpPath& path, std::uint32_t ops) {
  core_.step_count.store(core_.stepCount() + 1, std::memory_order_relaxed);
  previous_path_ = path.id();
  previous_ops_ = ops;
  last_variant_.reset();
  finder_.roundEnded(path.id(), ops);
}

// ---- the end of a known path -----------------------------------------------

bool Rounds::beginsLonger(Token token) const {
  const OpPath& path = *core_.matcher.path();
  const std::uint32_t end = path.size();
  const auto& paths = core_.history.paths();
  return std::any_of(paths.begin(), paths.end(), [&](const auto& other) {
    return other->size() > end && other->op(end).token == token &&
           other->op(end - 1).token == path.op(end - 1).token &&
           other->op(0).token == path.op(0).token;
  });
}

bool Rounds::beginsNext(Token token, std::size_t uses) {
  OpPath* const following = next();
  if (following == nullptr || following->op(0).token != token ||
      following->uses(0).size() != uses) {
    return false;
  }
  if (automatic()) {
    end();
    begin(core_.opCount() - 1);
    return true;
  }
  // Markers say where rounds end: this one goes on, as far as known.
  OpPath* const path = core_.matcher.path();
  if (!core_.recorder.active()) startRecording();
  core_.recorder.setEnteredAt(kNone);
  setBeganAgo(1);
  core_.matcher.startRound(following, path);
  watches_deaths_ = true;
  return true;
}

OpPath* Rounds::next() const {
  const OpPath* const path = core_.matcher.path();
  if (path == nullptr) return nullptr;
  return core_.history.find(finder_.nextAfter(path->id()));
}

// ---- recordings ------------------------------------------------------------

void Rounds::startRecording(std::uint32_t position) {
  const OpPath* const path = core_.matcher.path();
  const PathId id = core_.history.nextId();
  if (path != nullptr && position > 0) {
    core_.recorder.startWithPrefix(id, *path, position, begin_);
  } else {
    core_.recorder.start(id, begin_);
  }
}

void Rounds::record(std::uint32_t op, Token token, std::span<const Use> uses) {
  OpRecorder& recorder = core_.recorder;
  const OpPath& path = recorder.path();
  if (path.size() % kSizeCheck == kSizeCheck - 1 &&
      path.memoryBytes() > core_.history.pathLimitBytes()) [[unlikely]] {
    // Endless novelty: this much of it is a path.
    stopGroup();
    end();
    begin(core_.opCount() - 1);
    group_.clear();
    core_.matcher.lose();
    recorder.start(core_.history.nextId(), begin_);
  }
  recorder.record(op, token, uses, core_.matcher.round());
  watches_deaths_ = true;
}

OpPath& Rounds::close(OpPath path) {
  LiveBlocks& blocks = core_.blocks;
  path.finish();
  OpPath* const known = core_.history.findEqual(path, blocks);
  const PathId id = known != nullptr ? known->id() : path.id();
  for (std::uint32_t v = 0; v < path.values().size(); ++v) {
    const PathValue& value = path.values()[v];
    if (value.carried() || !blocks.alive(value.slot, value.identity)) continue;
    blocks[value.slot].birth.path = id;
    blocks[value.slot].birth_value = v;
  }
  if (known == nullptr) {
    return core_.history.add(std::move(path), core_.matcher.path());
  }
  // (The path that is walked just now is bound to what it meets.)
  if (known != core_.matcher.path()) known->bindLike(path);
  return *known;
}

void Rounds::moveBirths(const OpPath& recording, std::uint32_t begin,
                        const OpPath& path) {
  for (const PathValue& value : recording.values()) {
    if (value.carried() || value.birth_op < begin ||
        !core_.blocks.alive(value.slot, value.identity)) {
      continue;
    }
    LiveBlock& block = core_.blocks[value.slot];
    if (block.value >= path.values().size() ||
        path.values()[block.value].identity != block.identity) {
      continue;
    }
    if (path.values()[block.value].carried()) { // it replaces another one
      block.birth.path = 0;
      continue;
    }
    block.birth = {path.id(), core_.matcher.round()};
    block.birth_value = block.value;
  }
}

// ---- groups ----------------------------------------------------------------

void Rounds::stopGroup() noexcept {
  if (group_.empty()) return;
  group_.clear();
  core_.recorder.stop();
}

void Rounds::leaveGroup() {
  OpRecorder& recorder = core_.recorder;
  SequenceMatcher& matcher = core_.matcher;
  const OpPath* const path = matcher.path();
  if (path == nullptr || path->rounds().empty() || recorder.active()) return;
  const std::uint32_t position = matcher.position();
  const std::span<const OpPath::Round> rounds = path->rounds();
  std::size_t k = 0;
  while (k + 1 < rounds.size() && rounds[k + 1].begin <= position) {
    const OpPath* const done = core_.history.find(rounds[k].path);
    if (done != nullptr) finder_.roundEnded(done->id(), done->size());
    ++k;
  }
  const std::uint32_t begin = rounds[k].begin;
  OpPath* const inner = core_.history.find(rounds[k].path);
  matcher.nextRound();
  begin_ += begin;
  recorder.continueWith(path->part(begin, position, core_.history.nextId()),
                        begin_);
  if (inner == nullptr || position == begin) {
    recorder.stop();
    matcher.startRound(inner, nullptr);
    return;
  }
  const std::uint32_t ops = position - begin;
  matcher.follow({inner, ops - 1, ops});
  moveBirths(recorder.path(), 0, *inner);
  recorder.stop();
}

// ---- what ended ------------------------------------------------------------

void Rounds::recordDeath(const LiveBlock& block,
                         std::uint64_t died_at) noexcept {
  const auto diedAt = [died_at](PathValue& value, std::uint64_t begin) {
    if (died_at <= begin) return; // earlier: it is heard of late
    value.free_op = static_cast<std::uint32_t>(died_at - 1 - begin);
  };
  OpRecorder& recorder = core_.recorder;
  if (recorder.active()) {
    const std::uint32_t v = recorder.valueOf(block);
    if (v != kNone) diedAt(recorder.path().values()[v], recorder.firstOp());
  } else if (OpPath* const path = core_.matcher.path()) {
    const std::uint32_t v = core_.matcher.valueOf(block);
    if (v != kNone) diedAt(path->values()[v], begin_);
  }
  // It outlived the round that made it.
  if (block.birth.path != 0 && block.birth.path == previous_path_ &&
      block.birth.round != core_.matcher.round()) {
    OpPath* const path = core_.history.find(previous_path_);
    if (path == nullptr) return;
    diedAt(path->values()[block.birth_value],
           begin_ - std::min<std::uint64_t>(begin_, previous_ops_));
  }
}

// A variant's values have the numbers of its path's. So what a round of that
// path handed on to this one, this one hands on to the next; and what has not
// been seen to die yet dies where it does on that path.
std::shared_ptr<const OpPath> Rounds::lastRound() const {
  std::shared_ptr<const OpPath> path = core_.history.share(previous_path_);
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
