// Mutexes that know their place in the order of all locks. In debug builds a
// thread that takes one while it holds another of the same or a later rank
// aborts with a sentence, whether or not two threads ever meet there; else a
// RankedMutex is a std::mutex, and nothing is kept.
//
// The order is argued in memory/README.md and backend/runtime/README.md. Locks
// of one rank are never held together by one thread.
//
// Thread safety: any thread, as std::mutex.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace chameleon::runtime {

// In the order in which a thread may take them.
enum class LockRank : std::uint8_t {
  kPager,         // places, lists, arena, host pool, policy, tickets
  kStreamList,    // StreamPositions: streams that nobody had seen before
  kStream,        // StreamPositions: one stream
  kOpTimer,       //
  kPlans,         // PlanningThread
  kProfiler,      // Profiler, Durations: short locks
  kLog,           // names, timeline, histories: nothing is called under them
  kRuntimeChoice, // which runtime carries the device
  kRuntime,       // a runtime's own
  kRuntimePart,   // of its memory, events, copies
  kCallChecker,   //
  kOptions,       // the option table
};

#ifdef NDEBUG

template <LockRank>
using RankedMutex = std::mutex;
template <LockRank>
using RankedCondition = std::condition_variable;

inline void lock_taken(LockRank) noexcept {}
inline void lock_given_back(LockRank) noexcept {}

#else

// For locks that are no RankedMutex: call them around the lock. The first
// aborts if the calling thread may not take it now.
void lock_taken(LockRank rank) noexcept;
void lock_given_back(LockRank rank) noexcept;

template <LockRank rank>
class RankedMutex {
 public:
  void lock() {
    lock_taken(rank);
    mutex_.lock();
  }
  bool try_lock() {
    if (!mutex_.try_lock()) return false;
    lock_taken(rank);
    return true;
  }
  void unlock() {
    mutex_.unlock();
    lock_given_back(rank);
  }

 private:
  std::mutex mutex_;
};
template <LockRank>
using RankedCondition = std::condition_variable_any;

#endif

} // namespace chameleon::runtime
