#include "backend/runtime/simulated/virtual_time.h"

#include <algorithm>
#include <limits>

#include "backend/runtime/check.h"

namespace chameleon::runtime {

namespace {

constexpr std::uint64_t kMicroBytes = 1'000'000; // of a byte
constexpr Picoseconds kNever = std::numeric_limits<Picoseconds>::max();

} // namespace

VirtualTime::VirtualTime(const LinkRates& link) : link_(link), lines_(3) {
  CHAMELEON_CHECK(link.in > 0 && link.out > 0, "a link has no bandwidth");
  CHAMELEON_CHECK(std::max(link.in, link.out) <= link.both &&
                      link.both <= link.in + link.out,
                  "a link's joint limit does not fit its directions");
}

VirtualTime::Line VirtualTime::addLine() {
  lines_.emplace_back();
  return lines_.size() - 1;
}

// ---- submitting ----------------------------------------------------------

void VirtualTime::compute(Line line, Picoseconds duration, Share share) {
  CHAMELEON_CHECK(isComputeLine(line) && duration >= 0 && share <= kWhole,
                  "not a kernel");
  submit(line,
         {Kind::kCompute, 0, static_cast<std::uint64_t>(duration), share});
}

void VirtualTime::exchange(Line line, Picoseconds duration, std::uint64_t bytes,
                           std::uint64_t most) {
  CHAMELEON_CHECK(isComputeLine(line) && duration >= 0 && most > 0 &&
                      bytes < UINT64_MAX / kMicroBytes,
                  "not an exchange");
  lines_[line].exchanges = true;
  Entry entry{Kind::kExchange, 0, bytes};
  entry.most = most;
  entry.before = duration;
  submit(line, entry);
}

void VirtualTime::move(Line line, Picoseconds duration) {
  CHAMELEON_CHECK(!isCopyLine(line) && duration >= 0, "not a move");
  submit(line, {Kind::kMove, 0, static_cast<std::uint64_t>(duration)});
}

std::uint64_t VirtualTime::copy(Line line, std::uint64_t bytes) {
  CHAMELEON_CHECK(isCopyLine(line) && bytes < UINT64_MAX / kMicroBytes,
                  "not a copy over the link");
  submit(line, {Kind::kCopy, 0, bytes});
  return ++lines_[line].copies;
}

bool VirtualTime::shrink(Line index, std::uint64_t number,
                         std::uint64_t bytes) {
  LineState& line = lines_[index];
  std::uint64_t seen = line.copies;
  for (std::size_t i = line.queue.size(); i-- > 0;) {
    Entry& entry = line.queue[i];
    if (entry.kind != Kind::kCopy || seen-- != number) continue;
    if (i == 0 && line.phase != Phase::kIdle) return false;
    CHAMELEON_CHECK(bytes <= entry.amount, "more is taken back than is copied");
    entry.amount -= bytes;
    entry.taken_back = entry.amount == 0;
    return true;
  }
  return false;
}

void VirtualTime::wait(Line line, Mark mark) {
  if (passed(mark) || marks_[mark].line == line) return;
  ++marks_[mark].references;
  submit(line, {Kind::kWait, mark});
}

VirtualTime::Mark VirtualTime::mark(Line line) {
  Mark mark = 0;
  if (free_marks_.empty()) {
    mark = static_cast<Mark>(marks_.size());
    marks_.emplace_back();
  } else {
    mark = free_marks_.back();
    free_marks_.pop_back();
  }
  marks_[mark] = {}; // passed() for nobody yet
  marks_[mark].line = line;
  marks_[mark].references = 2; // the caller's and the queue's
  submit(line, {Kind::kMark, mark});
  return mark;
}

void VirtualTime::release(Mark mark) {
  MarkState& state = marks_[mark];
  CHAMELEON_CHECK(state.references > 0, "a mark is released twice");
  if (--state.references == 0) free_marks_.push_back(mark);
}

void VirtualTime::submit(Line line, const Entry& entry) {
  // A full queue: the host waits until the oldest entry is done.
  while (lines_[line].queue.size() >= kAhead) step();
  lines_[line].queue.push_back(entry);
  if (lines_[line].phase == Phase::kIdle) settle();
}

void VirtualTime::await(Mark mark) {
  while (!passed(mark)) step();
}

// ---- running -------------------------------------------------------------

// Starts all that can start now, and finishes what takes no time.
void VirtualTime::settle() {
  bool changed = true;
  while (changed) {
    changed = false;
    for (Line line = 0; line < lines_.size(); ++line) {
      while (!lines_[line].queue.empty() && advance(line)) changed = true;
    }
  }
}

// True: the line's first entry is done.
bool VirtualTime::advance(Line index) {
  LineState& line = lines_[index];
  const Entry& entry = line.queue.front();
  if (line.phase == Phase::kIdle) line.began = now_;
  switch (entry.kind) {
    case Kind::kMark: {
      MarkState& mark = marks_[entry.mark];
      mark.passed = true;
      mark.time = now_;
      mark.computed = computeTime();
      mark.stalled = stallTime();
      release(entry.mark);
      break;
    }
    case Kind::kWait:
      if (!passed(entry.mark)) {
        line.phase = Phase::kBlocked;
        return false;
      }
      if (isComputeLine(index) && !line.exchanges &&
          !isComputeLine(marks_[entry.mark].line)) {
        stalled_ += now_ - line.began;
      }
      release(entry.mark);
      break;
    case Kind::kCompute:
    case Kind::kMove:
      if (line.phase == Phase::kIdle) {
        line.phase = Phase::kRunning;
        line.remaining = entry.amount * kWhole;
      }
      if (line.remaining > 0) return false;
      if (isComputeLine(index)) {
        computed_ += done(line);
        stalled_ += now_ - line.began - done(line);
      }
      break;
    case Kind::kCopy:
    case Kind::kExchange:
      if (entry.taken_back) break;
      if (line.phase == Phase::kIdle) {
        line.phase = Phase::kLatency;
        line.ends =
            now_ + (entry.kind == Kind::kCopy ? link_.latency : entry.before);
      }
      if (line.phase == Phase::kLatency) {
        if (line.ends > now_) return false;
        line.phase = Phase::kFlowing;
        line.remaining = entry.amount * kMicroBytes;
      }
      if (line.remaining > 0) return false;
      break;
  }
  line.queue.pop_front();
  line.phase = Phase::kIdle;
  return true;
}

// What is taken off the first entry's `remaining` in a picosecond.
std::uint64_t VirtualTime::rate(Line line) const {
  switch (lines_[line].phase) {
    case Phase::kFlowing:
      return isCopyLine(line) ? copyRate(line)
                              : exchangeRate(lines_[line].queue.front());
    case Phase::kRunning:
      return speed(lines_[line].queue.front());
    default:
      return 0;
  }
}

// Bytes per microsecond that flow in the direction of a copy line now.
std::uint64_t VirtualTime::directionRate(Line line) const {
  const std::uint64_t own = line == kIn ? link_.in : link_.out;
  if (lines_[line == kIn ? kOut : kIn].phase != Phase::kFlowing &&
      flowingExchanges() == 0) {
    return own;
  }
  const std::uint64_t other = line == kIn ? link_.out : link_.in;
  const std::uint64_t half = (link_.both + 1) / 2;
  return std::min(own, link_.both - std::min(other, half));
}

// What exchanges leave of it.
std::uint64_t VirtualTime::copyRate(Line line) const {
  std::uint64_t left = directionRate(line);
  for (const LineState& each : lines_) {
    if (each.phase != Phase::kFlowing) continue;
    const Entry& entry = each.queue.front();
    if (entry.kind == Kind::kExchange) {
      left -= std::min(left, exchangeRate(entry));
    }
  }
  return left;
}

// As fast as both directions allow.
std::uint64_t VirtualTime::exchangeRate(const Entry& entry) const {
  std::uint64_t rate = entry.most;
  for (const Line line : {kIn, kOut}) {
    const std::size_t users =
        flowingExchanges() + (lines_[line].phase == Phase::kFlowing ? 1 : 0);
    rate =
        std::min(rate, std::max<std::uint64_t>(1, directionRate(line) / users));
  }
  return rate;
}

std::size_t VirtualTime::flowingExchanges() const {
  std::size_t flowing = 0;
  for (Line line = kMoves + 1; line < lines_.size(); ++line) {
    if (lines_[line].phase == Phase::kFlowing) ++flowing;
  }
  return flowing;
}

// Of a kernel or a move that runs now, of kWhole.
std::uint64_t VirtualTime::speed(const Entry& entry) const {
  constexpr std::uint64_t kHalf = kWhole / 2;
  std::uint64_t moves = 0;
  std::uint64_t needed = 0; // by kernels
  for (const LineState& line : lines_) {
    if (line.phase != Phase::kRunning) continue;
    const Entry& running = line.queue.front();
    moves += running.kind == Kind::kMove ? 1 : 0;
    needed += running.share;
  }
  if (entry.kind == Kind::kMove) {
    return (kWhole - std::min(needed, kHalf)) / moves;
  }
  return moves == 0 || needed <= kHalf ? kWhole : kWhole * kHalf / needed;
}

// To the next time at which anything changes.
void VirtualTime::step() {
  CHAMELEON_CHECK(stepUntil(kNever),
                  "the host waits for work that nobody submitted");
}

void VirtualTime::idle(Picoseconds duration) {
  const Picoseconds until = now_ + duration;
  while (now_ < until) stepUntil(until);
}

// The same, not past `limit`. False: nothing will change, and none is given.
bool VirtualTime::stepUntil(Picoseconds limit) {
  Picoseconds next = limit;
  rates_.resize(lines_.size());
  for (Line line = 0; line < lines_.size(); ++line) {
    const LineState& state = lines_[line];
    if (state.phase == Phase::kLatency) next = std::min(next, state.ends);
    rates_[line] = rate(line);
    if (rates_[line] == 0) continue;
    const std::uint64_t needed =
        (state.remaining + rates_[line] - 1) / rates_[line];
    next = std::min(next, now_ + static_cast<Picoseconds>(needed));
  }
  if (next == kNever) return false;
  const auto passed = static_cast<std::uint64_t>(next - now_);
  for (Line line = 0; line < lines_.size(); ++line) {
    LineState& state = lines_[line];
    if (rates_[line] == 0) continue;
    state.remaining -= std::min(state.remaining, rates_[line] * passed);
  }
  now_ = next;
  settle();
  return true;
}

// ---- figures -------------------------------------------------------------

// Of a kernel that runs, or has run: as long as that takes alone.
Picoseconds VirtualTime::done(const LineState& line) const {
  const Entry& first = line.queue.front();
  if (first.kind != Kind::kCompute) return 0;
  return static_cast<Picoseconds>(first.amount - line.remaining / kWhole);
}

Picoseconds VirtualTime::computeTime() const {
  Picoseconds total = computed_;
  for (Line line = kMoves + 1; line < lines_.size(); ++line) {
    if (lines_[line].phase == Phase::kRunning) total += done(lines_[line]);
  }
  return total;
}

Picoseconds VirtualTime::stallTime() const {
  Picoseconds total = stalled_;
  for (Line line = kMoves + 1; line < lines_.size(); ++line) {
    const LineState& state = lines_[line];
    if (state.phase == Phase::kRunning) {
      total += now_ - state.began - done(state);
    } else if (state.phase == Phase::kBlocked && !state.exchanges &&
               !isComputeLine(marks_[state.queue.front().mark].line)) {
      total += now_ - state.began;
    }
  }
  return total;
}

} // namespace chameleon::runtime
