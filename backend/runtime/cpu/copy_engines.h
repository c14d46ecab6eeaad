// The two copy engines of cpu_runtime: one thread each, started at the first
// submission, running copies and waits in the order of submission. Which of
// them runs when is the CopyTiming's business.
//
// Thread safety: every method may be called from any thread; passed() is
// lock-free. One lock guards both queues; no copy runs under it. Under it only
// the CallChecker's own lock is taken.
// Lifetime: the destructor runs what is left and joins. An owner that leaks
// the object may leave at any moment: idle threads touch nothing else.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <random>
#include <span>
#include <thread>
#include <vector>

#include "backend/runtime/cpu/cpu_adversary.h"
#include "backend/runtime/cpu/line_position.h"
#include "backend/runtime/ranked_mutex.h"
#include "backend/runtime/result.h"

namespace chameleon::runtime {

class CallChecker;

class CopyEngines {
 public:
  // `checker` is null when callers are not checked; else it outlives this.
  CopyEngines(CopyTiming timing, std::uint64_t seed, CallChecker* checker);
  ~CopyEngines();
  CopyEngines(const CopyEngines&) = delete;
  CopyEngines& operator=(const CopyEngines&) = delete;

  // `line` is kCopyInLine or kCopyOutLine. kDevice: no thread can be started,
  // or failure(); nothing was submitted then. So do the next two.
  Error submit(LineIndex line, std::span<const Copy> copies);
  // Takes the last copy to `destination` back. False: it has begun.
  bool cancel(LineIndex line, const std::byte* destination);
  // Later work on `line` runs after `position`, which may be a compute line's
  // only if there is a checker (else compute is always complete).
  Error submitWait(LineIndex line, LinePosition position);
  // An entry that does nothing, for its time: when what was submitted before it
  // is done, at the earliest now. `mark` is its position.
  Error submitMark(LineIndex line, LinePosition& mark);
  // That time, or when another entry was done, on the runtime's clock. Nothing:
  // not yet, or more than kTimes entries ago. REQUIRES: a copy engine's
  // position.
  std::optional<std::int64_t> timeOf(LinePosition position);
  // The position of the last submission; none: everything has run.
  LinePosition last(LineIndex line) const noexcept;
  // REQUIRES: a copy engine's position.
  bool passed(LinePosition position) const noexcept;
  // Blocks the caller until it has passed, or never will: the device is lost.
  void await(LinePosition position);
  // A batch could not be completed: none has begun since, none is taken.
  bool lost() const noexcept { return lost_.load(std::memory_order_acquire); }
  // kDevice if it is lost.
  Error failure() const;

 private:
  // A copy batch, or a wait when `after` is a position.
  struct Entry {
    std::uint64_t count = 0;
    LinePosition after;
    std::vector<Copy> copies;
    std::int64_t not_before_ns = 0; // kLate
    std::int64_t marked_ns = 0;     // a mark: when it was submitted
  };
  static constexpr std::size_t kTimes = 1024;
  struct Engine {
    LineIndex line = kNoLine;
    std::atomic<std::uint64_t> submitted{0};
    std::atomic<std::uint64_t> completed{0};
    // Guarded by mutex_.
    std::deque<Entry> queue;
    std::array<std::int64_t, kTimes> done_ns{}; // by count, the last ones
    std::uint64_t demanded = 0; // may run up to here (held-back timings)
    bool running = false;       // an entry that was taken from the queue
    RankedCondition<LockRank::kRuntime> wake;
    std::thread thread;
  };

  Engine& engine(LineIndex line) noexcept {
    return engines_[line == kCopyInLine ? 0 : 1];
  }
  const Engine& engine(LineIndex line) const noexcept {
    return engines_[line == kCopyInLine ? 0 : 1];
  }
  Engine& otherOf(const Engine& e) noexcept {
    return &e == &engines_[0] ? engines_[1] : engines_[0];
  }
  bool heldBack() const noexcept {
    return timing_ == CopyTiming::kReordered || timing_ == CopyTiming::kOnAwait;
  }

  void run(Engine& e);
  bool execute(const Entry& entry); // false: the copies failed
  // All REQUIRE mutex_.
  Error start(Engine& e);
  void push(Engine& e, Entry entry);
  bool ready(const Engine& e) const;
  bool mayRun(const Engine& e);
  void demand(LinePosition position);
  void demandBacklog(Engine& e);
  void wakeBoth();
  void lose();

  const CopyTiming timing_;
  CallChecker* const checker_;
  RankedMutex<LockRank::kRuntime> mutex_;
  RankedCondition<LockRank::kRuntime> finished_; // an entry is done
  std::array<Engine, 2> engines_;
  std::mt19937_64 random_; // guarded by mutex_
  bool stopping_ = false;  // guarded by mutex_
  std::atomic<bool> lost_{false};
  // kReordered, guarded by mutex_: one engine runs at a time, and where both
  // could, this one is next.
  std::size_t turn_ = 0;
  std::size_t backlog_limit_ = 0;
};

} // namespace chameleon::runtime
