// The profiler's entry point: sees every op, knows where in the recorded
// history the run is, and says what comes next. One per device index; never
// allocates device memory, never waits, and is never needed for correctness.
// What happens where an op is not the expected one is the matter of its parts,
// which it wires: Rounds, Rejoiner, VariantRounds, DivergenceLog.
//
// How it is driven (memory/call and memory/block_table), per op call:
//
//   observe(op, quick, uses, token, ticket)     before operands are pinned
//   ... the kernel ...
//   slot = result(ticket, identity, bytes, ..)  per result, in their order
//   finished(ticket, workspace_bytes)           where that is measured
//   freed(slot, died_at)                        when a released block is
//   drained resultInPlaceOf(slot, died_at, ticket, ..)  both, where a result
//   takes over
//                                               the slot of a block that died
//
// born() and result() give a slot that the owner keeps beside the block;
// freed() takes it back. `died_at` is opCount() as release() read it: one load
// at the moment the tensor died, so that the recorded death does not depend on
// when the queue of released blocks happens to be drained.
//
// Ops that begin inside another op's call (allocations, nested calls) are not
// observed. A chunk of a list op is an op.
//
// Thread safety: every method, any thread. One LeafLock guards everything: a
// thread holds it for some hundred instructions per op, and for as long as
// copying a recording takes (under a millisecond for 10,000 ops) when the
// run leaves or completes a sequence. Under it only `gone` is called, which
// must be short and take no lock. If several threads run ops at once their ops
// interleave: sequences then rarely repeat, and forecasts fail; nothing else
// does. Autograd's thread and the main thread take turns, and make one
// sequence.
//
// Lock order: callers may hold the pager's mutex; the profiler takes no lock
// of anybody else.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "profiler/divergence_log.h"
#include "profiler/profiler_core.h"
#include "profiler/profiler_state.h"
#include "profiler/rejoiner.h"
#include "profiler/rounds.h"
#include "profiler/token.h"
#include "profiler/variant_rounds.h"

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
    const Guard guard(core_.lock);
    return core_.blocks.add(identity, bytes, owner);
  }
  // Ops observed so far. Lock-free.
  std::uint64_t opCount() const noexcept { return core_.opCount(); }
  // The block is gone since `died_at`. The slot is free afterwards.
  void freed(BlockSlot slot, std::uint64_t died_at) noexcept {
    core_.lock.lock();
    if (rounds_.watchesDeaths()) [[unlikely]]
      rounds_.recordDeath(core_.blocks[slot], died_at);
    core_.blocks.remove(slot);
    core_.lock.unlock();
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
  // identity(i) and use(i), which cost little. `token()` is called outside
  // the lock, and only if the op is not the expected one or the round is being
  // recorded; `quick` is the quick half of what it returns.
  template <typename Uses, std::invocable MakeToken>
  [[gnu::always_inline]] void observe(std::uint32_t op, QuickToken quick,
                                      Uses uses, MakeToken token,
                                      OpTicket& ticket) {
    core_.lock.lock();
    const std::uint32_t position = core_.matcher.position();
    if (!core_.recorder.active() &&
        core_.matcher.advance(quick, uses, core_.op_count,
                              /*is_recorded=*/false)) [[likely]] {
      core_.countOp();
      ticket = {core_.epoch, kNone, position, 0, true, true};
      core_.lock.unlock();
      return;
    }
    core_.lock.unlock();
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
    core_.lock.lock();
    const BlockSlot slot = core_.blocks.add(identity, bytes, owner);
    bindResult(ticket, slot, core_.blocks[slot]);
    return slot;
  }
  // freed(slot, died_at) and result() in one: the result has the bytes, the
  // owner and the slot of the block that is gone.
  void resultInPlaceOf(BlockSlot slot, std::uint64_t died_at, OpTicket& ticket,
                       std::uint64_t identity) noexcept {
    core_.lock.lock();
    LiveBlock& block = core_.blocks[slot];
    if (rounds_.watchesDeaths()) [[unlikely]]
      rounds_.recordDeath(block, died_at);
    block.identity = identity;
    bindResult(ticket, slot, block);
  }
  // What it took from the arena at most, beside its results.
  void finished(const OpTicket& ticket, std::uint64_t workspace_bytes);
  // While nothing has to move nobody asks which block an operand is: then an op
  // is the expected one by the quick half of its token, but where values begin
  // with it, which are bound as ever.
  void trustOperands(bool trusts) noexcept {
    const Guard guard(core_.lock);
    core_.matcher.trustOperands(trusts);
  }
  // A step ends here. From now on only markers end steps (step_markers.h).
  void step();

  ProfilerState state() const;
  // Steps that have ended. Lock-free.
  std::uint64_t steps() const noexcept { return core_.stepCount(); }
  RunCounts counts() const noexcept;

  // For those who answer questions (Forecast, CycleBuilder): what there is,
  // with its lock.
  const ProfilerCore& core() const noexcept { return core_; }
  const Rounds& rounds() const noexcept { return rounds_; }

 private:
  using Guard = ProfilerCore::Guard;

  // REQUIRES the lock, as all below do where nothing else is said. Gives it
  // back.
  void bindResult(OpTicket& ticket, BlockSlot slot, LiveBlock& block) noexcept {
    const std::uint16_t output = ticket.outputs++;
    if (ticket.epoch != core_.epoch || !ticket.is_on_path ||
        !core_.matcher.bindNew(ticket.position, output, slot, block))
        [[unlikely]] {
      otherResult(ticket, output, slot);
      return;
    }
    core_.lock.unlock();
  }
  // Without the lock.
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
  void observeOther(std::uint32_t op, Token token, std::span<const Use> uses);
  OpTicket ticket(bool expected) const noexcept;
  void otherResult(OpTicket& ticket, std::uint32_t output,
                   BlockSlot slot) noexcept; // gives it back
  void leaveAtResult(OpTicket& ticket, std::uint32_t output, BlockSlot slot);
  void recordFromResult(OpTicket& ticket, std::uint32_t position,
                        std::uint32_t output);

  ProfilerCore core_;
  DivergenceLog divergences_{core_};
  Rounds rounds_{core_, divergences_};
  Rejoiner rejoiner_{core_, rounds_};
  VariantRounds variants_{core_, divergences_, rounds_, rejoiner_};
};

} // namespace chameleon::profiler
