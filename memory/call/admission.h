// Which calls may run beside each other. A call commits the bytes it pins and
// the room it expects to need inside its kernel before it pins anything; the
// sum over the calls in flight stays within the budget, so what one call was
// promised another cannot pin.
//
// Calls that fit enter without a lock. A call that does not fit beside the
// others draws a number and waits for them; while numbers are out the gate is
// closed: nobody enters without the pager's lock, and behind it the numbers
// are served in order, so nobody starves.
//
// Bytes that fit may still lie in pieces, because pins cannot be moved. A call
// whose in-call allocations must not fail therefore either finds one hole that
// is large enough and keeps it, or runs exclusively: then no other call enters
// until it leaves, and no new pin splits what it found free.
//
// Committed are: every pinned block once (whoever unpins it last gives its
// bytes back), each call's room, and what outlived a call (foreign extents).
// The bytes of a block are committed before it is pinned and given back after
// it is unpinned, so the pins are never more than what is committed.
//
// Why there is no deadlock: a thread waits only for calls in flight, and holds
// nothing of this pager meanwhile: no lock, no pin, no room. (A copy between
// two devices waits for room on one with its source pinned on the other; one
// such copy runs at a time.) A thread inside a call never waits, it fails
// instead. So every call that is waited for reaches its end(). Pins of
// unbounded duration are taken with keepPins() and are not waited for. Those of
// endsByItself() end when a peer has done its part, which may need this thread:
// they are waited for where a call would else be out of memory, and no longer
// than kOutstandingWait. A waiter
// draws its number before it looks at the committed bytes, and whoever lowers
// them looks for numbers afterwards, so no wake-up is lost. When all others
// have ended a call sees all that it can ever get: "out of memory" is final.
//
// Thread safety: as marked. `mutex` is the pager's.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>

#include "backend/runtime/check.h"
#include "backend/runtime/ranked_mutex.h"
#include "memory/locked.h"

namespace chameleon::memory {

// Called around every wait of a thread for another call: the Python layer gives
// up the GIL there.
struct WaitHooks {
  void* (*before)() = nullptr;
  void (*after)(void*) = nullptr;
};

using PagerMutex = runtime::RankedMutex<runtime::LockRank::kPager>;

class Admission {
 public:
  Admission(PagerMutex& mutex, std::size_t budget_bytes);

  struct Load {
    std::size_t bytes;   // committed
    std::uint32_t calls; // in flight
    bool exclusive;      // the one call in flight runs exclusively
  };

  // ---- any thread, no lock is needed; bytes are multiples of 512 ---------
  Load load() const noexcept {
    return unpack(word_.load(std::memory_order_seq_cst));
  }
  // Adds one call with `bytes` of operands and `asked_bytes` of room, if the
  // gate is open and both fit into the budget. If no other call is in flight,
  // the room is cut to what is free.
  //
  // With `exclusive_splits` a call that gets room enters only if it can run
  // exclusively, and only if so many fixed extents, wherever they lie,
  // leave one free piece of that room.
  struct Entry {
    bool admitted = false;
    bool exclusive = false;
    std::size_t room_bytes = 0;
    // Of an exclusive call: so many further fixed extents would still leave
    // one free piece of its room.
    std::size_t more_splits = 0;
  };
  Entry enter(std::size_t bytes, std::size_t asked_bytes,
              std::optional<std::size_t> exclusive_splits) noexcept;
  // Without a check.
  void add(std::uint32_t calls, std::size_t bytes) noexcept;
  // Room for a call that was counted by add(1, its bytes). False: does not
  // fit, and `others` says whether other calls were counted in that. `partly`
  // (or no other call): less than that is fine.
  bool addRoom(std::size_t asked_bytes, bool partly, std::size_t& room,
               bool& others) noexcept;
  // Makes the one call in flight exclusive. False: it is not the only one.
  bool makeExclusive() noexcept;
  // `exclusive`: the call had been exclusive. After every subtract() the caller
  // calls wake() or wakeLocked().
  void subtract(std::uint32_t calls, std::size_t bytes,
                bool exclusive = false) noexcept;
  void wake() noexcept { // takes the mutex, if anybody waits
    // A waiter draws its number before it looks at the load, and we lower the
    // load before we look for numbers: one of the two sees the other.
    if ((gate_.load(std::memory_order_seq_cst) & kNumberMask) != 0)
        [[unlikely]] {
      wakeWaiters();
    }
  }
  // True: nobody may enter without the pager's lock. enter() asks once it has
  // raised the load, since who closes the gate looks at load() after that.
  bool closed() const noexcept {
    return gate_.load(std::memory_order_seq_cst) != 0;
  }
  std::size_t budgetBytes() const noexcept {
    return budget_.load(std::memory_order_relaxed);
  }
  std::size_t waits() const noexcept {
    return waits_.load(std::memory_order_relaxed);
  }

  // Calls that end by themselves (Pager::endsByItself). The second comes
  // after the subtract() of the call's bytes and before wake().
  void addOutstanding() noexcept { outstanding_.fetch_add(1); }
  void removeOutstanding() noexcept { outstanding_.fetch_sub(1); }

  // ---- under the pager's mutex --------------------------------------------
  using QueueNumber = std::uint64_t; // 0: none
  QueueNumber draw();                // closes the gate until it is handed back
  void handBack(QueueNumber number);
  // May the holder of `number` (0: a newcomer) try now?
  bool turnOf(QueueNumber number) const noexcept {
    return !load().exclusive && (queue_.empty() || queue_.front() == number);
  }
  // How a try to begin ended.
  enum class Attempt {
    kDone,
    kLater, // when other calls have ended
    kAgain, // what was in the way is about to go
    kFailed,
  };
  // Serves `attempt(alone)` in turn, until it is done or fails; `alone`: no
  // other call was in flight when it started. Waits in between, if the thread
  // `may_wait`; the mutex is released meanwhile, and the wait hooks are called.
  // On failure for good the last result was kLater (nobody left who ends in
  // time) or kFailed. `exclusive`: only a try that is alone is of use.
  template <typename Try>
  bool serve(std::unique_lock<PagerMutex>& lock, bool exclusive, bool may_wait,
             Try&& attempt) REQUIRES(pager_lock);
  // Until something changed since the mutex was taken; releases it meanwhile,
  // and around the hooks. False: nothing did, in that time.
  bool wait(std::unique_lock<PagerMutex>& lock, const WaitHooks& hooks,
            std::optional<std::chrono::seconds> at_most = {});
  static WaitHooks wait_hooks; // process-wide; set once before first use
  void wakeLocked() noexcept;
  void close() noexcept { gate_.fetch_add(kClosed); } // nests
  void open() noexcept { gate_.fetch_sub(kClosed); }
  void setBudget(std::size_t bytes) noexcept {
    budget_.store(bytes, std::memory_order_seq_cst);
  }

 private:
  // So long may a collective hold up a call that lacks its memory. A slow peer
  // takes less; where the peer waits for this process it would be for ever.
  static constexpr std::chrono::seconds kOutstandingWait{60};

  // word: [63 exclusive | 62..48 calls | 47..0 committed units of 512 bytes]
  static constexpr std::uint64_t kExclusive = std::uint64_t{1} << 63;
  static constexpr unsigned kUnitShift = 9;
  static constexpr unsigned kCallShift = 48;
  static constexpr std::uint64_t kUnitMask =
      (std::uint64_t{1} << kCallShift) - 1;
  // gate: [63..32 closed by close() | 31..0 numbers out]
  static constexpr std::uint64_t kClosed = std::uint64_t{1} << 32;
  static constexpr std::uint64_t kNumberMask = kClosed - 1;

  static Load unpack(std::uint64_t word) noexcept {
    return {static_cast<std::size_t>(word & kUnitMask) << kUnitShift,
            static_cast<std::uint32_t>((word & ~kExclusive) >> kCallShift),
            (word & kExclusive) != 0};
  }
  static std::uint64_t pack(std::uint32_t calls, std::size_t bytes) noexcept {
    return (std::uint64_t{calls} << kCallShift) | (bytes >> kUnitShift);
  }

  Entry enterOtherwise(std::size_t bytes, std::size_t asked_bytes,
                       std::optional<std::size_t> exclusive_splits) noexcept;
  Entry turnBack(std::size_t bytes, bool exclusive) noexcept;
  void wakeWaiters() noexcept;

  PagerMutex& mutex_;
  std::atomic<std::uint64_t> word_{0};
  std::atomic<std::uint64_t> gate_{0};
  std::atomic<std::size_t> budget_;
  std::atomic<std::size_t> waits_{0};
  std::atomic<std::uint32_t> outstanding_{0};

  // Guarded by the mutex.
  runtime::RankedCondition<runtime::LockRank::kPager> changed_;
  std::uint64_t changes_ = 0;
  std::deque<QueueNumber> queue_;
  QueueNumber last_number_ = 0;
};

[[gnu::always_inline]] inline Admission::Entry Admission::enter(
    std::size_t bytes, std::size_t asked_bytes,
    std::optional<std::size_t> exclusive_splits) noexcept {
  std::uint64_t word = word_.load(std::memory_order_relaxed);
  const std::size_t needed = bytes + asked_bytes;
  if ((asked_bytes > 0 && exclusive_splits.has_value()) ||
      (word & kExclusive) != 0 ||
      ((word & kUnitMask) << kUnitShift) + needed > budgetBytes() ||
      !word_.compare_exchange_strong(word, word + pack(1, needed),
                                     std::memory_order_seq_cst,
                                     std::memory_order_relaxed)) [[unlikely]] {
    return enterOtherwise(bytes, asked_bytes, exclusive_splits);
  }
  if (!closed()) [[likely]]
    return {true, false, asked_bytes};
  return turnBack(needed, false);
}

inline void Admission::subtract(std::uint32_t calls, std::size_t bytes,
                                bool exclusive) noexcept {
  const std::uint64_t old =
      word_.fetch_sub(pack(calls, bytes) + (exclusive ? kExclusive : 0),
                      std::memory_order_seq_cst);
  const Load before = unpack(old);
  CHAMELEON_CHECK(before.bytes >= bytes && before.calls >= calls &&
                      (before.exclusive || !exclusive),
                  "more given back than was committed");
}

template <typename Try>
bool Admission::serve(std::unique_lock<PagerMutex>& lock, bool exclusive,
                      bool may_wait, Try&& attempt) {
  QueueNumber number = 0;
  Attempt result = Attempt::kLater;
  for (;;) {
    // With the gate closed (a number drawn), nobody enters after this look.
    const bool alone = load().calls == 0;
    const bool outstanding = outstanding_.load() != 0; // before the try
    bool tried = false;
    if (!may_wait || (turnOf(number) && (alone || !exclusive))) {
      result = attempt(alone);
      tried = true;
    }
    if (!may_wait ||
        (tried && (result == Attempt::kDone || result == Attempt::kFailed))) {
      break;
    }
    if (number == 0) {
      number = draw();
    } else if (tried && alone && result == Attempt::kLater) {
      if (!outstanding || !wait(lock, wait_hooks, kOutstandingWait)) break;
    } else {
      wait(lock, wait_hooks);
    }
  }
  if (number != 0) handBack(number);
  return result == Attempt::kDone;
}

} // namespace chameleon::memory
