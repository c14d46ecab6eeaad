#include "profiler/rejoiner.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace chameleon::profiler {
namespace {

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

void Rejoiner::findPlace() {
  core_.recorder.setEnteredAt(kNone);
  core_.variant.leave();
  const ContextMatch match = core_.matcher.findPlace(rounds_.automatic());
  if (match.path == nullptr) return;
  if (match.path == &core_.recorder.path()) {
    closeLoop(match);
    return;
  }
  continueAt(match);
}

void Rejoiner::continueAt(const ContextMatch& match) {
  OpRecorder& recorder = core_.recorder;
  core_.matcher.follow(match);
  core_.variant.beginWeighing(match.path->bornBytes(match.position + 1));
  if (match.length != match.position + 1) return; // into its middle
  const std::uint32_t entered_at = recorder.path().size() - match.length;
  recorder.setEnteredAt(entered_at);
  if (entered_at == 0) { // this round is that path, so far
    rounds_.moveBirths(recorder.path(), 0, *match.path);
    recorder.stop();
    recorder.setEnteredAt(kNone);
    return;
  }
  cutIfCertain();
}

void Rejoiner::cutIfCertain() {
  const SequenceMatcher& matcher = core_.matcher;
  if (core_.recorder.enteredAt() == kNone || !rounds_.automatic()) return;
  if (matcher.path() == nullptr) return;
  if (matcher.position() < SequenceMatcher::kCertain && !matcher.atEnd()) {
    return;
  }
  cutAt(core_.recorder.enteredAt());
}

void Rejoiner::cutAt(std::uint32_t begin) {
  const std::uint32_t tail = core_.recorder.path().size() - begin;
  core_.matcher.nextRound();
  rounds_.moveBirths(core_.recorder.path(), begin, *core_.matcher.path());
  rounds_.ended(rounds_.close(core_.recorder.path().part(
                    0, begin, core_.history.nextId())),
                begin);
  core_.recorder.stop();
  core_.recorder.setEnteredAt(kNone);
  rounds_.setBeganAgo(tail);
  ++core_.epoch;
}

// The recording has come to where it was before: what lies between is a path,
// and so is what lies before, if anything does. Unless this would cut a step in
// its middle: then first up to where the fewest values are handed on.
void Rejoiner::closeLoop(const ContextMatch& match) {
  const OpPath& all = core_.recorder.path();
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
    const OpPath& path =
        rounds_.close(all.part(0, begin, core_.history.nextId(), &numbers));
    before = path.id();
    rounds_.ended(path, begin);
  }
  OpPath body = all.part(begin, end, core_.history.nextId());
  move_sources(body, all.id(), before, numbers);
  OpPath& path = rounds_.close(std::move(body));
  const std::uint32_t into = match.length % period;
  const std::uint32_t rounds = match.length / period + (into == 0 ? 0 : 1);
  for (std::uint32_t n = rounds; n > 0; --n) rounds_.ended(path, period);
  core_.matcher.startRound(&path, nullptr);
  for (std::uint32_t i = 0; i < match.length; ++i) {
    core_.matcher.bindOp(path, i % period, all, end + i);
  }
  rounds_.moveBirths(all, end, path);
  // At its end or inside: a round ends when the next op comes.
  const std::uint32_t position = into == 0 ? period : into;
  core_.matcher.setCursor(&path, position);
  core_.recorder.stop();
  rounds_.setBeganAgo(position);
}

// What was recorded up to `position` is a path, the rest stays a recording.
OpPath& Rejoiner::splitRecording(std::uint32_t position) {
  const OpPath all = core_.recorder.path();
  std::vector<std::uint32_t> numbers;
  OpPath& head =
      rounds_.close(all.part(0, position, core_.history.nextId(), &numbers));
  rounds_.ended(head, position);
  OpPath rest = all.part(position, all.size(), core_.history.nextId());
  move_sources(rest, all.id(), head.id(), numbers);
  core_.recorder.continueWith(std::move(rest),
                              core_.recorder.firstOp() + position);
  return head;
}

// ... and that path is followed from the match on; the recording closes where
// it ends.
void Rejoiner::splitAt(std::uint32_t position, const ContextMatch& match) {
  ContextMatch there = match;
  there.path = &splitRecording(position);
  there.length = std::min(match.length, core_.recorder.path().size());
  core_.matcher.nextRound();
  core_.matcher.follow(there);
}

} // namespace chameleon::profiler
