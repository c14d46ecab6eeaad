// What is behind Pager: one shared state, and the work on it split by concept
// over several files. Private to memory/pager*.cpp and memory/invariants.cpp.
//
// Two kinds of work meet here. Threads without the lock pin Resident blocks,
// stamp and unpin them, and push released blocks. Threads with the lock move
// blocks: they may take a block out of Resident only by a compare-and-swap
// that finds it unpinned, and from then on it is theirs alone.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "memory/admission.h"
#include "memory/arena.h"
#include "memory/counters.h"
#include "memory/decision_log.h"
#include "memory/evacuation.h"
#include "memory/host_pool.h"
#include "memory/learned_spans.h"
#include "memory/logical_space.h"
#include "memory/pager.h"
#include "memory/policy/policy.h"
#include "memory/recreation.h"
#include "memory/spare_blocks.h"
#include "memory/step_meter.h"
#include "memory/transfers.h"

namespace chameleon::memory {

// Why there was no room. What is empty did not happen.
struct Shortage {
  bool host_full = false; // a dirty victim had no place on the host
  runtime::Error failure; // the runtime reported an error
};

class PagerImpl {
 public:
  PagerImpl(Pager& owner, runtime::DeviceRuntime& runtime, const Limits& limits,
            int device_index);
  ~PagerImpl();
  runtime::Error open(std::string_view policy);

  // ---- pager_blocks.cpp: birth and death of blocks ----
  runtime::Result<Block*> create(std::size_t bytes);
  void release(Block* block) noexcept;
  void recordUse(Block& block, runtime::Stream stream);

  // ---- pager_begin.cpp, pager_end.cpp ----
  runtime::Error begin(Call& call, const OpRequest& request);
  void end(Call& call) noexcept;
  void hold(Call& call) noexcept;

  // ---- pager_measure.cpp ----
  void step(runtime::Stream stream);
  std::optional<StepFigures> lastStep();
  void setMaxSlowdown(std::optional<double> factor);
  LinkModel link() const { return link_.now(); }
  void recordTimeline(bool on);
  const profiler::Timeline& timeline() {
    timer_.collect();
    return timeline_;
  }

  profiler::Profiler& profiler() noexcept { return profiler_; }
  profiler::Durations& durations() noexcept { return durations_; }
  DecisionLog& decisions() noexcept { return decisions_; }
  PolicyCosts policyCosts() const {
    const Lock lock(*this);
    return policy_->costs();
  }

  // ---- pager_in_call.cpp: memory inside a running call ----
  runtime::Result<std::byte*> allocate(Call& call, std::size_t bytes);
  std::size_t largestInCall(const Call& call) const;
  void free(Call* call, std::byte* address) noexcept;
  runtime::Result<Block*> adopt(Call& call, std::byte* address,
                                std::size_t bytes);
  bool contains(const void* address) const noexcept {
    return arena_->contains(address);
  }

  // ---- pager_host_access.cpp ----
  runtime::Error read(Block& block, std::size_t offset, std::byte* destination,
                      std::size_t bytes, runtime::Stream stream);
  runtime::Error write(Block& block, std::size_t offset,
                       const std::byte* source, std::size_t bytes,
                       runtime::Stream stream);

  // ---- pager_rerun.cpp ----
  void record(Call& call, std::unique_ptr<RecordedOp> op,
              std::span<Block* const> created);
  bool dropBlock(Block& block);
  void dropAll();

  // ---- pager_control.cpp ----
  runtime::Error setHbmBudget(std::size_t bytes);
  runtime::Error setHostBudget(std::size_t bytes, double growth_share);
  runtime::Error setOversubscription(double factor);
  runtime::Error setPolicy(std::string_view name);
  runtime::Error setRecompute(bool on);
  Limits limits() const;
  runtime::Error evictBlock(Block& block);
  runtime::Error evictAll();
  runtime::Error synchronize();
  void trim();
  void setStress(Pager::Stress stress, std::uint64_t seed);
  void setDropStress(Pager::DropStress stress, std::uint64_t seed);
  std::uint64_t calls() const noexcept {
    return ticks_.load(std::memory_order_relaxed);
  }
  std::vector<Pager::BlockInfo> blocks();
  Stats stats();
  void resetStats();
  std::size_t hbmBudget() const noexcept { return admission_.budgetBytes(); }
  Pager::Levels levels() const noexcept;

  // ---- invariants.cpp ----
  void check(int level);
  void checkEvery(std::uint64_t calls) noexcept { check_every_ = calls; }

  static WaitHooks wait_hooks;
  static Pager::SlowdownHook slowdown_hook;

 private:
  friend class InvariantWalker;

  // The pager's lock. What levels() shows is published when it is given up.
  class Lock {
   public:
    explicit Lock(const PagerImpl& pager)
        : pager_(pager), lock_(pager.mutex_) {}
    ~Lock() {
      if (lock_.owns_lock()) unlock();
    }
    void unlock() {
      pager_.publish();
      lock_.unlock();
    }
    std::unique_lock<PagerMutex>& base() noexcept { return lock_; }

   private:
    const PagerImpl& pager_;
    std::unique_lock<PagerMutex> lock_;
  };
  void publish() const noexcept {
    used_bytes_.store(arena_->usedBytes(), std::memory_order_relaxed);
    host_bytes_.store(host_pool_->usedBytes(), std::memory_order_relaxed);
  }

  // ---- pager_blocks.cpp; all REQUIRE the lock unless they say otherwise ----
  runtime::Result<Block*> newBlock(std::size_t bytes,
                                   std::size_t rounded_bytes);
  void recycle(Block& block) noexcept;
  void destroy(Block& block) noexcept;
  void giveUpPlaces(Block& block, bool host_copy) noexcept;
  void drainReleased() noexcept;
  void pushReleased(Block* block) noexcept; // no lock
  std::size_t logicalLimit() const noexcept;
  std::uint64_t nextIdentity() noexcept {
    return identities_.fetch_add(1, std::memory_order_relaxed) + 1;
  }
  void addLogical(const Block& block) noexcept; // no lock
  // Positions of a block. stamp() needs no lock but a pin.
  void stamp(Block& block, Position position) noexcept {
    std::atomic<std::uint64_t>& slot = block.last_use[0];
    std::uint64_t old = slot.load(std::memory_order_relaxed);
    if ((old != 0 && (Position{old}.stream() != position.stream() ||
                      old >= position.word)) ||
        !slot.compare_exchange_strong(old, position.word,
                                      std::memory_order_release,
                                      std::memory_order_relaxed)) {
      stampSlow(block, position);
    }
  }
  void stampSlow(Block& block, Position position) noexcept;
  void clearUses(Block& block) noexcept;
  Fence usesOf(const Block& block); // all work on the device bytes
  Fence writesOf(const Block& block);
  Fence hostUsesOf(const Block& block); // copies from and to the host copy
  // Adds to a fence what has not passed; where streams cannot be joined the
  // host waits instead. No lock.
  void addTo(Fence& fence, Position position) noexcept {
    if (timelines_.passed(position) || fence.add(position)) return;
    joinTo(fence, position);
  }
  void addTo(Fence& fence, const Fence& other) noexcept;
  void joinTo(Fence& fence, Position position) noexcept;
  // True: later work on the stream runs after the position in any case.
  bool inOrder(Position position, StreamIndex stream) const noexcept {
    return timelines_.follows(stream, position);
  }
  bool inOrder(const Fence& fence, StreamIndex stream) const noexcept {
    for (const Position position : fence.slots()) {
      if (position.none()) return true;
      if (!inOrder(position, stream)) return false;
    }
    return true;
  }

  bool usesInOrder(const Block& block, StreamIndex stream) const noexcept {
    const auto at = [](const std::atomic<std::uint64_t>& word) {
      return Position{word.load(std::memory_order_acquire)};
    };
    const auto& uses = block.last_use; // in use from the front
    return inOrder(at(uses[0]), stream) &&
           inOrder(at(block.last_write), stream) &&
           (at(uses[1]).none() ||
            (inOrder(at(uses[1]), stream) && inOrder(at(uses[2]), stream)));
  }

  // ---- pager_begin.cpp, pager_end.cpp ----
  // One distinct operand of the call that begins.
  struct Wanted {
    Block* block;
    bool write;
    bool missing;
    bool overwrite; // wholly, unread, by every operand that it is
    Extent* extent; // for a missing one, until it is the block's
    bool fetched() const noexcept {
      return missing && !overwrite && block->host != nullptr;
    }
  };
  enum class Attempt {
    kDone,
    kLater, // when other calls have ended
    kAgain, // what was in the way is about to go
    kFailed,
  };

  // The op ended well before, with operands of that size or larger ones.
  static bool hasSeen(const OpMemory* memory, std::size_t bytes) noexcept;
  static std::size_t roomWished(const OpMemory* memory, std::size_t bytes);
  static std::size_t roomGuessed(const OpMemory& memory, std::size_t bytes);
  bool beginFast(Call& call, const std::span<const Operand>& operands,
                 bool must_not_fail, Fence& waits);
  void backOut(std::span<const Operand> operands, std::size_t pinned,
               const Admission::Entry& entry,
               std::size_t shared_bytes) noexcept;
  runtime::Error beginSlow(Call& call, std::span<const Operand> operands,
                           bool must_not_fail, Fence& waits);
  // Serves `attempt` in turn; `alone`: no other call was in flight when it
  // started. Takes the lock's place as in Admission::wait. On failure for
  // good the attempt's last result was kLater (nobody left to wait for) or
  // kFailed.
  template <typename Try>
  bool serve(Lock& lock, bool exclusive, Try&& attempt);
  // Calls that this thread is inside of, on all pagers. Such a thread holds
  // pins and therefore never waits for other calls.
  static constinit thread_local int calls_of_thread;
  // Of the op that this thread is about to run again.
  static constinit thread_local profiler::QuickToken quick_of_rerun;
  Attempt tryBegin(Call& call, std::span<const Operand> operands,
                   bool must_not_fail, bool exclusive, bool alone, Fence& waits,
                   Shortage& shortage);
  bool gather(std::span<const Operand> operands, std::size_t& total_bytes);
  void pinResident();
  bool takeRoom(Call& call, bool must_not_fail, std::size_t bytes,
                bool& others);
  bool placeMissing(Call& call, Shortage& shortage);
  void commit(Call& call, Fence& waits);
  void undo(Call& call) noexcept;
  void holdHole(Call& call, Extent* hole) noexcept;
  void freeHole(Call& call) noexcept;
  runtime::Error waitFor(StreamIndex stream, const Fence& fence);
  // Bytes that are no longer committed: it was the block's last pin.
  static std::size_t unpin(Block& block) noexcept {
    const std::size_t size = block.rounded_bytes; // gone after the unpin
    const std::uint64_t old =
        block.word.fetch_sub(1, std::memory_order_acq_rel);
    return Block::pinsOf(old) == 1 ? size : 0;
  }
  // These five take the lock where they need it.
  void retire(Call& call, std::size_t freed) noexcept;
  void leave(Call& call) noexcept; // unpins and makes way for others
  void learn(Call& call) noexcept;
  void report(Call& call) noexcept; // to a runtime that checks its callers
  void reviveWritten(std::span<const Operand> operands) noexcept;
  // A device's error says in which op it came to light.
  runtime::Error named(const Call& call, runtime::Error error) const;
  runtime::Error outOfMemory(const Call& call, std::size_t needed_bytes,
                             std::size_t inside_bytes, Shortage& shortage);

  // ---- pager_kernel_room.cpp ----
  bool makeRoomForKernel(Call& call, bool must_not_fail, bool alone,
                         Shortage& shortage);
  std::size_t holeWished(const Call& call) const noexcept;
  std::size_t roomForUnseen(std::size_t guess, const Call& call) const noexcept;
  std::size_t roomLeft(const Call& call) const noexcept;
  bool makeRoomToChoose(Call& call, bool alone, Shortage& shortage);
  bool holdAll(Call& call, bool alone, Shortage& shortage);
  bool takeAlone(Call& call, bool alone) noexcept;
  void makeLargeRoom(std::size_t bytes, StreamIndex stream, Shortage& shortage);

  // ---- pager_fetch.cpp ----
  bool fetchMissing(Shortage& shortage);
  Position join(const Fence& fence) noexcept;
  void setOldBytesAside(Call& call, Block& block);
  // Takes the lock. Returns bytes that are no longer committed: where the old
  // bytes cannot be brought back the call loses its pins of the block.
  std::size_t settleOldBytes(Call& call) noexcept;
  std::size_t leaveOnHost(Call& call, const Call::OldBytes& old,
                          const Fence& uses) noexcept;
  static std::size_t dropPins(Call& call, Block& block) noexcept;
  bool refuseLost(Shortage& shortage) const;
  runtime::Error lostError(const Block& block) const;
  void settle(Block& block) noexcept;
  void dropHostCopy(Block& block) noexcept;
  bool cancelCopyOut(Position done, const std::byte* destination,
                     std::size_t bytes) noexcept;

  // ---- pager_evict.cpp ----
  enum class Evicted { kDone, kBusy, kHostFull, kFailed };
  static bool evictable(const Block& block) noexcept;
  Evicted evict(Block& block, Shortage& shortage,
                Decision why = Decision::kVictim);
  Evicted beginEvict(Block& block, Shortage& shortage, Decision why);
  bool copyOut(Shortage& shortage);
  void blocksLeave() noexcept;
  void vacate(Block& block, Position copied);
  bool evictNext(Shortage& shortage, std::size_t bytes = 1,
                 std::size_t piece_bytes = 0);
  HostPool::Place hostPlace(std::size_t bytes, Shortage& shortage);
  bool dropOldestHostCopy() noexcept;
  void linkCopy(Block& block) noexcept;
  void unlinkCopy(Block& block) noexcept;
  void applyStress();
  void updateGate(bool was);
  bool everyCallLocks() const noexcept {
    return host_short_ || stress_ != Pager::Stress::kNever ||
           drop_stress_ != Pager::DropStress::kNever;
  }

  // ---- pager_ahead.cpp ----
  bool observe(Call& call, const OpIdentity& identity,
               const std::span<const Operand>& operands);
  void introduce(Call& call, Block& block) noexcept; // no lock
  static bool isReleased(const void* block) noexcept;
  void forgetDead(Block& block) noexcept; // no lock
  bool fulfil(const Call& call);          // takes the lock; record it?
  void beginWriteBack(Block& block);
  bool mayFetchAhead(Block& block) noexcept;
  void fetchAhead(std::uint64_t needed_at);
  void countPrefetch(Block& block) noexcept; // was it of use?
  PolicyInputs policyInputs() noexcept;

  // ---- pager_rerun.cpp: blocks whose bytes are nowhere ----
  // What must run before a call may begin; in use then (Recreation::use).
  Record* missing(std::span<const Operand> operands);
  bool drop(Block& block);
  void takeOver(Block& block, Block& fresh);
  bool giveUpForHost(std::size_t bytes);
  bool giveUpHeld();
  bool dropWorst(std::size_t bytes, bool resident);
  void noteHostUse();
  void freeUnheld() noexcept;
  static bool fits(const Record& record, std::size_t budget_bytes) noexcept;
  runtime::Error restoreBefore(std::size_t budget_bytes); // takes the lock
  // These take the lock where they need it. `record` is in use, and let go.
  runtime::Error restore(Record& record, std::span<const Operand> operands,
                         std::string_view purpose);
  runtime::Error restoreAll(Record& record, std::string_view purpose);
  runtime::Error rerun(Record& record);
  // What a re-run makes. Nobody else knows these blocks.
  struct Fresh {
    std::vector<Block*> outputs; // of the record, null: not made (yet)
    std::vector<Block*> scratch; // side effects, in order, and what is left
  };
  runtime::Error makeFresh(const Record& record, Fresh& fresh);
  runtime::Error runSteps(const Record& record, Fresh& fresh);
  // REQUIRES the lock, and gives it up in between: makes what an access to the
  // block needs.
  runtime::Error restoreFor(Lock& lock, const Operand& operand,
                            std::string_view purpose);
  void applyDropStress(Call& call); // REQUIRES the lock

  // ---- pager_spares.cpp; no lock unless they say otherwise ----
  void spare(Block& block) noexcept;
  bool giveBackSpares() noexcept; // REQUIRES the lock. False: there were none
  Block* takeSpare(Call& call, std::size_t rounded_bytes) noexcept;
  runtime::Error orderSpare(Call& call, Block& block);
  static std::size_t indexOfSpare(const Call& call,
                                  const std::byte* address) noexcept;
  static Block& removeSpare(Call& call, std::size_t index) noexcept;
  void freeSpare(Call& call, std::size_t index) noexcept;
  Block& adoptSpare(Call& call, std::size_t index, std::size_t bytes) noexcept;
  void outliveSpare(Call& call, Block& block, Position position) noexcept;
  void freeElsewhere(std::byte* address) noexcept;
  // What blocks and calls have in HBM.
  std::size_t residentBytes() const noexcept {
    const std::size_t used = used_bytes_.load(std::memory_order_relaxed);
    return used - std::min(used, spares_.bytes());
  }
  // The same at this very moment. REQUIRES: the lock. (Spares come and go
  // without it, and some may be evicted already.)
  std::size_t residentNow() const noexcept {
    const std::size_t used = arena_->usedBytes();
    return used - std::min(used, spares_.bytes());
  }
  // ---- pager_measure.cpp ----
  void startTiming(Call& call, runtime::Stream stream,
                   const OpIdentity& identity);
  void startRerunTiming(Call& call, const OpRequest& request);
  void beginTiming(Call& call);
  void endTiming(Call& call);
  StepCounts stepCounts() const noexcept;
  runtime::Error stepEnded(const Call& call); // takes the lock
  double complete(StepMeter::Last& last);     // no lock; transfer time in ns
  void watchSteps();                          // takes the lock
  void watchStep(StepMeter::Last& last);      // takes the lock
  runtime::Error reportSlowdown();            // takes the lock
  std::int64_t computeEstimate(profiler::PathId path, const StepFigures& step);

  // ---- pager_room.cpp ----
  // The ladder: an extent, whatever it takes short of waiting, for whoever
  // writes there first on `stream`. Null: see `shortage`.
  Extent* place(std::size_t bytes, End end, ExtentUse use, StreamIndex stream,
                Shortage& shortage);
  Extent* allocateFree(std::size_t bytes, End end, ExtentUse use,
                       StreamIndex stream);
  // The same, but what is free stays so.
  bool makeFree(std::size_t bytes, StreamIndex stream, Shortage& shortage);
  // One rung, for whoever found no hole of `bytes`. True: look again.
  bool climb(std::size_t bytes, StreamIndex stream, Shortage& shortage);
  // The most bytes in a row that eviction could free, as far as `enough`. With
  // `moving`, blocks that cannot be evicted but moved do not end a row.
  std::size_t largestRun(bool moving, std::size_t enough) const noexcept;

  // ---- pager_compact.cpp ----
  bool movable(const Extent& extent) const noexcept;
  std::size_t costOfMove(const Block& block, StreamIndex stream) noexcept;
  bool moveFor(std::size_t bytes, StreamIndex stream, Shortage& shortage);
  bool compactFor(std::size_t bytes, std::size_t limit, StreamIndex stream,
                  Shortage& shortage);
  Part partOf(const Extent& extent, StreamIndex stream) noexcept;
  bool evacuate(std::span<Extent* const> extents, const Evacuation& evacuation,
                Shortage& shortage);
  bool relocate(Extent& extent, Extent& target, Shortage& shortage);
  bool slide(Extent& extent, std::size_t offset, Shortage& shortage);
  void slideAll(Shortage& shortage);

  // ---- pager_host_access.cpp; these take the lock where they need it ----
  runtime::Error readDevice(Block& block, std::size_t offset,
                            std::byte* destination, std::size_t bytes,
                            runtime::Stream stream);
  runtime::Error writeDevice(Block& block, std::size_t offset,
                             const std::byte* source, std::size_t bytes,
                             runtime::Stream stream);
  void beginHostAccess(Block& block) noexcept; // REQUIRES the lock
  void endHostAccess(Block& block) noexcept;

  // ---- invariants.cpp; what checkEvery() asks for ----
  void checkOperands(const Call& call) const; // of a call that has begun
  void checkNow();                            // takes the lock

  // ---- pager_control.cpp ----
  Attempt tryHbmBudget(std::size_t bytes, runtime::Error& error);
  runtime::Error evictionError(Shortage& shortage) const;
  std::size_t pinnedBytes() const noexcept;
  std::string name() const; // "chameleon:0"

  // ---- pager_in_call.cpp ----
  runtime::Result<std::byte*> allocateExtent(Call& call, std::size_t rounded,
                                             std::size_t offset);
  Extent* cutHole(Call& call, std::size_t offset, std::size_t bytes);
  void giveBack(Call& call, Extent* extent, const Fence& fence) noexcept;
  void adopted(Call& call, Block& block) noexcept;
  void list(Call& call, Extent* extent);
  void forget(Call& call, std::size_t index) noexcept;
  std::size_t indexOf(const Call& call, const Extent* extent) const noexcept;
  void unlist(Call& call) noexcept;
  void makeForeign(Call& call, Position position) noexcept; // takes the lock
  Call& ownerOf(Call* hint, const Extent* extent) noexcept;

  // A decision about a block, or about memory at an offset.
  void note(Decision decision, const Block& block, std::size_t bytes) {
    if (!decisions_.on()) [[likely]]
      return;
    decisions_.add({ticks_.load(std::memory_order_relaxed), decision,
                    block.identity, arena_->offset(block.device_address),
                    bytes});
  }
  void note(Decision decision, const std::byte* address, std::size_t bytes) {
    if (!decisions_.on()) [[likely]]
      return;
    decisions_.add({ticks_.load(std::memory_order_relaxed), decision, 0,
                    arena_->offset(address), bytes});
  }

  Pager& owner_;
  runtime::DeviceRuntime& runtime_;
  const int device_index_;
  const bool checks_callers_;
  std::atomic<std::uint64_t> check_every_{0}; // calls; 0: never
  std::atomic<std::uint64_t> calls_checked_{0};
  mutable PagerMutex mutex_;
  Timelines timelines_;
  profiler::Durations durations_;
  profiler::Timeline timeline_;
  OpTimer timer_;
  LinkEstimate link_;
  Transfers transfers_;
  Admission admission_;
  Counters counters_;
  DecisionLog decisions_;

  // Without the lock.
  SpareBlocks spares_;
  LearnedSpans spans_;
  // What is more is made ready before the operands are pinned; once blocks
  // leave, else SIZE_MAX.
  std::atomic<std::size_t> large_room_ = SIZE_MAX;
  std::atomic<Block*> released_{nullptr};
  std::atomic<std::size_t> released_bytes_{0}; // of these, rounded
  std::atomic<std::uint64_t> ticks_{0};
  std::atomic<std::uint64_t> identities_{0};
  std::atomic<std::size_t> logical_bytes_{0};
  std::atomic<std::size_t> logical_rounded_bytes_{0};
  std::atomic<std::size_t> logical_limit_{0};
  // Immovable between calls: foreign extents and the pins of held calls.
  std::atomic<std::size_t> fixed_extents_{0};
  mutable std::atomic<std::size_t> used_bytes_{0}; // of the arena
  std::atomic<std::uint64_t> steps_seen_{0};       // Profiler::steps()
  std::atomic<std::uint64_t> step_begin_{0};       // Profiler::opCount()
  mutable std::atomic<std::size_t> host_bytes_{0};

  // Guarded by the lock.
  Limits limits_;
  std::unique_ptr<LogicalSpace> logical_space_;
  std::unique_ptr<Arena> arena_;
  std::unique_ptr<HostPool> host_pool_;
  profiler::Profiler profiler_{profiler::OpHistory::kDefaultBytes, &isReleased};
  StepMeter meter_;
  SlowdownWatch watch_;
  std::optional<SlowdownReport> slowdown_; // the next op hands it on
  WishGate gate_;
  std::vector<Wish> wishes_;         // scratch
  std::vector<Wanted> ahead_;        // scratch of fetchAhead()
  std::uint64_t room_needed_at_ = 0; // as Policy::victim() wants it
  std::unique_ptr<Policy> policy_;
  Recreation recreation_;
  Block* live_ = nullptr;     // by next_live
  Block* recycled_ = nullptr; // by next_live
  Block* oldest_copy_ = nullptr;
  Block* newest_copy_ = nullptr;
  std::size_t copy_bytes_ = 0; // of clean blocks that are in HBM too
  Call* calls_ = nullptr;      // with in-call extents
  std::size_t hole_bytes_ = 0; // of all calls' held holes
  Pager::Stress stress_ = Pager::Stress::kNever;
  bool recompute_ = false;
  bool host_short_ = false; // so all calls are recorded
  Pager::DropStress drop_stress_ = Pager::DropStress::kNever;
  std::mt19937_64 stress_random_;
  // A block whose copy out is in the next batch. It is Evicting, or, for a
  // write-back ahead, Resident with the host-copy bit.
  struct CopyOut {
    Block* block;
    HostPool::Place place;
    Decision why;
  };
  std::vector<CopyOut> outs_; // empty between two holds of the lock
  // Scratch of the call that begins and of evictions, to spare the heap.
  std::vector<Wanted> wanted_;
  std::vector<runtime::Copy> copies_;
  std::vector<Block*> set_aside_;
};

template <typename Try>
bool PagerImpl::serve(Lock& lock, bool exclusive, Try&& attempt) {
  const bool may_wait = calls_of_thread == 0;
  Admission::Ticket ticket = 0;
  Attempt result = Attempt::kLater;
  for (;;) {
    // With the gate closed (a ticket drawn), nobody enters after this look.
    const bool alone = admission_.load().calls == 0;
    bool tried = false;
    if (!may_wait || (admission_.turnOf(ticket) && (alone || !exclusive))) {
      result = attempt(alone);
      tried = true;
    }
    if (!may_wait ||
        (tried && (result == Attempt::kDone || result == Attempt::kFailed))) {
      break;
    }
    if (ticket == 0) {
      ticket = admission_.draw();
    } else if (tried && alone && result == Attempt::kLater) {
      break;
    } else {
      admission_.wait(lock.base(), wait_hooks);
    }
  }
  if (ticket != 0) admission_.handBack(ticket);
  return result == Attempt::kDone;
}

} // namespace chameleon::memory
