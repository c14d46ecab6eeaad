// Where rounds begin and end, and what becomes of their recordings.
#include <algorithm>
#include <numeric>

#include "profiler/profiler.h"

namespace chameleon::profiler {
namespace {

constexpr std::uint32_t kPatience = 4; // unknown ops before all is unknown
constexpr std::uint32_t kFirstWalks = 4;
constexpr std::uint32_t kWalksBetween = 16;

// Where a recorded step is best cut, in [begin, end]: the fewest values made
// before are used at or after it. `end` if that is as good as any. (An
// external input may have come to stay, as a first step's weights.)
std::uint32_t calmest_position(const OpPath& path, std::uint32_t begin,
                               std::uint32_t end) {
  std::vector<std::uint32_t> last(path.values().size());
  for (std::uint32_t i = begin; i < path.size(); ++i) {
    for (const Operand use : path.uses(i)) last[use.value()] = i;
  }
  std::vector<std::int32_t> change(end - begin + 2);
  for (std::size_t v = 0; v < last.size(); ++v) {
    const std::uint32_t birth = path.values()[v].birth_op;
    if (birth >= end || path.values()[v].isExternalInput() || last[v] < begin) {
      continue;
    }
    ++change[birth < begin ? 0 : birth + 1 - begin];
    --change[std::min(last[v], end) + 1 - begin];
  }
  std::uint32_t best = end;
  std::int32_t fewest = std::accumulate(change.begin(), change.end() - 1, 0);
  std::int32_t crossing = 0;
  for (std::uint32_t i = begin; i < end; ++i) {
    crossing += change[i - begin];
    if (crossing >= fewest) continue;
    fewest = crossing;
    best = i;
  }
  return best;
}

// Values that came from `from` came from `to`, where they have these numbers.
void move_sources(OpPath& path, PathId from, PathId to,
                  const std::vector<std::uint32_t>& numbers) {
  for (PathValue& value : path.values()) {
    if (!value.carried() || value.source_path != from) continue;
    value.source_path = to;
    value.source_value = to == 0 ? 0 : numbers[value.source_value];
  }
}

} // namespace

// ---- where the run is ------------------------------------------------------

bool Profiler::automatic() const noexcept {
  return !markers_.decide(opCount());
}

// The group's recording is given up; the rounds in it are known anyway.
void Profiler::stopGroup() noexcept {
  if (group_.empty()) return;
  group_.clear();
  recorder_.stop();
}

// The run leaves a group of rounds: as if it had walked its rounds one by one.
void Profiler::leaveGroup() {
  const OpPath* const path = matcher_.path();
  if (path == nullptr || path->rounds().empty() || recorder_.active()) return;
  const std::uint32_t position = matcher_.position();
  const std::span<const OpPath::Round> rounds = path->rounds();
  std::size_t k = 0;
  while (k + 1 < rounds.size() && rounds[k + 1].begin <= position) {
    const OpPath* const done = history_.find(rounds[k].path);
    if (done != nullptr) finder_.roundEnded(done->id(), done->size());
    ++k;
  }
  const std::uint32_t begin = rounds[k].begin;
  OpPath* const inner = history_.find(rounds[k].path);
  matcher_.nextRound();
  round_begin_ += begin;
  recording_begin_ = round_begin_;
  entered_at_ = kNone;
  recorder_.continueWith(path->part(begin, position, history_.nextId()));
  if (inner == nullptr || position == begin) {
    recorder_.stop();
    matcher_.startRound(inner, nullptr);
    return;
  }
  const std::uint32_t ops = position - begin;
  matcher_.follow({inner, ops - 1, ops});
  bindNewAgain(recorder_.path(), 0, *inner);
  recorder_.stop();
}

void Profiler::findPlace() {
  entered_at_ = kNone;
  variant_.leave();
  const ContextMatch match =
      matcher_.relocate(automatic(), unplaced_ < kPatience);
  if (match.path == nullptr) {
    // A few ops may have come between: the expected one is still expected.
    if (++unplaced_ <= kPatience) matcher_.returnToLeftPlace();
    return;
  }
  unplaced_ = 0;
  if (match.path == &recorder_.path()) {
    closeLoop(match);
    return;
  }
  continueAt(match);
}

// Another path goes on as the run does.
void Profiler::continueAt(const ContextMatch& match) {
  matcher_.follow(match);
  variant_.beginWeighing(match.path->bornBytes(match.position + 1));
  if (match.length != match.position + 1) return; // into its middle
  entered_at_ = recorder_.path().size() - match.length;
  if (entered_at_ == 0) { // this round is that path, so far
    bindNewAgain(recorder_.path(), 0, *match.path);
    recorder_.stop();
    entered_at_ = kNone;
    return;
  }
  cutIfCertain();
}

// A round that comes to the beginning of a known path has ended there. A few
// ops must agree first.
void Profiler::cutIfCertain() {
  if (entered_at_ == kNone || !automatic()) return;
  if (matcher_.path() == nullptr) return;
  if (matcher_.position() < SequenceMatcher::kCertain && !matcher_.atEnd()) {
    return;
  }
  cutAt(entered_at_);
}

void Profiler::cutAt(std::uint32_t begin) {
  const std::uint32_t tail = recorder_.path().size() - begin;
  matcher_.nextRound();
  bindNewAgain(recorder_.path(), begin, *matcher_.path());
  ended(close(recorder_.path().part(0, begin, history_.nextId())), begin);
  recorder_.stop();
  entered_at_ = kNone;
  round_begin_ = opCount() - tail;
  ++epoch_;
}

// The recording has come to where it was before: what lies between is a path,
// and so is what lies before, if anything does. Unless this would cut a step in
// its middle: then first up to where the fewest values are handed on.
void Profiler::closeLoop(const ContextMatch& match) {
  const OpPath& all = recorder_.path();
  const std::uint32_t begin = match.position + 1 - match.length;
  const std::uint32_t end = all.size() - match.length;
  const std::uint32_t period = end - begin;
  const std::uint32_t calmest = calmest_position(
      all, match.position + 1, std::max(match.position + 1, end));
  if (calmest < end) {
    splitAt(calmest, match);
    return;
  }

  std::vector<std::uint32_t> numbers;
  PathId before = 0;
  if (begin > 0) {
    const OpPath& path = close(all.part(0, begin, history_.nextId(), &numbers));
    before = path.id();
    ended(path, begin);
  }
  OpPath body = all.part(begin, end, history_.nextId());
  move_sources(body, all.id(), before, numbers);
  OpPath& path = close(std::move(body));
  const std::uint32_t into = match.length % period;
  const std::uint32_t rounds = match.length / period + (into == 0 ? 0 : 1);
  for (std::uint32_t n = rounds; n > 0; --n) ended(path, period);
  matcher_.startRound(&path, nullptr);
  for (std::uint32_t i = 0; i < match.length; ++i) {
    matcher_.bindOp(path, i % period, all, end + i);
  }
  bindNewAgain(all, end, path);
  // At its end or inside: a round ends when the next op comes.
  const std::uint32_t position = into == 0 ? period : into;
  matcher_.setCursor(&path, position);
  recorder_.stop();
  round_begin_ = opCount() - position;
}

// What was recorded up to `position` is a path, the rest stays a recording.
OpPath& Profiler::splitRecording(std::uint32_t position) {
  const OpPath all = recorder_.path();
  std::vector<std::uint32_t> numbers;
  OpPath& head = close(all.part(0, position, history_.nextId(), &numbers));
  ended(head, position);
  OpPath rest = all.part(position, all.size(), history_.nextId());
  move_sources(rest, all.id(), head.id(), numbers);
  recorder_.continueWith(std::move(rest));
  recording_begin_ += position;
  return head;
}

// ... and that path is followed from the match on; the recording closes where
// it ends.
void Profiler::splitAt(std::uint32_t position, const ContextMatch& match) {
  ContextMatch there = match;
  there.path = &splitRecording(position);
  there.length = std::min(match.length, recorder_.path().size());
  matcher_.nextRound();
  matcher_.follow(there);
}

// Blocks that were born at recorded ops from `begin` on, and are bound to the
// values of `path` by now, were born on that path.
void Profiler::bindNewAgain(const OpPath& recording, std::uint32_t begin,
                            const OpPath& path) {
  for (const PathValue& value : recording.values()) {
    if (value.carried() || value.birth_op < begin ||
        !blocks_.alive(value.slot, value.identity)) {
      continue;
    }
    LiveBlock& block = blocks_[value.slot];
    if (block.value >= path.values().size() ||
        path.values()[block.value].identity != block.identity) {
      continue;
    }
    if (path.values()[block.value].carried()) { // it replaces another one
      block.birth.path = 0;
      continue;
    }
    block.birth = {path.id(), matcher_.round()};
    block.birth_value = block.value;
  }
}

// A finished sequence: the known path that is the same, or a new one. Blocks
// born in it were born there.
OpPath& Profiler::close(OpPath path) {
  path.finish();
  OpPath* const known = history_.findEqual(path, blocks_);
  const PathId id = known != nullptr ? known->id() : path.id();
  for (std::uint32_t v = 0; v < path.values().size(); ++v) {
    const PathValue& value = path.values()[v];
    if (value.carried() || !blocks_.alive(value.slot, value.identity)) continue;
    blocks_[value.slot].birth.path = id;
    blocks_[value.slot].birth_value = v;
  }
  if (known == nullptr) return history_.add(std::move(path), matcher_.path());
  // (The path that is walked just now is bound to what it meets.)
  if (known != matcher_.path()) known->bindLike(path);
  return *known;
}

void Profiler::ended(const OpPath& path, std::uint32_t ops) {
  steps_.store(steps() + 1, std::memory_order_relaxed);
  previous_path_ = path.id();
  previous_ops_ = ops;
  last_variant_.reset();
  finder_.roundEnded(path.id(), ops);
}

// The round ends before the next op.
void Profiler::endRound() {
  const OpPath* const path = matcher_.path();
  if (!group_.empty()) {
    const std::size_t done = group_rounds_.size();
    if (matcher_.atEnd() && group_[done] == path->id()) {
      group_rounds_.push_back(
          {recorder_.path().size() - path->size(), path->id()});
      ended(*path, path->size());
      if (done + 1 < group_.size()) return; // on with the recording
      group_.clear();
      const std::uint32_t ops = recorder_.path().size();
      recorder_.path().setRounds(std::move(group_rounds_));
      const OpPath& whole = close(std::move(recorder_.path()));
      recorder_.stop();
      finder_.grouped(whole.id(), ops);
      previous_path_ = whole.id();
      previous_ops_ = ops;
      return;
    }
    stopGroup();
  }
  if (endVariant()) return;
  if (!recorder_.active()) {
    if (path == nullptr || matcher_.position() == 0) return;
    if (matcher_.atEnd()) {
      ended(*path, path->size());
      return;
    }
    recorder_.startWithPrefix(history_.nextId(), *path, matcher_.position());
  }
  const std::uint32_t ops = recorder_.path().size();
  if (ops > 0) ended(close(std::move(recorder_.path())), ops);
  recorder_.stop();
}

void Profiler::beginRound(std::uint64_t first_op) {
  round_begin_ = first_op;
  unplaced_ = 0;
  entered_at_ = kNone;
  variant_.leave();
  if (group_.empty() && automatic()) {
    group_ = finder_.group();
    if (!group_.empty()) {
      group_rounds_.clear();
      recorder_.start(history_.nextId());
      recording_begin_ = first_op;
    }
  }
  matcher_.forgetRound();
  matcher_.startRound(history_.find(finder_.next()),
                      history_.find(previous_path_));
  // Deaths are learned in a path's first rounds, and looked at again now and
  // then: for two rounds, since some die in the round after.
  const OpPath* const path = matcher_.path();
  if (!recorder_.active() && path != nullptr && path->id() == previous_path_) {
    recorder_.release(); // steady
  }
  watching_deaths_ = path == nullptr || recorder_.active() ||
                     path->walks() <= kFirstWalks ||
                     path->walks() % kWalksBetween < 2;
}

void Profiler::step() {
  const Guard guard(lock_);
  markers_.mark(opCount());
  stopGroup();
  if (opCount() == round_begin_) return;
  if (matcher_.path() != nullptr && !matcher_.atEnd()) {
    (void)diverged(DivergenceKind::kNewRound, matcher_.position());
  }
  endRound();
  beginRound(opCount());
  ++epoch_;
}

} // namespace chameleon::profiler
