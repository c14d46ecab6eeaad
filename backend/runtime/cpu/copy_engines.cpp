#include "backend/runtime/cpu/copy_engines.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <pthread.h>
#include <signal.h>
#include <system_error>
#include <utility>

#include "backend/runtime/check.h"
#include "backend/runtime/cpu/call_checker.h"
#include "backend/runtime/fault_injection.h"

namespace chameleon::runtime {

namespace {

constexpr std::size_t kOnAwaitBacklog = 64;
constexpr std::size_t kReorderedBacklog = 16;
constexpr std::int64_t kMaxDelayNs = 500'000;

using Clock = std::chrono::steady_clock;

std::int64_t clock_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             Clock::now().time_since_epoch())
      .count();
}

} // namespace

CopyEngines::CopyEngines(CopyTiming timing, std::uint64_t seed,
                         CallChecker* checker)
    : timing_(timing), checker_(checker), random_(seed) {
  engines_[0].line = kCopyInLine;
  engines_[1].line = kCopyOutLine;
  turn_ = random_() % 2;
  backlog_limit_ = timing == CopyTiming::kReordered
                       ? 1 + random_() % kReorderedBacklog
                       : kOnAwaitBacklog;
}

CopyEngines::~CopyEngines() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    wakeBoth();
  }
  for (Engine& e : engines_) {
    if (e.thread.joinable()) e.thread.join();
  }
}

Error CopyEngines::submit(LineIndex line, std::span<const Copy> copies) {
  Engine& e = engine(line);
  const std::lock_guard lock(mutex_);
  if (Error error = start(e)) return error;
  Entry entry;
  entry.copies.assign(copies.begin(), copies.end());
  if (timing_ == CopyTiming::kLate) {
    entry.not_before_ns =
        clock_ns() + static_cast<std::int64_t>(random_() % kMaxDelayNs);
  }
  if (checker_ != nullptr) {
    checker_->copySubmitted(
        {line, e.submitted.load(std::memory_order_relaxed) + 1}, copies);
  }
  push(e, std::move(entry));
  return {};
}

bool CopyEngines::cancel(LineIndex line, const std::byte* destination) {
  Engine& e = engine(line);
  const std::lock_guard lock(mutex_);
  const auto writes = [=](const Copy& copy) {
    return copy.destination == destination;
  };
  const auto entry =
      std::find_if(e.queue.rbegin(), e.queue.rend(), [&](const Entry& each) {
        return std::any_of(each.copies.begin(), each.copies.end(), writes);
      });
  if (entry == e.queue.rend()) return false;
  const auto copy =
      std::find_if(entry->copies.begin(), entry->copies.end(), writes);
  if (checker_ != nullptr) {
    checker_->copyCancelled({line, entry->count}, *copy);
  }
  entry->copies.erase(copy);
  return true;
}

Error CopyEngines::submitWait(LineIndex line, LinePosition position) {
  Engine& e = engine(line);
  const std::lock_guard lock(mutex_);
  if (Error error = start(e)) return error;
  Entry entry;
  entry.after = position;
  if (checker_ != nullptr) {
    checker_->waitSubmitted(
        {line, e.submitted.load(std::memory_order_relaxed) + 1}, position);
  }
  push(e, std::move(entry));
  return {};
}

Error CopyEngines::submitMark(LineIndex line, LinePosition& mark) {
  Engine& e = engine(line);
  const std::lock_guard lock(mutex_);
  if (Error error = start(e)) return error;
  mark = {line, e.submitted.load(std::memory_order_relaxed) + 1};
  if (checker_ != nullptr) checker_->copySubmitted(mark, {});
  Entry entry;
  entry.marked_ns = clock_ns();
  push(e, std::move(entry));
  return {};
}

std::optional<std::int64_t> CopyEngines::timeOf(LinePosition position) {
  const Engine& e = engine(position.line);
  const std::lock_guard lock(mutex_);
  const std::uint64_t done = e.completed.load(std::memory_order_relaxed);
  if (position.count > done || position.count + kTimes <= done) {
    return std::nullopt;
  }
  return e.done_ns[position.count % kTimes];
}

LinePosition CopyEngines::last(LineIndex line) const noexcept {
  const LinePosition position{
      line, engine(line).submitted.load(std::memory_order_acquire)};
  return passed(position) ? LinePosition{} : position;
}

bool CopyEngines::passed(LinePosition position) const noexcept {
  return engine(position.line).completed.load(std::memory_order_acquire) >=
         position.count;
}

void CopyEngines::await(LinePosition position) {
  if (passed(position)) return;
  std::unique_lock lock(mutex_);
  demand(position);
  // A copy that was under way when another failed still uses its memory.
  const Engine& e = engine(position.line);
  finished_.wait(lock,
                 [&] { return passed(position) || (lost() && !e.running); });
}

Error CopyEngines::failure() const {
  if (!lost()) return {};
  return {ErrorCode::kDevice,
          "the device is lost: an injected failure of a copy's completion"};
}

Error CopyEngines::start(Engine& e) {
  if (Error error = failure()) return error;
  if (e.thread.joinable()) return {};
  // The process's signals are its own threads' business.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  Error error;
  try {
    e.thread = std::thread([this, &e] { run(e); });
  } catch (const std::system_error& failure) {
    error = Error(ErrorCode::kDevice,
                  std::string("cannot start the thread of a copy engine: ") +
                      failure.what());
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return error;
}

void CopyEngines::push(Engine& e, Entry entry) {
  entry.count = e.submitted.load(std::memory_order_relaxed) + 1;
  e.queue.push_back(std::move(entry));
  e.submitted.store(e.queue.back().count, std::memory_order_release);
  if (heldBack()) {
    demandBacklog(e);
  } else {
    e.wake.notify_one();
  }
}

void CopyEngines::run(Engine& e) {
  pthread_setname_np(pthread_self(),
                     e.line == kCopyInLine ? "cham-copy-in" : "cham-copy-out");
  std::unique_lock lock(mutex_);
  while (true) {
    while (!mayRun(e)) {
      if (stopping_ && e.queue.empty()) return;
      if (timing_ == CopyTiming::kLate && ready(e)) {
        e.wake.wait_until(lock, Clock::time_point(std::chrono::nanoseconds(
                                    e.queue.front().not_before_ns)));
      } else {
        e.wake.wait(lock);
      }
    }
    const Entry entry = std::move(e.queue.front());
    e.queue.pop_front();
    e.running = true;
    lock.unlock();
    const bool done = execute(entry);
    const std::int64_t done_ns =
        entry.marked_ns != 0
            ? std::max(entry.marked_ns, e.done_ns[(entry.count - 1) % kTimes])
            : clock_ns();
    // Before anybody can see the completion and rely on it.
    if (checker_ != nullptr) checker_->finished({e.line, entry.count});
    lock.lock();
    e.running = false;
    if (timing_ == CopyTiming::kReordered) turn_ = random_() % 2;
    if (done) {
      e.done_ns[entry.count % kTimes] = done_ns;
      e.completed.store(entry.count, std::memory_order_release);
    } else {
      lose();
    }
    finished_.notify_all();
    // The other engine may wait for this entry, or for its turn.
    Engine& other = otherOf(e);
    if (!other.queue.empty()) other.wake.notify_one();
  }
}

// What is queued will not run. REQUIRES: mutex_.
void CopyEngines::lose() {
  lost_.store(true, std::memory_order_release);
  for (Engine& each : engines_) {
    for (const Entry& entry : each.queue) {
      if (checker_ != nullptr) checker_->finished({each.line, entry.count});
    }
    each.queue.clear();
  }
  wakeBoth(); // who waits for an entry that is gone may be asked to stop
}

bool CopyEngines::execute(const Entry& entry) {
  if (!entry.after.none() && !entry.after.onCopyEngine()) {
    checker_->awaitCompute(entry.after);
  }
  if (!entry.copies.empty() &&
      FaultInjection::instance().pass(FaultPoint::kCompletion)) {
    return false;
  }
  for (const Copy& copy : entry.copies) {
    std::memcpy(copy.destination, copy.source, copy.bytes);
  }
  return true;
}

// The first entry could run as far as order is concerned.
bool CopyEngines::ready(const Engine& e) const {
  if (e.queue.empty()) return false;
  const Entry& front = e.queue.front();
  if (heldBack() && !stopping_ && front.count > e.demanded) return false;
  // mutant: engine-wait
  return !front.after.onCopyEngine() || passed(front.after);
}

bool CopyEngines::mayRun(const Engine& e) {
  if (!ready(e)) return false;
  if (stopping_) return true;
  if (timing_ == CopyTiming::kLate) {
    return clock_ns() >= e.queue.front().not_before_ns;
  }
  if (timing_ == CopyTiming::kReordered) {
    const Engine& other = otherOf(e);
    return !other.running && (!ready(other) || &e == &engines_[turn_]);
  }
  return true;
}

void CopyEngines::demand(LinePosition position) {
  if (!heldBack()) return;
  if (timing_ == CopyTiming::kReordered) {
    for (Engine& e : engines_) e.demanded = e.submitted;
    wakeBoth();
    return;
  }
  Engine& e = engine(position.line);
  const std::uint64_t before = e.demanded;
  if (position.count <= before) return;
  e.demanded = position.count;
  e.wake.notify_one();
  // What these entries wait for is needed as well.
  for (const Entry& entry : e.queue) {
    if (entry.count > position.count) break;
    if (entry.count > before && entry.after.onCopyEngine()) {
      demand(entry.after);
    }
  }
}

void CopyEngines::demandBacklog(Engine& e) {
  if (e.queue.size() <= backlog_limit_) return;
  demand({e.line, e.queue.front().count + e.queue.size() / 2});
  if (timing_ == CopyTiming::kReordered) {
    backlog_limit_ = 1 + random_() % kReorderedBacklog;
  }
}

void CopyEngines::wakeBoth() {
  for (Engine& e : engines_) e.wake.notify_one();
}

} // namespace chameleon::runtime
