#include "backend/runtime/cpu/call_checker.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>

#include "backend/runtime/check.h"

namespace chameleon::runtime {

namespace {

// Long enough for a race to show, short enough for a test.
constexpr std::chrono::microseconds kComputeDelay{10};

std::uint64_t checksum(Interval bytes) {
  const auto* from = reinterpret_cast<const std::byte*>(bytes.begin);
  std::size_t left = bytes.end - bytes.begin;
  constexpr std::uint64_t kOdd = 0x9e3779b97f4a7c15;
  std::uint64_t lanes[4] = {1, 2, 3, 4}; // independent: they overlap in time
  std::uint64_t words[4] = {};
  constexpr std::size_t kStepBytes = sizeof words;
  for (; left >= kStepBytes; left -= kStepBytes, from += kStepBytes) {
    std::memcpy(words, from, kStepBytes);
    for (int i = 0; i < 4; ++i) lanes[i] = (lanes[i] ^ words[i]) * kOdd;
  }
  std::memset(words, 0, kStepBytes);
  std::memcpy(words, from, left);
  std::uint64_t sum = left;
  for (int i = 0; i < 4; ++i) {
    lanes[i] = (lanes[i] ^ words[i]) * kOdd;
    sum = (sum ^ (lanes[i] ^ lanes[i] >> 29)) * kOdd;
  }
  return sum;
}

void subtract(std::vector<Interval>& intervals, Interval bytes) {
  std::vector<Interval> left;
  for (const Interval interval : intervals) {
    const Interval before{interval.begin, std::min(interval.end, bytes.begin)};
    const Interval after{std::max(interval.begin, bytes.end), interval.end};
    if (!before.empty()) left.push_back(before);
    if (!after.empty()) left.push_back(after);
  }
  intervals = std::move(left);
}

} // namespace

CallChecker::CallChecker(const CpuAdversary& adversary, MisuseHandler on_misuse)
    : adversary_(adversary),
      on_misuse_(std::move(on_misuse)),
      random_(adversary.seed),
      lines_(kFirstComputeLine) {}

CallChecker::~CallChecker() {
  if (live_events_.empty()) return;
  misuse(std::to_string(live_events_.size()) +
         " events were never destroyed, among them one on " +
         name(LinePosition::of({live_events_.begin()->first})));
}

void CallChecker::submitted(Stream stream, std::span<const ByteRange> reads,
                            std::span<const ByteRange> writes) {
  const bool delayed = adversary_.compute_delay_ops != 0;
  std::vector<Access> accesses;
  accesses.reserve(reads.size() + writes.size());
  const auto add = [&](ByteRange range, bool is_write) {
    const Interval bytes = Interval::of(range);
    if (bytes.empty()) return;
    accesses.push_back({bytes, is_write, delayed, 0});
  };
  for (ByteRange range : reads) add(range, false);
  for (ByteRange range : writes) add(range, true);

  const std::lock_guard lock(mutex_);
  const LineIndex index = computeLine(stream);
  const LinePosition at{index, lines_[index].submitted + 1};
  for (Access& access : accesses) {
    checkAlive(at, access);
    // The kernel announces what it writes with revived(); where it did not,
    // the old sum means nothing any more.
    if (access.writes) dropChecksums(access.bytes, /*verify_first=*/false);
  }
  checkOrder(at, accesses);
  if (delayed) {
    for (Access& access : accesses) access.checksum = checksum(access.bytes);
  }
  Line& line = lines_[index];
  line.submitted = at.count;
  const std::uint64_t lag =
      delayed ? random_() % (adversary_.compute_delay_ops + 1ull) : 0;
  line.pending.push_back({at.count, at.count + lag, std::move(accesses)});
  std::uint64_t passed = line.completed;
  for (const Entry& entry : line.pending) {
    if (entry.due > at.count) break;
    passed = entry.count;
  }
  retire(index, passed);
}

void CallChecker::aboutToCopy(std::span<const Copy> copies) {
  const std::lock_guard lock(mutex_);
  for (const Copy& copy : copies) {
    dropChecksums(Interval::of({copy.destination, copy.bytes}),
                  /*verify_first=*/true);
  }
}

LinePosition CallChecker::last(Stream stream) {
  const std::lock_guard lock(mutex_);
  const LineIndex index = computeLine(stream);
  const Line& line = lines_[index];
  if (line.completed == line.submitted) return {};
  return {index, line.submitted};
}

bool CallChecker::computePassed(LinePosition position) {
  const std::lock_guard lock(mutex_);
  return lines_[position.line].completed >= position.count;
}

void CallChecker::awaitCompute(LinePosition position) {
  if (computePassed(position)) return;
  std::this_thread::sleep_for(kComputeDelay);
  const std::lock_guard lock(mutex_);
  retire(position.line, position.count);
}

void CallChecker::copySubmitted(LinePosition at, std::span<const Copy> copies) {
  std::vector<Access> accesses;
  accesses.reserve(2 * copies.size());
  const std::lock_guard lock(mutex_);
  for (const Copy& copy : copies) {
    const Interval from = Interval::of({copy.source, copy.bytes});
    const Interval to = Interval::of({copy.destination, copy.bytes});
    if (from.overlaps(to)) {
      misuse(name(at) + " copies " + text_of(from) + " onto " + text_of(to) +
             ": ranges may overlap on a compute stream only");
    }
    accesses.push_back({from, false, false, 0});
    accesses.push_back({to, true, false, 0});
  }
  for (const Access& access : accesses) checkAlive(at, access);
  checkOrder(at, accesses);
  lines_[at.line].pending.push_back({at.count, 0, std::move(accesses)});
}

void CallChecker::copyCancelled(LinePosition at, const Copy& copy) {
  const Interval from = Interval::of({copy.source, copy.bytes});
  const Interval to = Interval::of({copy.destination, copy.bytes});
  const std::lock_guard lock(mutex_);
  for (Entry& entry : lines_[at.line].pending) {
    if (entry.count != at.count) continue;
    std::erase_if(entry.accesses, [&](const Access& access) {
      return access.bytes == (access.writes ? to : from);
    });
  }
}

void CallChecker::waitSubmitted(LinePosition at, LinePosition position) {
  const std::lock_guard lock(mutex_);
  order_.wait(at, position);
}

void CallChecker::finished(LinePosition at) {
  const std::lock_guard lock(mutex_);
  order_.done(at);
  retire(at.line, at.count);
}

void CallChecker::committed(ByteRange range) {
  if (adversary_.poison) fill_with_poison(Interval::of(range));
}

void CallChecker::discarded(ByteRange range) {
  const Interval bytes = Interval::of(range);
  const std::lock_guard lock(mutex_);
  discarded_.add(bytes);
  if (!adversary_.poison) return;
  to_poison_.push_back(bytes);
  applyPoison();
}

void CallChecker::revived(ByteRange range) {
  const Interval bytes = Interval::of(range);
  const std::lock_guard lock(mutex_);
  dropChecksums(bytes, /*verify_first=*/true);
  discarded_.remove(bytes);
  if (!adversary_.poison) return;
  poison_.lift(bytes);
  subtract(to_poison_, bytes);
}

void CallChecker::released(ByteRange range, std::string_view call) {
  const Interval bytes = Interval::of(range);
  const std::lock_guard lock(mutex_);
  if (inUse(bytes)) {
    misuse(std::string(call) + " of " + text_of(bytes) +
           ", which submitted work still uses");
  }
  // From here on nothing may look at the bytes.
  dropChecksums(bytes, /*verify_first=*/false);
  discarded_.remove(bytes);
  subtract(to_poison_, bytes);
  poison_.forget(bytes);
}

void CallChecker::eventCreated(Event event) {
  if (event.complete()) return;
  const std::lock_guard lock(mutex_);
  ++live_events_[event.id];
}

void CallChecker::eventUsed(Event event, std::string_view call) {
  if (event.complete()) return;
  const std::lock_guard lock(mutex_);
  if (live_events_.contains(event.id)) return;
  misuse(std::string(call) + " of an event on " +
         name(LinePosition::of(event)) + " after it was destroyed");
}

void CallChecker::eventDestroyed(Event event) {
  if (event.complete()) return;
  const std::lock_guard lock(mutex_);
  const auto found = live_events_.find(event.id);
  if (found == live_events_.end()) {
    misuse("an event on " + name(LinePosition::of(event)) +
           " was destroyed twice");
    return;
  }
  if (--found->second == 0) live_events_.erase(found);
}

LineIndex CallChecker::computeLine(Stream stream) {
  for (std::size_t index = kFirstComputeLine; index < lines_.size(); ++index) {
    if (lines_[index].stream == stream) return static_cast<LineIndex>(index);
  }
  CHAMELEON_CHECK(lines_.size() < UINT16_MAX, "too many compute streams");
  lines_.emplace_back().stream = stream;
  return static_cast<LineIndex>(lines_.size() - 1);
}

void CallChecker::checkOrder(LinePosition at,
                             const std::vector<Access>& accesses) {
  for (std::size_t index = kCopyInLine; index < lines_.size(); ++index) {
    for (const Entry& entry : lines_[index].pending) {
      const LinePosition before{static_cast<LineIndex>(index), entry.count};
      if (order_.follows(at.line, before)) continue;
      for (const Access& ours : accesses) {
        const auto clash =
            std::find_if(entry.accesses.begin(), entry.accesses.end(),
                         [&](const Access& theirs) {
                           return (ours.writes || theirs.writes) &&
                                  ours.bytes.overlaps(theirs.bytes);
                         });
        if (clash == entry.accesses.end()) continue;
        misuse(name(at) + (ours.writes ? " writes " : " reads ") +
               text_of(ours.bytes) + " while " + name(before) + " may still " +
               (clash->writes ? "write " : "read ") + text_of(clash->bytes) +
               ": no wait orders them");
        break; // one report a pair of entries
      }
    }
  }
}

void CallChecker::checkAlive(LinePosition at, const Access& access) {
  if (!discarded_.overlaps(access.bytes)) return;
  misuse(name(at) + (access.writes ? " writes " : " reads ") +
         text_of(access.bytes) + ", which was discarded and not revived since");
}

void CallChecker::dropChecksums(Interval bytes, bool verify_first) {
  for (std::size_t index = kFirstComputeLine; index < lines_.size(); ++index) {
    for (Entry& entry : lines_[index].pending) {
      for (Access& access : entry.accesses) {
        if (!access.checked || !access.bytes.overlaps(bytes)) continue;
        if (verify_first) {
          verify(static_cast<LineIndex>(index), entry, access);
        }
        access.checked = false;
      }
    }
  }
}

void CallChecker::verify(LineIndex line, const Entry& entry, Access& access) {
  if (!access.checked || checksum(access.bytes) == access.checksum) return;
  access.checked = false;
  misuse("operand " + text_of(access.bytes) + " of " +
         name({line, entry.count}) +
         " changed before its stream had passed it: the bytes were unpinned "
         "or reused too early");
}

void CallChecker::retire(LineIndex index, std::uint64_t count) {
  Line& line = lines_[index];
  while (!line.pending.empty() && line.pending.front().count <= count) {
    Entry& entry = line.pending.front();
    for (Access& access : entry.accesses) verify(index, entry, access);
    line.pending.pop_front();
  }
  line.completed = std::max(line.completed, count);
  applyPoison();
}

bool CallChecker::inUse(Interval bytes) const {
  return std::any_of(lines_.begin(), lines_.end(), [&](const Line& line) {
    return std::any_of(
        line.pending.begin(), line.pending.end(), [&](const Entry& entry) {
          return std::any_of(
              entry.accesses.begin(), entry.accesses.end(),
              [&](const Access& a) { return a.bytes.overlaps(bytes); });
        });
  });
}

void CallChecker::applyPoison() {
  std::erase_if(to_poison_, [&](Interval bytes) {
    if (inUse(bytes)) return false;
    poison_.apply(bytes);
    return true;
  });
}

std::string CallChecker::name(LinePosition at) const {
  const std::string number = std::to_string(at.count);
  if (at.line == kCopyInLine) return "copy-in " + number;
  if (at.line == kCopyOutLine) return "copy-out " + number;
  return "kernel " + number + " of compute stream " +
         std::to_string(lines_[at.line].stream.id);
}

void CallChecker::misuse(const std::string& sentence) {
  if (on_misuse_) {
    on_misuse_(sentence);
    return;
  }
  std::fprintf(stderr, "chameleon: misuse of the device runtime: %s\n",
               sentence.c_str());
  std::abort();
}

} // namespace chameleon::runtime
