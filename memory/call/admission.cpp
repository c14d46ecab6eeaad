#include "memory/call/admission.h"

#include <algorithm>

#include "backend/runtime/check.h"
#include "memory/phase_range.h"

namespace chameleon::memory {

WaitHooks Admission::wait_hooks;

Admission::Admission(PagerMutex& mutex, std::size_t budget_bytes)
    : mutex_(mutex), budget_(budget_bytes) {}

// Not at once: exclusively, with less than it asks for, or against other
// threads.
Admission::Entry Admission::enterOtherwise(
    std::size_t bytes, std::size_t asked_bytes,
    std::optional<std::size_t> exclusive_splits) noexcept {
  std::uint64_t word = word_.load(std::memory_order_relaxed);
  for (;;) {
    const Load now = unpack(word);
    const std::size_t budget = budgetBytes();
    const bool alone = now.calls == 0;
    if (now.exclusive) return {};
    std::size_t room = asked_bytes;
    if (now.bytes + bytes + asked_bytes > budget) {
      // mutant: admission
      if (!alone || now.bytes + bytes > budget) return {};
      room = (budget - now.bytes - bytes) >> kUnitShift << kUnitShift;
    }
    const bool exclusive = exclusive_splits.has_value() && room > 0;
    std::size_t more_splits = 0;
    if (exclusive) {
      // With n extents in the way the free bytes lie in n + 1 pieces at most.
      const std::size_t pieces = (budget - now.bytes - bytes) / room;
      if (!alone || pieces < *exclusive_splits + 1) return {};
      more_splits = pieces - *exclusive_splits - 1;
    }
    if (word_.compare_exchange_weak(
            word, (word + pack(1, bytes + room)) | (exclusive ? kExclusive : 0),
            std::memory_order_seq_cst, std::memory_order_relaxed)) {
      if (!closed()) [[likely]]
        return {true, exclusive, room, more_splits};
      return turnBack(bytes + room, exclusive);
    }
  }
}

// Who closed the gate may have looked at the load just before.
Admission::Entry Admission::turnBack(std::size_t bytes,
                                     bool exclusive) noexcept {
  subtract(1, bytes, exclusive);
  wake();
  return {};
}

void Admission::add(std::uint32_t calls, std::size_t bytes) noexcept {
  word_.fetch_add(pack(calls, bytes), std::memory_order_seq_cst);
}

bool Admission::addRoom(std::size_t asked_bytes, bool partly, std::size_t& room,
                        bool& others) noexcept {
  std::uint64_t word = word_.load(std::memory_order_relaxed);
  for (;;) {
    const Load now = unpack(word);
    const std::size_t budget = budgetBytes();
    others = now.calls > 1;
    room = 0;
    if (now.bytes > budget) return false;
    room = asked_bytes;
    if (now.bytes + asked_bytes > budget) {
      if (!partly && others) {
        room = 0;
        return false;
      }
      room = (budget - now.bytes) >> kUnitShift << kUnitShift;
    }
    if (word_.compare_exchange_weak(word, word + pack(0, room),
                                    std::memory_order_seq_cst,
                                    std::memory_order_relaxed)) {
      return true;
    }
  }
}

bool Admission::makeExclusive() noexcept {
  std::uint64_t word = word_.load(std::memory_order_relaxed);
  while (unpack(word).calls == 1) {
    if (word_.compare_exchange_weak(word, word | kExclusive,
                                    std::memory_order_seq_cst,
                                    std::memory_order_relaxed)) {
      return true;
    }
  }
  return false;
}

void Admission::wakeWaiters() noexcept {
  const std::lock_guard lock(mutex_);
  wakeLocked();
}

void Admission::wakeLocked() noexcept {
  ++changes_;
  changed_.notify_all();
}

Admission::QueueNumber Admission::draw() {
  queue_.push_back(++last_number_);
  gate_.fetch_add(1, std::memory_order_seq_cst);
  return last_number_;
}

void Admission::handBack(QueueNumber number) {
  const auto found = std::find(queue_.begin(), queue_.end(), number);
  CHAMELEON_CHECK(found != queue_.end(), "a number that nobody drew");
  queue_.erase(found);
  gate_.fetch_sub(1, std::memory_order_seq_cst);
  wakeLocked(); // the next in line
}

bool Admission::wait(std::unique_lock<PagerMutex>& lock, const WaitHooks& hooks,
                     std::optional<std::chrono::seconds> at_most) {
  const PhaseRange range("wait for other ops");
  const std::uint64_t seen = changes_;
  waits_.fetch_add(1, std::memory_order_relaxed);
  void* token = nullptr;
  if (hooks.before != nullptr) {
    lock.unlock();
    token = hooks.before();
    lock.lock();
  }
  const auto changed = [&] { return changes_ != seen; };
  bool done = true;
  if (at_most) {
    done = changed_.wait_for(lock, *at_most, changed);
  } else {
    changed_.wait(lock, changed);
  }
  if (hooks.after != nullptr) {
    lock.unlock();
    hooks.after(token);
    lock.lock();
  }
  return done;
}

} // namespace chameleon::memory
