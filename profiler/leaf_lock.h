// A lock that is held for some hundred instructions, and for up to a
// millisecond while a sequence is copied: one atomic exchange to take, one
// store to give back, and a thread that finds it taken yields.
//
// A leaf: whoever holds it takes no other lock and does not wait. Outside this
// folder it calls only LiveBlocks::Gone, which is short and takes no lock.
//
// Thread safety: any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>

#include "backend/runtime/ranked_mutex.h"

namespace chameleon::profiler {

class LeafLock {
 public:
  void lock() noexcept {
    runtime::lock_taken(runtime::LockRank::kProfiler);
    if (taken_.exchange(true, std::memory_order_acquire)) [[unlikely]]
      wait();
  }
  void unlock() noexcept {
    taken_.store(false, std::memory_order_release);
    runtime::lock_given_back(runtime::LockRank::kProfiler);
  }
  // How often a thread found it taken.
  std::uint64_t waits() const noexcept {
    return waits_.load(std::memory_order_relaxed);
  }

 private:
  [[gnu::noinline]] void wait() noexcept {
    do {
      waits_.fetch_add(1, std::memory_order_relaxed);
      std::this_thread::yield();
    } while (taken_.exchange(true, std::memory_order_acquire));
  }

  std::atomic<bool> taken_{false};
  std::atomic<std::uint64_t> waits_{0};
};

} // namespace chameleon::profiler
