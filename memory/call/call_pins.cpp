#include "memory/call/call_pins.h"

#include <array>
#include <optional>
#include <utility>

#include "backend/runtime/check.h"
#include "memory/block_table.h"
#include "memory/call/begin_attempt.h"
#include "memory/call/call_memory.h"
#include "memory/call/kernel_room.h"
#include "memory/call/overwrites.h"
#include "memory/figures/meter.h"
#include "memory/invariants.h"
#include "memory/mirror/mirror.h"
#include "memory/plan_runner.h"
#include "memory/recompute/recomputer.h"
#include "memory/residency.h"
#include "memory/stress_hooks.h"

namespace chameleon::memory {

using runtime::ByteRange;
using runtime::Error;

constinit thread_local int CallState::of_thread = 0;

namespace {

// So much of the budget, released and not yet freed, is a reason for a call to
// take the lock.
constexpr std::size_t kReleasedShare = 16;
// Smaller ops and copies take so little time that waiting for one more does not
// matter; an event costs some time of the host.
constexpr std::size_t kMarkedBytes = std::size_t{1} << 20;

// By Access.
constexpr std::array<std::uint32_t, 4> kUseFlags{
    0, profiler::Operand::kReads,
    profiler::Operand::kReads | profiler::Operand::kWrites,
    profiler::Operand::kWrites | profiler::Operand::kOverwrites};

// Operands as the profiler asks for them.
struct UsesOf {
  std::span<const Operand> operands;
  std::size_t size() const noexcept { return operands.size(); }
  std::uint64_t identity(std::size_t i) const noexcept {
    return operands[i].block->identity.load(std::memory_order_relaxed);
  }
  profiler::Use use(std::size_t i) const noexcept {
    const auto [block, access] = operands[i];
    return {identity(i), block->profiler_slot.load(std::memory_order_relaxed),
            kUseFlags[static_cast<std::size_t>(access)]};
  }
};

} // namespace

// ---- what an op call runs through, inline: half of what a small function
// costs is its call

// Bytes that are no longer committed: it was the block's last pin.
inline std::size_t CallPins::unpin(Block& block) noexcept {
  const std::size_t size = block.rounded_bytes; // gone after the unpin
  const std::uint64_t old = block.word.fetch_sub(1, std::memory_order_acq_rel);
  return Block::pinsOf(old) == 1 ? size : 0;
}

// Shows the op to the profiler, and does what the policy wants before it.
[[gnu::always_inline]] inline Error CallPins::observe(
    CallState& call, const OpRequest& request) {
  call.observed = request.identity != nullptr;
  if (call.observed) {
    const OpIdentity& identity = *request.identity;
    profiler::Durations& durations = parts_.meter.durations();
    if (durations.shouldLook() && durations.shouldSample(identity.whole()))
        [[unlikely]] {
      parts_.meter.startTiming(call, request);
    }
    core_.profiler.observe(
        identity.name, identity.quick, UsesOf{request.operands},
        [&] { return identity.whole(); }, call.ticket);
    if (parts_.meter.sawStepEnd()) [[unlikely]] {
      if (Error error = parts_.meter.stepEnded(call)) return error;
    }
    if (parts_.plans.due(call.ticket)) {
      call.wants_record = parts_.plans.fulfil(call);
    }
  } else if (request.rerun) {
    call.rerun = true;
    core_.counters.ops_base.fetch_add(1, std::memory_order_relaxed); // no op
    if (parts_.meter.recordsTimeline()) {
      parts_.meter.startRerunTiming(call, request);
    }
  }
  return {};
}

// Pins without the lock: all operands are Resident, none needs its host copy
// dropped, all fits beside the other calls, and nobody waits.
[[gnu::always_inline]] inline bool CallPins::beginFast(
    CallState& call, const std::span<const Operand>& operands, Fence& waits) {
  // Released blocks lie where they are until somebody needs the lock anyway;
  // a lot of them is a reason to take it.
  if (core_.admission.closed() ||
      parts_.table.releasedBytes() >
          core_.admission.budgetBytes() / kReleasedShare) {
    return false;
  }
  std::size_t bytes = 0;
  for (const Operand& operand : operands) {
    bytes += operand.block->rounded_bytes;
  }
  // What it needs may be much more than is guessed: see roomForUnseen().
  if (call.must_not_fail && !KernelRoom::hasSeen(call.memory, bytes))
      [[unlikely]]
    return false;
  const std::size_t room = KernelRoom::roomExpected(call.memory, bytes);
  if (parts_.kernel_room.isLarge(call, bytes, room)) [[unlikely]]
    return false;
  std::optional<std::size_t> splits;
  if (call.must_not_fail) {
    splits = operands.size() + parts_.memory.fixedExtents();
  }
  const Admission::Entry entry = core_.admission.enter(bytes, room, splits);
  if (!entry.admitted) return false;

  Operand* const pins = call.pins.resize(operands.size());
  std::size_t shared_bytes = 0; // committed already, by earlier pins
  std::size_t pinned = 0;
  bool good = true;
  for (; good && pinned < operands.size(); ++pinned) {
    const Operand& operand = operands[pinned];
    Block& block = *operand.block;
    std::uint64_t word = block.word.load(std::memory_order_relaxed);
    do {
      // mutant: unlocked-host-copy
      good = Block::stateOf(word) == BlockState::kResident &&
             (operand.access == Access::kRead ||
              (word & (Block::kHostCopyBit | Block::kKeptBits)) == 0);
    } while (good && !block.word.compare_exchange_weak(
                         word, word + 1, std::memory_order_acquire,
                         std::memory_order_relaxed));
    if (!good) break;
    pins[pinned] = operand;
    if (Block::pinsOf(word) > 0) shared_bytes += block.rounded_bytes;
    block.last_use_tick.store(call.tick, std::memory_order_relaxed);
    const Position written{block.last_write.load(std::memory_order_acquire)};
    // mutant: unlocked-wait
    if (!core_.uses().inOrder(written, call.stream))
      core_.uses().addTo(waits, written);
  }
  if (good) {
    if (shared_bytes != 0) {
      core_.admission.subtract(0, shared_bytes);
      core_.admission.wake();
    }
    call.operand_bytes = bytes;
    call.room_bytes = entry.room_bytes;
    call.exclusive = entry.exclusive;
    call.hole.due_bytes =
        entry.exclusive ? parts_.kernel_room.holeExpected(call) : 0;
    call.spares.left = entry.exclusive ? entry.more_splits : SIZE_MAX;
    return true;
  }

  backOut(operands, pinned, entry, shared_bytes);
  call.pins.clear();
  waits.clear();
  return false;
}

// What the call had committed is given back: `freed` bytes of its pins too.
[[gnu::always_inline]] inline void CallPins::retire(
    CallState& call, std::size_t freed) noexcept {
  if (call.keeps_pins) {
    parts_.memory.removeFixed(call.pins.size());
  }
  call.pins.clear();
  if (!call.hole.reserved.empty()) {
    const PagerLock locked(core_);
    parts_.memory.freeHole(locked, call);
  }
  if (call.must_not_fail) call.hole.layout.clear();
  core_.admission.subtract(call.keeps_pins ? 0 : 1, freed + call.room_bytes,
                           call.exclusive);
  if (!call.keeps_pins) {
    --*call.depth;
  } else if (call.ends_by_itself) {
    core_.admission.removeOutstanding(); // before wake()
  }
  core_.admission.wake();
  // As a new one, but for what it remembers of failures.
  call.active = false;
  call.exclusive = false;
  call.keeps_pins = false;
  call.ends_by_itself = false;
  call.chooses = false;
  call.has_all = false;
  call.hole.due_bytes = 0;
  call.room_bytes = 0;
  call.adopted_bytes = 0;
  call.peak_bytes = 0;
}

// ---- the way in -----------------------------------------------------------

Error CallPins::begin(CallState& call, const OpRequest& request) {
  CHAMELEON_CHECK(!call.active, "begin() of a call that has not ended");
  const std::span<const Operand>& operands = request.operands;
  call.stream = core_.streams.indexOf(request.stream);
  call.failed = false;
  call.tick = core_.ticks.fetch_add(1, std::memory_order_relaxed) + 1;
  call.op = request.kind.name;
  call.memory = request.kind.memory;
  if (call.failures == 0) { // a retry is the op that was seen already
    if (Error error = observe(call, request)) return error;
  }

  Fence waits;
  // A second failure is one too many, and a third attempt runs exclusively.
  call.must_not_fail = !request.kind.may_retry || call.failures > 0;
  call.can_be_held_back = request.can_be_held_back;
  bool needs_lock = call.failures > 0 || request.can_be_held_back;
  if (request.algorithm != Algorithm::kAny) [[unlikely]] {
    call.must_not_fail = true;
    call.chooses = request.algorithm == Algorithm::kToBeChosen;
    needs_lock = needs_lock || call.chooses;
  }
  call.hole.quick = request.identity != nullptr ? request.identity->quick
                    : request.rerun             ? Recomputer::quick_of_rerun
                                                : 0;
  if (needs_lock || !beginFast(call, operands, waits)) {
    if (Error error = beginSlow(call, operands, waits)) {
      return error;
    }
    call.pins.assign(operands);
  }
  if (call.wants_record) call.token = request.identity->whole();
  call.active = true;
  call.depth = &CallState::of_thread;
  ++*call.depth;
  if (!waits.empty()) {
    std::optional<ExchangeSpan> measured;
    parts_.meter.beginWait(call, waits, measured);
    // Outside the lock: where compute runs inline, this blocks the thread.
    if (Error error = core_.waitFor(call.stream, waits)) {
      release(call); // no work was submitted: nothing to stamp
      return core_.named(call, std::move(error));
    }
  }
  if (core_.watched.load(std::memory_order_relaxed)) [[unlikely]] {
    lookAtBegin(call);
  }
  if (call.timing != nullptr) [[unlikely]] {
    parts_.meter.beginTiming(call);
  }
  return {};
}

// beginFast() could not pin them all, but the first `pinned`.
void CallPins::backOut(std::span<const Operand> operands, std::size_t pinned,
                       const Admission::Entry& entry,
                       std::size_t shared_bytes) noexcept {
  std::size_t freed = entry.room_bytes + shared_bytes;
  for (std::size_t i = 0; i < operands.size(); ++i) {
    Block& block = *operands[i].block;
    // mutant: failed-pins
    freed += i < pinned ? unpin(block) : block.rounded_bytes;
  }
  core_.admission.subtract(1, freed, entry.exclusive);
  core_.admission.wake();
}

Error CallPins::beginSlow(CallState& call, std::span<const Operand> operands,
                          Fence& waits) {
  for (bool first = true;; first = false) {
    Record* dropped = nullptr;
    {
      PagerLock locked(core_);
      if (first) {
        parts_.stress.apply(locked, call);
        parts_.recomputer.noteHostUse(locked);
        if (parts_.recomputer.recordsAll(locked) && !call.rerun) {
          call.wants_record = call.observed;
        }
      }
      BeginAttempt attempt(parts_, call, operands, waits, wanted_);
      const bool served = core_.admission.serve(
          locked.base(), attempt.exclusive(), CallState::of_thread == 0,
          [&](bool alone) REQUIRES(pager_lock) {
            parts_.table.drainReleased(locked);
            dropped = parts_.recomputer.missing(locked, operands);
            if (dropped != nullptr) return Admission::Attempt::kFailed;
            return attempt.run(locked, alone);
          });
      if (served) return {};
      if (dropped == nullptr) return attempt.error(locked);
    }
    if (Error error = parts_.recomputer.restore(*dropped, operands, call.op)) {
      return error;
    }
  }
}

// ---- the way out ----------------------------------------------------------

void CallPins::end(CallState& call) noexcept {
  CHAMELEON_CHECK(call.active, "end() of a call that did not begin");
  const bool watched = core_.watched.load(std::memory_order_relaxed);
  if (watched && core_.runtime.checksCallers()) [[unlikely]] {
    report(call);
  }
  if (call.timing != nullptr) [[unlikely]] {
    parts_.meter.endTiming(call);
  }
  std::size_t freed = call.adopted_bytes;
  if (!call.old_bytes.empty()) [[unlikely]] {
    freed += parts_.overwrites.settleOldBytes(call);
  }
  const Position position = core_.streams.advance(call.stream);
  // While anything was ever swapped: who gets the operands' room, and the
  // copies of them, wait for this op and for none behind it.
  if (core_.used_bytes.host.load(std::memory_order_relaxed) != 0 &&
      call.operand_bytes + call.adopted_bytes >= kMarkedBytes) {
    core_.streams.mark(call.stream);
  }
  parts_.kernel_room.learn(call);
  if (call.observed && call.ticket.recorded != profiler::kNone) {
    core_.profiler.finished(call.ticket, call.peak_bytes - call.adopted_bytes);
  }
  if (call.in_call.listed || !call.spares.blocks.empty())
    parts_.memory.makeForeign(call, position);
  for (const auto [block, access] : call.pins) {
    core_.uses().stamp(*block, position);
    if (writes(access)) {
      block->last_write.store(position.word, std::memory_order_release);
      block->version.fetch_add(1, std::memory_order_relaxed);
    }
    freed += unpin(*block);
  }
  for (Block* const adopted : call.adopted) {
    // Nobody else has pinned or used it since: its tensor is not out yet.
    Block& block = *adopted;
    block.last_use[0].store(position.word, std::memory_order_relaxed);
    for (std::size_t use = 1; use < Block::kUseSlots; ++use) {
      block.last_use[use].store(0, std::memory_order_relaxed);
    }
    block.last_write.store(position.word, std::memory_order_relaxed);
    block.become(Block::stateBits(BlockState::kResident));
  }
  call.adopted.clear();
  retire(call, freed);
  if (watched && parts_.walker.isOn()) [[unlikely]] {
    parts_.walker.checkNow();
  }
}

void CallPins::release(CallState& call) noexcept {
  std::size_t freed = parts_.overwrites.settleOldBytes(call);
  // mutant: leaving-pins
  for (const Operand& operand : call.pins) freed += unpin(*operand.block);
  retire(call, freed);
}

void CallPins::keepPins(CallState& call) noexcept {
  CHAMELEON_CHECK(call.active && !call.keeps_pins && !call.in_call.listed &&
                      call.spares.blocks.empty(),
                  "keepPins() of a call that does not run or has allocated");
  call.keeps_pins = true;
  --*call.depth;
  call.hole.due_bytes = 0;
  if (!call.hole.reserved.empty()) {
    const PagerLock locked(core_);
    parts_.memory.freeHole(locked, call);
  }
  parts_.memory.addFixed(call.pins.size());
  core_.admission.subtract(1, call.room_bytes, call.exclusive);
  call.exclusive = false;
  call.room_bytes = 0;
  call.spares.left = 0;
  core_.admission.wake();
}

void CallPins::endsByItself(CallState& call) noexcept {
  CHAMELEON_CHECK(call.keeps_pins && !call.ends_by_itself,
                  "endsByItself() of a call without kept pins");
  call.ends_by_itself = true;
  core_.admission.addOutstanding();
}

// ---- who looks at each call -----------------------------------------------

void CallPins::lookAtBegin(const CallState& call) {
  const bool checked = core_.runtime.checksCallers();
  for (const auto [block, access] : call.pins) {
    core_.note(Decision::kPin, *block, block->bytes);
    if (checked && writes(access)) {
      core_.runtime.revived({block->device_address, block->bytes});
    }
  }
  if (parts_.walker.isOn()) parts_.walker.checkOperands(call);
  if (core_.runtime.modelsTime()) parts_.mirror.advance(call.stream);
}

void CallPins::report(CallState& call) noexcept {
  std::vector<ByteRange> reads;
  std::vector<ByteRange> writes;
  for (const Operand& operand : call.pins) {
    const Block& block = *operand.block;
    (memory::writes(operand.access) ? writes : reads)
        .push_back({block.device_address, block.bytes});
  }
  for (const Block* block : call.spares.blocks) {
    writes.push_back({block->device_address, block->rounded_bytes});
  }
  for (const Block* block : call.adopted) {
    writes.push_back({block->device_address, block->bytes});
  }
  // Until it is said: else another thread may free what the kernel wrote.
  const PagerLock locked(core_);
  for (const Extent* extent : call.in_call.extents) {
    writes.push_back({core_.arena->address(*extent), extent->bytes});
  }
  core_.runtime.submitted(core_.streams.stream(call.stream), reads, writes);
}

} // namespace chameleon::memory
