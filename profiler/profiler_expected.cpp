// A sequence known beforehand, from a trace: where it begins, and what becomes
// of it when it was walked. A trace knows neither tokens nor blocks. While its
// path is followed for the first time the round is recorded as well, and the
// recording, which knows both, takes its place at the end, with its number:
// whatever was planned for the one holds for the other.
#include "profiler/profiler.h"

namespace chameleon::profiler {
namespace {

// Rounds that may begin with its first op and be another's after all. Then its
// first eight ops must come.
constexpr std::uint32_t kEntries = 4;

} // namespace

PathId Profiler::nextPath() {
  const Guard guard(lock_);
  return history_.nextId();
}

void Profiler::expect(OpPath path) {
  const Guard guard(lock_);
  stopGroup();
  endRound(); // it may begin with the next op
  expected_ = path.id();
  expected_entries_ = 0;
  history_.add(std::move(path), matcher_.path());
  beginRound(opCount());
  waitForExpected();
  ++epoch_;
}

// The next op is looked at before anything else is followed.
void Profiler::waitForExpected() {
  if (expected_ == 0 || expected_entries_ == kEntries) return;
  stopGroup();
  matcher_.startRound(nullptr, nullptr);
}

bool Profiler::onExpected() const noexcept {
  return expected_ != 0 && matcher_.path() != nullptr &&
         matcher_.path()->id() == expected_;
}

// A round begins with this op: on it, if the op fits.
bool Profiler::enterExpected(std::uint32_t op, Token token,
                             std::span<const Use> uses) {
  const bool ends = matcher_.atEnd() && automatic();
  if (ends && onExpected()) confirmExpected();
  if (!ends && opCount() - 1 != round_begin_) return false;
  OpPath* path = history_.find(expected_);
  if (path == nullptr) expected_ = 0; // walked by now, or dropped
  const bool open = path != nullptr && expected_entries_ < kEntries;
  if (open) path->unbind();
  if (!open || !matcher_.beginsWith(*path, op, uses)) {
    if (!ends && matcher_.path() == nullptr) { // see waitForExpected()
      matcher_.startRound(history_.find(finder_.next()),
                          history_.find(previous_path_));
    }
    return false;
  }
  if (ends) {
    endRound();
    beginRound(opCount() - 1);
    path = history_.find(expected_);
    if (path == nullptr) return false;
  }
  ++expected_entries_;
  stopGroup();
  recorder_.start(history_.nextId());
  recording_begin_ = round_begin_;
  entered_at_ = kNone;
  unplaced_ = 0;
  matcher_.startRound(path, nullptr);
  matcher_.advanceUnbound(op, uses);
  record(op, token, uses);
  ++epoch_;
  return true;
}

// The ops recorded last may be its beginning, where nothing else says where a
// round begins.
bool Profiler::joinExpected() {
  constexpr std::uint32_t kOps = SequenceMatcher::kCertain;
  OpPath* path = history_.find(expected_);
  const OpPath& all = recorder_.path();
  if (path == nullptr || !automatic() || path->size() < kOps ||
      all.size() < kOps || all.op(all.size() - 1).op != path->op(kOps - 1).op) {
    return false;
  }
  const std::uint32_t begin = all.size() - kOps;
  if (!all.part(begin, all.size(), 0).beginsLike(*path)) return false;
  if (begin > 0) splitRecording(begin);
  path = history_.find(expected_);
  if (path == nullptr) return false;
  stopGroup();
  round_begin_ = opCount() - kOps;
  matcher_.startRound(path, nullptr);
  path->unbind();
  const std::vector<PathValue>& values = recorder_.path().values();
  for (std::uint32_t v = 0; v < values.size(); ++v) { // numbered alike
    path->values()[v].identity = values[v].identity;
    path->values()[v].slot = values[v].slot;
    if (blocks_.alive(values[v].slot, values[v].identity)) {
      blocks_[values[v].slot].value = v;
    }
  }
  matcher_.setCursor(path, kOps);
  unplaced_ = 0;
  return true;
}

// At its end: the recording takes its place.
void Profiler::confirmExpected() {
  OpPath* const path = matcher_.path();
  if (!onExpected() || !matcher_.atEnd() || !recorder_.active()) return;
  OpPath made = recorder_.path().part(0, recorder_.path().size(), expected_);
  if (made.size() != path->size() ||
      made.values().size() != path->values().size() || !made.beginsLike(*path))
    return;
  made.finish();
  made.learnFrom(*path);
  for (std::uint32_t v = 0; v < made.values().size(); ++v) {
    const PathValue& value = made.values()[v];
    if (value.carried() || !blocks_.alive(value.slot, value.identity)) continue;
    LiveBlock& block = blocks_[value.slot];
    block.value = v;
    block.birth.path = expected_;
    block.birth_value = v;
  }
  OpPath& known = history_.replace(std::move(made));
  matcher_.setCursor(&known, known.size());
  recorder_.stop();
  expected_ = 0;
}

} // namespace chameleon::profiler
