// Op calls, the way in: with the lock and without it.
#include <algorithm>
#include <tuple>

#include "backend/runtime/check.h"
#include "memory/pager_hot.h"
#include "memory/phase_range.h"

namespace chameleon::memory {

using runtime::Error;

WaitHooks PagerImpl::wait_hooks;
constinit thread_local int PagerImpl::calls_of_thread = 0;
constinit thread_local profiler::QuickToken PagerImpl::quick_of_rerun = 0;

Error PagerImpl::begin(Call& call, const OpRequest& request) {
  CHAMELEON_CHECK(!call.active_, "begin() of a call that has not ended");
  const std::span<const Operand>& operands = request.operands;
  call.stream_ = timelines_.indexOf(request.stream);
  call.failed_ = false;
  call.tick_ = ticks_.fetch_add(1, std::memory_order_relaxed) + 1;
  call.op_ = request.kind.name;
  call.memory_ = request.kind.memory;
  if (call.failures_ == 0) { // a retry is the op that was seen already
    call.observed_ = request.identity != nullptr;
    if (call.observed_) {
      if (durations_.shouldLook() &&
          durations_.shouldSample(request.identity->whole())) [[unlikely]] {
        startTiming(call, request.stream, *request.identity);
      }
      if (observe(call, *request.identity, operands)) [[unlikely]] {
        if (Error error = stepEnded(call)) return error;
      }
      if (gate_.due(call.ticket_)) call.recording_ = fulfil(call);
    } else if (request.rerun) {
      call.rerun_ = true;
      counters_.ops_base.fetch_add(1, std::memory_order_relaxed); // no op
      if (timeline_.recording()) startRerunTiming(call, request);
    }
  }

  Fence waits;
  // A second failure is one too many, and a third attempt runs exclusively.
  bool must_not_fail = !request.kind.may_retry || call.failures_ > 0;
  bool needs_lock = call.failures_ > 0;
  if (request.algorithm != Algorithm::kAny) [[unlikely]] {
    must_not_fail = true;
    call.chooses_ = request.algorithm == Algorithm::kToBeChosen;
    needs_lock = needs_lock || call.chooses_;
  }
  call.must_not_fail_ = must_not_fail;
  call.quick_ = request.identity != nullptr ? request.identity->quick
                : request.rerun             ? quick_of_rerun
                                            : 0;
  if (needs_lock || !beginFast(call, operands, must_not_fail, waits)) {
    if (Error error = beginSlow(call, operands, must_not_fail, waits)) {
      return error;
    }
    call.pins_.assign(operands);
  }
  if (call.recording_) call.token_ = request.identity->whole();
  call.active_ = true;
  call.depth_ = &calls_of_thread;
  ++*call.depth_;
  if (!waits.empty()) {
    // Outside the lock: where compute runs inline, this blocks the thread.
    if (Error error = waitFor(call.stream_, waits)) {
      leave(call); // no work was submitted: nothing to stamp
      return named(call, std::move(error));
    }
  }
  if (decisions_.on()) [[unlikely]] {
    for (const Operand& operand : operands) {
      note(Decision::kPin, *operand.block, operand.block->bytes);
    }
  }
  if (checks_callers_) [[unlikely]] {
    reviveWritten(operands);
  }
  if (check_every_.load(std::memory_order_relaxed) != 0) [[unlikely]] {
    checkOperands(call);
  }
  if (call.timing_ != nullptr) [[unlikely]] {
    beginTiming(call);
  }
  return {};
}

// Of an op that never ended well: at least as much as its operands have. Where
// these are larger than any seen so far: in proportion.
std::size_t PagerImpl::roomGuessed(const OpMemory& memory, std::size_t bytes) {
  const bool known = memory.known.load(std::memory_order_acquire);
  const std::size_t seen = memory.operand_bytes.load(std::memory_order_relaxed);
  std::size_t peak = memory.peak_bytes.load(std::memory_order_relaxed);
  if (bytes > seen && seen > 0) {
    peak = static_cast<std::size_t>(static_cast<double>(peak) *
                                    static_cast<double>(bytes) /
                                    static_cast<double>(seen));
  }
  return ExtentMap::round(known ? peak : std::max(peak, bytes));
}

// beginFast() could not pin them all, but the first `pinned`.
void PagerImpl::backOut(std::span<const Operand> operands, std::size_t pinned,
                        const Admission::Entry& entry,
                        std::size_t shared_bytes) noexcept {
  std::size_t freed = entry.room_bytes + shared_bytes;
  for (std::size_t i = 0; i < operands.size(); ++i) {
    Block& block = *operands[i].block;
    freed += i < pinned ? unpin(block) : block.rounded_bytes;
  }
  admission_.subtract(1, freed, entry.exclusive);
  admission_.wake();
}

Error PagerImpl::beginSlow(Call& call, std::span<const Operand> operands,
                           bool must_not_fail, Fence& waits) {
  Shortage shortage;
  std::size_t needed_bytes = 0;
  for (bool first = true;; first = false) {
    Record* dropped = nullptr;
    {
      Lock lock(*this);
      if (first) {
        applyDropStress(call);
        applyStress();
        noteHostUse();
        if (host_short_ && !call.rerun_) call.recording_ = call.observed_;
      }
      // A thread that is inside a call is never alone.
      const bool exclusive =
          (call.chooses_ || call.failures_ >= Call::kMaxRetries) &&
          calls_of_thread == 0;
      const bool served = serve(lock, exclusive, [&](bool alone) {
        drainReleased();
        shortage = {};
        dropped = missing(operands);
        if (dropped != nullptr) return Attempt::kFailed;
        return tryBegin(call, operands, must_not_fail, exclusive, alone, waits,
                        shortage);
      });
      if (served) return {};
      if (dropped == nullptr) {
        for (const Wanted& wanted : wanted_) {
          needed_bytes += wanted.block->rounded_bytes;
        }
        break;
      }
    }
    if (Error error = restore(*dropped, operands, call.op_)) return error;
  }
  return outOfMemory(call, needed_bytes, spans_.find(call.quick_), shortage);
}

// One try to pin everything, under the lock from start to end.
PagerImpl::Attempt PagerImpl::tryBegin(Call& call,
                                       std::span<const Operand> operands,
                                       bool must_not_fail, bool exclusive,
                                       bool alone, Fence& waits,
                                       Shortage& shortage) {
  std::size_t total_bytes = 0;
  if (!gather(operands, total_bytes)) return Attempt::kLater;
  admission_.add(1, total_bytes);
  call.operand_bytes_ = total_bytes;
  pinResident();
  if (refuseLost(shortage)) {
    undo(call);
    return Attempt::kFailed;
  }
  bool others = false; // were in flight; perhaps they only came to the gate
  bool again = false;
  if (!takeRoom(call, must_not_fail, total_bytes, others)) {
    again = others;
  } else if (placeMissing(call, shortage) &&
             makeRoomForKernel(call, must_not_fail, alone, shortage)) {
    if (exclusive && !call.exclusive_) {
      call.exclusive_ = admission_.makeExclusive();
    }
    again = exclusive && !call.exclusive_;
    if (!again && fetchMissing(shortage)) {
      commit(call, waits);
      return Attempt::kDone;
    }
  }
  undo(call);
  if (shortage.failure) return Attempt::kFailed;
  return again ? Attempt::kAgain : Attempt::kLater;
}

// Lists the distinct operands and claims them. False: a host thread is at the
// host copy of one that would have to go; it will not take long.
bool PagerImpl::gather(std::span<const Operand> operands,
                       std::size_t& total_bytes) {
  wanted_.clear();
  bool good = true;
  for (const Operand& operand : operands) {
    Block& block = *operand.block;
    const bool write = writes(operand.access);
    const bool overwrite = operand.access == Access::kOverwrite;
    if (block.host_writing || (write && block.host_pins > 0)) good = false;
    if (block.claims++ == 0) {
      wanted_.push_back({&block, write, block.state() != BlockState::kResident,
                         overwrite, nullptr});
      total_bytes += block.rounded_bytes;
    } else if (write || !overwrite) {
      Wanted& wanted = *std::find_if(
          wanted_.begin(), wanted_.end(),
          [&](const Wanted& each) { return each.block == &block; });
      wanted.write = wanted.write || write;
      wanted.overwrite = wanted.overwrite && overwrite;
    }
  }
  if (good) return true;
  for (const Wanted& wanted : wanted_) wanted.block->claims = 0;
  return false;
}

// Pins what is Resident, so that it is no victim of what follows.
void PagerImpl::pinResident() {
  std::size_t shared_bytes = 0;
  for (const Wanted& wanted : wanted_) {
    if (wanted.missing) continue;
    Block& block = *wanted.block;
    const std::uint64_t old =
        block.word.fetch_add(block.claims, std::memory_order_acq_rel);
    if (Block::pinsOf(old) > 0) shared_bytes += block.rounded_bytes;
  }
  admission_.subtract(0, shared_bytes);
}

bool PagerImpl::takeRoom(Call& call, bool must_not_fail, std::size_t bytes,
                         bool& others) {
  const bool guess = call.memory_ != nullptr &&
                     !call.memory_->known.load(std::memory_order_acquire);
  std::size_t room = 0;
  // A guess may be cut where a failure does no harm, and any wish of a call
  // that would wait in vain, alone or inside another call: what was learned
  // may belong to other shapes.
  const bool partly = (guess && !must_not_fail) || calls_of_thread > 0;
  const bool done =
      admission_.addRoom(roomWished(call.memory_, bytes), partly, room, others);
  call.room_bytes_ = room;
  // One hole is made for what must not fail; a spare block could lie in it.
  call.spares_left_ = must_not_fail ? 0 : SIZE_MAX;
  return done;
}

bool PagerImpl::placeMissing(Call& call, Shortage& shortage) {
  std::size_t missing_bytes = 0;
  for (const Wanted& wanted : wanted_) {
    if (wanted.missing) missing_bytes += wanted.block->rounded_bytes;
  }
  if (missing_bytes == 0) return true;
  while (arena_->freeBytes() < missing_bytes) {
    const std::size_t free_bytes = arena_->freeBytes();
    if (!evictNext(shortage, missing_bytes - free_bytes)) return false;
  }
  // The largest first: they have the fewest holes to choose from.
  // Equal ones by address, so that a run repeats.
  std::sort(
      wanted_.begin(), wanted_.end(), [](const Wanted& a, const Wanted& b) {
        return std::tie(b.block->rounded_bytes, a.block->logical_address) <
               std::tie(a.block->rounded_bytes, b.block->logical_address);
      });
  for (Wanted& wanted : wanted_) {
    if (!wanted.missing) continue;
    const StreamIndex writer = wanted.fetched() ? kCopyIn : call.stream_;
    wanted.extent = place(wanted.block->rounded_bytes, End::kBottom,
                          ExtentUse::kBlock, writer, shortage);
    if (wanted.extent == nullptr) return false;
    wanted.extent->block = wanted.block;
  }
  return true;
}

void PagerImpl::commit(Call& call, Fence& waits) {
  for (Wanted& wanted : wanted_) {
    Block& block = *wanted.block;
    block.last_use_tick.store(call.tick_, std::memory_order_relaxed);
    if (wanted.missing) {
      if (wanted.overwrite && block.host != nullptr) {
        setOldBytesAside(call, block);
      }
      block.lost = false;
      const bool fetched = block.host != nullptr;
      block.device = wanted.extent;
      block.device_address = arena_->address(*wanted.extent);
      block.become(Block::stateBits(BlockState::kResident) |
                   (fetched ? Block::kHostCopyBit : 0) | block.claims);
      if (fetched) {
        linkCopy(block);
        note(Decision::kFault, block, block.bytes);
        counters_.faults.fetch_add(1, std::memory_order_relaxed);
      }
      policy_->entered(block);
    }
    if (wanted.write && block.host != nullptr) {
      dropHostCopy(block);
    }
    if (wanted.write) recreation_.written(block, call.recording_);
    countPrefetch(block);
    const Position written{block.last_write.load(std::memory_order_acquire)};
    if (!inOrder(written, call.stream_)) addTo(waits, written);
    block.claims = 0;
  }
  freeUnheld();
}

void PagerImpl::undo(Call& call) noexcept {
  std::size_t freed = call.room_bytes_;
  call.room_bytes_ = 0;
  freeHole(call);
  for (Wanted& wanted : wanted_) {
    Block& block = *wanted.block;
    if (wanted.missing) {
      freed += block.rounded_bytes;
      if (wanted.extent != nullptr) {
        wanted.extent->block = nullptr;
        arena_->free(wanted.extent, {});
      }
    } else {
      const std::uint64_t old =
          block.word.fetch_sub(block.claims, std::memory_order_acq_rel);
      if (Block::pinsOf(old) == block.claims) freed += block.rounded_bytes;
    }
    block.claims = 0;
  }
  admission_.subtract(1, freed, call.exclusive_);
  call.exclusive_ = false;
  call.has_all_ = false;
  call.hole_due_ = false;
  admission_.wakeLocked();
}

void PagerImpl::reviveWritten(std::span<const Operand> operands) noexcept {
  for (const Operand& operand : operands) {
    if (!writes(operand.access)) continue;
    const Block& block = *operand.block;
    runtime_.revived({block.device_address, block.bytes});
  }
}

Error PagerImpl::waitFor(StreamIndex stream, const Fence& fence) {
  if (timelines_.passed(fence)) return {};
  const PhaseRange range("wait for bytes");
  const std::int64_t start_ns = runtime_.now_ns();
  Error error = timelines_.wait(stream, fence);
  counters_.stall_ns.fetch_add(runtime_.now_ns() - start_ns,
                               std::memory_order_relaxed);
  return error;
}

} // namespace chameleon::memory
