// The profiler's entry point: sees every op, knows where in the recorded
// history the run is, and says what comes next. One per device index; never
// allocates device memory, never waits, and is never needed for correctness.
//
// How it is driven (memory/pager and kernels/), per op call:
//
//   ticket = observe(op, token, operands)   before operands are pinned
//   ... the kernel ...
//   slot = result(ticket, block)            per result, in order of outputs
//   finished(ticket, workspace)             where the workspace is measured
//   freed(slot, when)                       when a released block is drained
//   resultInPlaceOf(ticket, slot, when, ..) both, where a result takes over
//                                           the slot of a block that died
//
// born() and result() give a slot that the owner keeps beside the block;
// freed() takes it back. `when` is opCount() as release() read it: one load at
// the moment the tensor died, so that the recorded death does not depend on
// when the queue of released blocks happens to be drained.
//
// Ops that begin inside another op's call (allocations, nested calls) are not
// observed. A chunk of a list op is an op.
//
// Thread safety: every method, any thread. One LeafLock guards everything: a
// thread holds it for some 50 instructions per op, and for as long as copying
// a step's records takes (under a millisecond for 10,000 ops) when the run
// leaves or completes a sequence. Under it only `gone` is called, which must be
// short and take no lock. If several threads run ops at once their ops
// interleave: sequences then rarely repeat, and forecasts fail; nothing else
// does. Autograd's thread and the main thread take turns, and make one
// sequence.
//
// Lock order: callers may hold the pager's mutex; the profiler takes no lock
// of anybody else.
#pragma once

#include <atomic>
#include <concepts>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "profiler/divergence.h"
#include "profiler/leaf_lock.h"
#include "profiler/live_blocks.h"
#include "profiler/op_history.h"
#include "profiler/op_recorder.h"
#include "profiler/sequence_matcher.h"
#include "profiler/shape_variant.h"
#include "profiler/step_finder.h"
#include "profiler/step_markers.h"
#include "profiler/token.h"

namespace chameleon::profiler {

// One observed op, until it is completed. Values only.
struct OpTicket {
  std::uint32_t epoch;    // what follows holds in this one only
  std::uint32_t recorded; // in the recording, kNone: there is none
  std::uint32_t position; // in the path followed, kNone: there is none
  std::uint16_t outputs;
  bool expected;   // it was what the forecast said
  bool is_on_path; // it has a position, and nothing is recorded
  void leavePath() noexcept {
    position = kNone;
    is_on_path = false;
  }
};

// Sums since the start, and what the last step that ended was.
struct RunCounts {
  std::uint64_t ops = 0;
  std::uint64_t steps = 0;
  std::uint64_t forecast_misses = 0; // ops that were not the expected one
  PathId last_path = 0;              // 0: no step has ended
};

class Profiler {
 public:
  // `gone` knows of a block's owner whether the block died (live_blocks.h); it
  // is called under the lock.
  explicit Profiler(std::size_t history_limit_bytes = OpHistory::kDefaultBytes,
                    LiveBlocks::Gone gone = nullptr);
  Profiler(const Profiler&) = delete;
  Profiler& operator=(const Profiler&) = delete;

  // ---- blocks --------------------------------------------------------------
  // A block that no op made. REQUIRES: identity != 0, never used before.
  // `owner` comes back from Forecast::bound().
  BlockSlot born(std::uint64_t identity, std::uint64_t bytes,
                 void* owner = nullptr) {
    const Guard guard(lock_);
    return blocks_.add(identity, bytes, owner);
  }
  // Ops observed so far. Lock-free.
  std::uint64_t opCount() const noexcept {
    return op_count_.load(std::memory_order_relaxed);
  }
  // The block is gone since `op_count`. The slot is free afterwards.
  void freed(BlockSlot slot, std::uint64_t op_count) noexcept {
    lock_.lock();
    if (watching_deaths_) [[unlikely]]
      recordDeath(blocks_[slot], op_count);
    blocks_.remove(slot);
    lock_.unlock();
  }

  // ---- ops -----------------------------------------------------------------
  // Uses as observe() asks for them.
  struct UseList {
    std::span<const Use> list;
    std::size_t size() const noexcept { return list.size(); }
    std::uint64_t identity(std::size_t i) const noexcept {
      return list[i].identity;
    }
    Use use(std::size_t i) const noexcept { return list[i]; }
  };
  // The next op. Each distinct block once; `op` names it. `uses` has size(),
  // identity(i) and use(i), which cost little. What `token()` returns is only
  // asked for where the op is not the expected one, outside the lock; `quick`
  // is the quick half of that.
  template <typename Uses, std::invocable MakeToken>
  [[gnu::always_inline]] void observe(std::uint32_t op, QuickToken quick,
                                      Uses uses, MakeToken token,
                                      OpTicket& ticket) {
    lock_.lock();
    const std::uint32_t position = matcher_.position();
    if (!recorder_.active() &&
        matcher_.advance(quick, uses, op_count_, /*is_recorded=*/false))
        [[likely]] {
      countOp();
      ticket = {epoch_, kNone, position, 0, true, true};
      lock_.unlock();
      return;
    }
    lock_.unlock();
    observeSlowly(op, uses, token, ticket);
  }
  OpTicket observe(std::uint32_t op, Token token, std::span<const Use> uses) {
    OpTicket ticket;
    observe(
        op, quick_half(token), UseList{uses}, [token] { return token; },
        ticket);
    return ticket;
  }
  // The next of its results has become a block. Not for an op that failed.
  BlockSlot result(OpTicket& ticket, std::uint64_t identity,
                   std::uint64_t bytes, void* owner = nullptr) noexcept {
    lock_.lock();
    const BlockSlot slot = blocks_.add(identity, bytes, owner);
    bindResult(ticket, slot, blocks_[slot]);
    return slot;
  }
  // freed(slot, op_count) and result() in one: the result has the bytes, the
  // owner and the slot of the block that is gone.
  void resultInPlaceOf(BlockSlot slot, std::uint64_t op_count, OpTicket& ticket,
                       std::uint64_t identity) noexcept {
    lock_.lock();
    LiveBlock& block = blocks_[slot];
    if (watching_deaths_) [[unlikely]]
      recordDeath(block, op_count);
    block.identity = identity;
    bindResult(ticket, slot, block);
  }
  // What it took from the arena at most, beside its results.
  void finished(const OpTicket& ticket, std::uint64_t workspace_bytes);
  // While nothing has to move nobody asks which block an operand is: then an op
  // is the expected one by the quick half of its token, but where values begin
  // with it, which are bound as ever.
  void trustOperands(bool trusts) noexcept {
    const Guard guard(lock_);
    matcher_.trustOperands(trusts);
  }
  // A step ends here. From now on only markers end steps (step_markers.h).
  void step();

  ProfilerState state() const;
  // Steps that have ended. Lock-free.
  std::uint64_t steps() const noexcept {
    return steps_.load(std::memory_order_relaxed);
  }
  RunCounts counts() const noexcept;

 private:
  friend class Forecast;
  friend class CycleBuilder;
  using Guard = std::lock_guard<LeafLock>;

  void countOp() noexcept { // REQUIRES the lock, as all below do
    op_count_.store(op_count_.load(std::memory_order_relaxed) + 1,
                    std::memory_order_relaxed);
  }
  // Gives the lock back.
  void bindResult(OpTicket& ticket, BlockSlot slot, LiveBlock& block) noexcept {
    const std::uint16_t output = ticket.outputs++;
    if (ticket.epoch != epoch_ || !ticket.is_on_path ||
        !matcher_.bindNew(ticket.position, output, slot, block)) [[unlikely]] {
      otherResult(ticket, output, slot);
      return;
    }
    lock_.unlock();
  }
  template <typename Uses, std::invocable MakeToken>
  [[gnu::noinline]] void observeSlowly(std::uint32_t op, Uses uses,
                                       MakeToken token, OpTicket& ticket) {
    std::vector<Use> list;
    list.reserve(uses.size());
    for (std::size_t i = 0; i < uses.size(); ++i) list.push_back(uses.use(i));
    ticket = observeWhole(op, token(), list);
  }
  OpTicket observeWhole(std::uint32_t op, Token token,
                        std::span<const Use> uses) noexcept; // takes the lock
  OpTicket ticket(bool expected) const noexcept;
  bool outlives(const PathValue& value) const noexcept;
  bool automatic() const noexcept;
  void observeOther(std::uint32_t op, Token token, std::span<const Use> uses);
  // profiler_variants.cpp
  bool goOnInVariant(std::uint32_t op, Token token, std::span<const Use> uses,
                     bool is_counted = false);
  bool produceInVariant(std::uint32_t position, std::uint32_t output,
                        BlockSlot slot);
  void weighResult(std::uint32_t position, std::uint32_t output,
                   BlockSlot slot) noexcept;
  void weighExternalInputs(std::span<const Use> uses) noexcept;
  bool endVariant();
  std::shared_ptr<const OpPath> lastRound() const;
  void missed(std::uint32_t op, Token token, DivergenceKind kind);
  Divergence& diverged(DivergenceKind kind, std::uint32_t position);
  void startRecording();
  void record(std::uint32_t op, Token token, std::span<const Use> uses);
  void findPlace();
  void continueAt(const ContextMatch& match);
  void closeLoop(const ContextMatch& match);
  OpPath& splitRecording(std::uint32_t position);
  void splitAt(std::uint32_t position, const ContextMatch& match);
  void cutAt(std::uint32_t begin);
  void cutIfCertain();
  void stopGroup() noexcept;
  void leaveGroup();
  OpPath& close(OpPath path);
  void ended(const OpPath& path, std::uint32_t ops);
  void bindNewAgain(const OpPath& recording, std::uint32_t begin,
                    const OpPath& path);
  void endRound();
  void beginRound(std::uint64_t first_op);
  void otherResult(OpTicket& ticket, std::uint32_t output,
                   BlockSlot slot) noexcept; // gives it back
  void leaveAtResult(OpTicket& ticket, std::uint32_t output, BlockSlot slot);
  OpPath* pathAfter() const; // that comes after this one, or null
  bool beginsLonger(Token token) const;
  bool beginsNext(Token token, std::size_t uses);
  void recordDeath(const LiveBlock& block, std::uint64_t op_count) noexcept;

  // Guards everything below; of op_count_ and steps_ only the writers hold it.
  mutable LeafLock lock_;
  std::atomic<std::uint64_t> op_count_{0};
  LiveBlocks blocks_;
  OpHistory history_;
  OpRecorder recorder_{blocks_};
  SequenceMatcher matcher_{blocks_, history_, recorder_};
  mutable StepFinder finder_; // keeps its last answer
  ShapeVariant variant_;
  StepMarkers markers_;

  std::uint32_t epoch_ = 0; // changes with the path or the recording
  bool watching_deaths_ = true;
  std::uint64_t round_begin_ = 0; // opCount() before its first op
  std::uint64_t recording_begin_ = 0;
  // The recording's op where it came to the beginning of the path followed.
  std::uint32_t entered_at_ = kNone;
  std::uint32_t unplaced_ = 0; // ops in a row that fitted nowhere
  PathId previous_path_ = 0;   // of the round before, followed or recorded
  std::uint32_t previous_ops_ = 0;
  // A group of rounds that is being recorded as one path.
  std::vector<PathId> group_;
  std::vector<OpPath::Round> group_rounds_; // that are done

  // The last round that ended, if it was a shape variant; not finished.
  std::optional<OpPath> last_variant_;

  std::atomic<std::uint64_t> steps_{0};
  std::uint64_t misses_ = 0;
  std::uint64_t divergences_ = 0;
  Divergence last_divergence_;
};

} // namespace chameleon::profiler
