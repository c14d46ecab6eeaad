// What every part of a pager works on, and the lock that guards it.
//
// Two kinds of work meet here. Threads without the lock pin Resident blocks,
// stamp and unpin them, and push released blocks. Threads with the lock move
// blocks: they may take a block out of Resident only by a compare-and-swap
// that finds it unpinned, and from then on it is theirs alone.
//
// The parts. All but BlockUses, which is made where it is needed, are members
// of Pager, in this order. Each knows only parts before it:
//
//   BlockUses        which positions on streams use a block
//   Meter            steps, timed ops, the link
//   Residency        evicts, fetches, moves, writes back and drops blocks
//   BlockTable       birth and death
//   Mirror           copies of blocks, to go back to
//   Compaction       moves inside HBM, to make one hole of many
//   Recomputer       records of ops, and runs them again; is the LastResort
//   RoomFinder       extents in HBM, whatever it takes; asks the LastResort
//                    where the host is full
//   StressHooks      evictions and drops that tests ask for
//   CallMemory       what kernels allocate
//   KernelRoom       room for that, made before the kernel begins
//   Overwrites       old bytes of operands that a call overwrites
//   PlanRunner       carries out what the policy wants before an op
//   InvariantWalker  checks what the others keep
//   CallPins         an op call's way in and its way out
//   HostAccess       copies between blocks and ordinary memory
//   Budgets          limits that change while the pager runs
//   PolicyControl    which policy is followed, and plans that outlive a run
//
// Tests: pager_test.cpp.
//
// Thread safety: members are safe from any thread or say that the lock guards
// them. A method that takes a `Locked` needs the lock, and gets the proof.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "backend/runtime/device_runtime.h"
#include "memory/block_uses.h"
#include "memory/call/admission.h"
#include "memory/counters.h"
#include "memory/decision_log.h"
#include "memory/limits.h"
#include "memory/locked.h"
#include "memory/pager_call.h"
#include "memory/policy/policy.h"
#include "memory/recompute/recompute_records.h"
#include "memory/space/arena.h"
#include "memory/space/host_pool.h"
#include "memory/streams/stream_positions.h"
#include "profiler/profiler.h"

namespace chameleon::memory {

// Of the arena and of the host pool, as of the last time that the lock was
// given up: for those who have no lock.
struct UsedBytes {
  std::atomic<std::size_t> hbm{0};
  std::atomic<std::size_t> open_hbm{0}; // used or not, Arena::openBytes()
  std::atomic<std::size_t> host{0};
};

struct PagerCore {
  // REQUIRES: `device` outlives it. The arena, the host pool and the policy
  // come later: making them may fail.
  PagerCore(runtime::DeviceRuntime& device, const Limits& at_first, int index);
  PagerCore(const PagerCore&) = delete;
  PagerCore& operator=(const PagerCore&) = delete;

  std::string name() const; // "chameleon:0"
  // A device's error says in which op it came to light.
  runtime::Error named(const CallState& call, runtime::Error error) const;
  // The stream waits for the fence, and so does the host where compute runs
  // inline: call it without the lock.
  runtime::Error waitFor(StreamIndex stream, const Fence& fence);

  BlockUses uses() noexcept { return BlockUses(streams); }

  // The runtime wants to hear what calls read, write, allocate and free.
  bool checksCallers() const noexcept {
    return watched.load(std::memory_order_relaxed) && runtime.checksCallers();
  }

  // Where the arena begins and ends is fixed, so these need no lock.
  bool inArena(const void* address) const noexcept NO_THREAD_SAFETY_ANALYSIS {
    return arena->range().contains(address);
  }
  std::size_t offsetOf(const std::byte* address) const noexcept
      NO_THREAD_SAFETY_ANALYSIS {
    return arena->range().offsetOf(address);
  }

  // A decision about a block, or about memory at an address.
  void note(Decision decision, const Block& block, std::size_t bytes) {
    if (!decisions.on()) [[likely]]
      return;
    decisions.add({ticks.load(std::memory_order_relaxed), decision,
                   block.identity, offsetOf(block.device_address), bytes});
  }
  void note(Decision decision, const std::byte* address, std::size_t bytes) {
    if (!decisions.on()) [[likely]]
      return;
    decisions.add({ticks.load(std::memory_order_relaxed), decision, 0,
                   offsetOf(address), bytes});
  }

  runtime::DeviceRuntime& runtime;
  const int device_index;
  // Somebody looks at each call: the runtime, the log of decisions, or the
  // walker. Once true it stays so.
  std::atomic<bool> watched;
  mutable PagerMutex mutex;
  StreamPositions streams;
  profiler::Profiler profiler;
  Admission admission;
  Counters counters;
  DecisionLog decisions{watched};
  std::atomic<std::uint64_t> ticks{0}; // op calls so far
  mutable UsedBytes used_bytes;

  Limits limits GUARDED_BY(pager_lock);
  RecomputeRecords records GUARDED_BY(pager_lock);
  std::unique_ptr<Arena> arena GUARDED_BY(pager_lock);
  std::unique_ptr<HostPool> host_pool GUARDED_BY(pager_lock);
  std::unique_ptr<Policy> policy GUARDED_BY(pager_lock);
};

// Holds the pager's lock. When it is given up, PagerCore::used_bytes says what
// is in use by then.
class SCOPED_CAPABILITY PagerLock : public Locked {
 public:
  explicit PagerLock(const PagerCore& core) ACQUIRE(pager_lock)
      : core_(core), lock_(core.mutex) {}
  ~PagerLock() RELEASE() {
    if (lock_.owns_lock()) unlock();
  }
  void unlock() RELEASE() {
    core_.used_bytes.hbm.store(core_.arena->usedBytes(),
                               std::memory_order_relaxed);
    core_.used_bytes.open_hbm.store(core_.arena->openBytes(),
                                    std::memory_order_relaxed);
    core_.used_bytes.host.store(core_.host_pool->usedBytes(),
                                std::memory_order_relaxed);
    lock_.unlock();
  }
  void lock() ACQUIRE() { lock_.lock(); }
  std::unique_lock<PagerMutex>& base() noexcept { return lock_; }

 private:
  const PagerCore& core_;
  std::unique_lock<PagerMutex> lock_;
};

} // namespace chameleon::memory
