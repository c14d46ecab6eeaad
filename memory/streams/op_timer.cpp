#include "memory/streams/op_timer.h"

#include <algorithm>
#include <utility>

namespace chameleon::memory {

using profiler::Direction;
using runtime::Stream;

namespace {

constexpr std::size_t kOps = 0;

std::size_t list_of(Direction direction) {
  return direction == Direction::kIn ? 1 : 2;
}

} // namespace

OpTimer::OpTimer(runtime::DeviceRuntime& runtime,
                 profiler::Durations& durations, profiler::Timeline& timeline)
    : runtime_(runtime),
      durations_(durations),
      timeline_(timeline),
      times_(!runtime.checksCallers()),
      times_links_(times_ && !runtime.link()) {}

OpTimer::~OpTimer() {
  for (std::deque<Pending>& list : pending_) {
    for (Pending& pending : list) giveBack(pending);
  }
}

// ---- ops -------------------------------------------------------------------

std::unique_ptr<OpTiming> OpTimer::opWaits(Stream stream, std::uint32_t name,
                                           profiler::Token token,
                                           std::uint64_t call) {
  if (!times_) return nullptr;
  auto op = std::make_unique<OpTiming>(*this);
  op->name = name;
  op->token = token;
  op->call = call;
  if (timeline_.recording()) {
    const std::lock_guard lock(mutex_);
    op->wait = take_point(runtime_, stream);
  }
  return op;
}

void OpTimer::opBegins(Stream stream, OpTiming& op) {
  const std::lock_guard lock(mutex_);
  op.stream = stream;
  op.begin = take_point(runtime_, stream);
}

void OpTimer::opEnded(Stream stream, OpTiming& op, std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  Pending pending;
  pending.wait = std::exchange(op.wait, {});
  pending.begin = std::exchange(op.begin, {});
  pending.pauses = std::exchange(op.pauses, {});
  pending.bytes_in = op.bytes_in;
  pending.bytes_out = op.bytes_out;
  pending.bytes = bytes;
  pending.token = op.token;
  pending.name = op.name;
  pending.call = op.call;
  pending.lane = op.lane;
  pending.end = take_point(runtime_, stream);
  add(kOps, std::move(pending));
}

OpTiming::~OpTiming() {
  if (!wait.taken && !begin.taken) return;
  const std::lock_guard lock(timer.mutex_);
  give_back(timer.runtime_, wait);
  give_back(timer.runtime_, begin);
  timer.giveBack(pauses);
}

void OpPause::begin() {
  const std::lock_guard lock(op_->timer.mutex_);
  op_->pauses.push_back({take_point(op_->timer.runtime_, op_->stream), {}});
}

void OpPause::end() {
  const std::lock_guard lock(op_->timer.mutex_);
  op_->pauses.back().end = take_point(op_->timer.runtime_, op_->stream);
}

// ---- copies ----------------------------------------------------------------

bool OpTimer::timesCopy(Direction direction) {
  if (!times_) return false;
  const std::lock_guard lock(mutex_);
  const std::size_t own = list_of(direction);
  const std::uint64_t batch = batches_[own]++;
  if (timeline_.recording()) return true;
  if (!times_links_) return false;
  collectList(kLists - own);
  collectList(own);
  return pending_[own].empty() && (batch < kOften || batch % kSeldom == 0);
}

CopyTiming OpTimer::copyBegins(Stream stream, Direction direction,
                               bool other_idle) {
  const std::lock_guard lock(mutex_);
  CopyTiming copy;
  copy.other_idle = other_idle;
  copy.other_batches = batches_[kLists - list_of(direction)];
  copy.begin = take_point(runtime_, stream);
  return copy;
}

void OpTimer::copyEnded(Stream stream, Direction direction,
                        const CopyTiming& copy, std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  Pending pending;
  pending.lane =
      direction == Direction::kIn ? profiler::Lane::kIn : profiler::Lane::kOut;
  pending.begin = copy.begin;
  pending.bytes = bytes;
  pending.measures = times_links_;
  pending.other_idle = copy.other_idle;
  pending.other_batches = copy.other_batches;
  pending.end = take_point(runtime_, stream);
  add(list_of(direction), std::move(pending));
}

// ---- what was timed --------------------------------------------------------

void OpTimer::giveBack(std::vector<Pause>& pauses) noexcept {
  for (Pause& pause : pauses) {
    give_back(runtime_, pause.begin);
    give_back(runtime_, pause.end);
  }
}

void OpTimer::giveBack(Pending& pending) noexcept {
  give_back(runtime_, pending.wait);
  give_back(runtime_, pending.begin);
  giveBack(pending.pauses);
  give_back(runtime_, pending.end);
}

// They lie between points that were resolved: false means lost.
bool OpTimer::resolve(std::vector<Pause>& pauses) const {
  return std::all_of(pauses.begin(), pauses.end(), [this](Pause& pause) {
    return resolve(pause.begin) && resolve(pause.end);
  });
}

void OpTimer::add(std::size_t list, Pending pending) {
  std::deque<Pending>& queue = pending_[list];
  queue.push_back(std::move(pending));
  collectList(list);
  if (queue.size() <= kMaxPending) return;
  giveBack(queue.front());
  queue.pop_front();
}

void OpTimer::collect() {
  const std::lock_guard lock(mutex_);
  for (std::size_t list = 0; list < kLists; ++list) collectList(list);
}

void OpTimer::collectList(std::size_t list) {
  std::deque<Pending>& queue = pending_[list];
  while (!queue.empty()) {
    Pending& first = queue.front();
    const bool lost = !first.begin.taken || !first.end.taken;
    if (!lost && (!resolve(first.end) || !resolve(first.begin))) return;
    if (!lost) report(list, first);
    giveBack(first);
    queue.pop_front();
  }
}

void OpTimer::reportOp(Pending& op) {
  const std::int64_t begin_ns = op.begin.moment.time_ns;
  const std::int64_t end_ns = op.end.moment.time_ns;
  if (op.lane == profiler::Lane::kReruns) {
    timeline_.add({op.lane, op.name, begin_ns, end_ns, 0, nullptr, op.call});
    return;
  }
  std::int64_t duration_ns = end_ns - begin_ns;
  if (resolve(op.pauses)) {
    for (const Pause& pause : op.pauses) {
      const std::int64_t from_ns = pause.begin.moment.time_ns;
      const std::int64_t to_ns = pause.end.moment.time_ns;
      duration_ns -= to_ns - from_ns;
      if (to_ns > from_ns) {
        timeline_.add({profiler::Lane::kStalls, op.name, from_ns, to_ns, 0,
                       "wait for room", op.call});
      }
    }
    const std::int64_t busy_ns =
        op.end.moment.compute.busy_ns - op.begin.moment.compute.busy_ns;
    if (busy_ns > 0) duration_ns = std::min(duration_ns, busy_ns);
    if (op.lane == profiler::Lane::kExchanges) {
      durations_.addBeside(op.token);
    } else {
      durations_.addOp(op.token, op.bytes, duration_ns);
    }
  }
  if (resolve(op.wait) && op.wait.moment.time_ns < begin_ns) {
    timeline_.add({profiler::Lane::kStalls, op.name, op.wait.moment.time_ns,
                   begin_ns, 0, nullptr, op.call});
  }
  timeline_.add({op.lane, op.name, begin_ns, end_ns, 0, nullptr, op.call});
  if (op.bytes_in > 0) {
    timeline_.add({profiler::Lane::kDecisions, op.name, begin_ns, begin_ns,
                   op.bytes_in, "fetch", op.call});
  }
  if (op.bytes_out > 0) {
    timeline_.add({profiler::Lane::kDecisions, op.name, begin_ns, begin_ns,
                   op.bytes_out, "write back", op.call});
  }
}

void OpTimer::report(std::size_t list, Pending& pending) {
  if (list == kOps) {
    reportOp(pending);
    return;
  }
  const std::int64_t begin_ns = pending.begin.moment.time_ns;
  const std::int64_t end_ns = pending.end.moment.time_ns;
  timeline_.add(
      {pending.lane, profiler::kNoOpName, begin_ns, end_ns, pending.bytes});
  if (pending.measures) reportCopy(list, pending);
  last_[list] = {begin_ns, end_ns};
}

void OpTimer::reportCopy(std::size_t list, const Pending& pending) {
  const std::int64_t begin_ns = pending.begin.moment.time_ns;
  const std::int64_t end_ns = pending.end.moment.time_ns;
  const std::size_t other = kLists - list;
  bool shared = false;
  if (!pending.other_idle || batches_[other] != pending.other_batches) {
    const std::int64_t overlap_ns = std::min(end_ns, last_[other].end_ns) -
                                    std::max(begin_ns, last_[other].begin_ns);
    if (4 * overlap_ns < 3 * (end_ns - begin_ns)) return;
    shared = true;
  }
  durations_.addCopy(
      list == list_of(Direction::kIn) ? Direction::kIn : Direction::kOut,
      shared, pending.bytes, end_ns - begin_ns);
}

} // namespace chameleon::memory
