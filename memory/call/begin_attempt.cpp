#include "memory/call/begin_attempt.h"

#include <algorithm>
#include <tuple>

#include "memory/block_table.h"
#include "memory/call/call_memory.h"
#include "memory/call/kernel_room.h"
#include "memory/call/overwrites.h"
#include "memory/mirror/mirror.h"
#include "memory/residency.h"
#include "memory/room/out_of_memory.h"
#include "memory/room/room_finder.h"

namespace chameleon::memory {

using runtime::Error;

BeginAttempt::BeginAttempt(const CallParts& parts, CallState& call,
                           std::span<const Operand> operands, Fence& waits,
                           std::vector<WantedBlock>& scratch)
    : parts_(parts),
      core_(parts.core),
      call_(call),
      operands_(operands),
      waits_(waits),
      wanted_(scratch),
      // A thread that is inside a call is never alone.
      exclusive_((call.chooses || call.failures >= CallState::kMaxRetries) &&
                 CallState::of_thread == 0) {}

Admission::Attempt BeginAttempt::run(const Locked& locked, bool alone) {
  using enum Admission::Attempt;
  std::size_t total_bytes = 0;
  shortage_ = {};
  if (!gather(total_bytes)) return kLater;
  core_.admission.add(1, total_bytes);
  call_.operand_bytes = total_bytes;
  pinResident();
  if (refuseLost()) {
    undo(locked);
    return kFailed;
  }
  bool others = false; // were in flight; perhaps they only came to the gate
  bool again = false;
  if (!takeRoom(others)) {
    again = others;
  } else if (isRoomEnough() && placeMissing(locked) &&
             parts_.kernel_room.makeRoomForKernel(locked, call_, alone,
                                                  shortage_)) {
    if (exclusive_ && !call_.exclusive) {
      call_.exclusive = core_.admission.makeExclusive();
    }
    again = exclusive_ && !call_.exclusive;
    if (!again && parts_.residency.fetch(locked, wanted_, shortage_)) {
      commit(locked);
      return kDone;
    }
  }
  undo(locked);
  if (shortage_.failure) return kFailed;
  return again ? kAgain : kLater;
}

// Lists the distinct operands and claims them. False: a host thread is at the
// host copy of one that would have to go; it will not take long.
bool BeginAttempt::gather(std::size_t& total_bytes) {
  wanted_.clear();
  bool good = true;
  for (const Operand& operand : operands_) {
    Block& block = *operand.block;
    const bool write = writes(operand.access);
    const bool overwrite = operand.access == Access::kOverwrite;
    if (block.host_writing || (write && block.host_pins > 0)) good = false;
    if (block.claims++ == 0) {
      wanted_.push_back({.block = &block,
                         .write = write,
                         .missing = block.state() != BlockState::kResident,
                         .overwrite = overwrite});
      total_bytes += block.rounded_bytes;
    } else if (write || !overwrite) {
      WantedBlock& wanted = *std::find_if(
          wanted_.begin(), wanted_.end(),
          [&](const WantedBlock& each) { return each.block == &block; });
      wanted.write = wanted.write || write;
      wanted.overwrite = wanted.overwrite && overwrite;
    }
  }
  if (good) return true;
  for (const WantedBlock& wanted : wanted_) wanted.block->claims = 0;
  return false;
}

// Pins what is Resident, so that it is no victim of what follows.
void BeginAttempt::pinResident() {
  std::size_t shared_bytes = 0;
  for (const WantedBlock& wanted : wanted_) {
    if (wanted.missing) continue;
    Block& block = *wanted.block;
    const std::uint64_t old =
        block.word.fetch_add(block.claims, std::memory_order_acq_rel);
    if (Block::pinsOf(old) > 0) shared_bytes += block.rounded_bytes;
  }
  core_.admission.subtract(0, shared_bytes);
}

// Among what the call that begins wants there is a block without its bytes.
bool BeginAttempt::refuseLost() {
  for (const WantedBlock& wanted : wanted_) {
    if (!wanted.block->lost || wanted.overwrite) continue;
    shortage_.failure = lost_error(core_, *wanted.block);
    return true;
  }
  return false;
}

bool BeginAttempt::takeRoom(bool& others) {
  const bool must_not_fail = call_.must_not_fail;
  const bool guess = call_.memory != nullptr &&
                     !call_.memory->known.load(std::memory_order_acquire);
  std::size_t room = 0;
  // A guess may be cut where a failure does no harm, and whatever a call asks
  // for that would wait in vain, alone or inside another call: what was learned
  // may belong to other shapes.
  const bool partly = (guess && !must_not_fail) || CallState::of_thread > 0;
  const bool done = core_.admission.addRoom(
      KernelRoom::roomExpected(call_.memory, call_.operand_bytes), partly, room,
      others);
  call_.room_bytes = room;
  // One hole is made for what must not fail; a spare block could lie in it.
  call_.spares.left = must_not_fail ? 0 : SIZE_MAX;
  return done;
}

// What such a kernel was seen to need; else room for a few scalars, as what is
// guessed by the bytes of its operands would hold back ops that need none.
bool BeginAttempt::isRoomEnough() const {
  constexpr std::size_t kScalarsBytes = 4096;
  if (!call_.can_be_held_back) return true;
  const std::size_t seen = parts_.kernel_room.seen(call_, call_.operand_bytes);
  const std::size_t expected =
      KernelRoom::roomExpected(call_.memory, call_.operand_bytes);
  return call_.room_bytes >= (seen > 0 ? ExtentMap::round(seen)
                                       : std::min(expected, kScalarsBytes));
}

bool BeginAttempt::placeMissing(const Locked& locked) {
  std::size_t missing_bytes = 0;
  for (const WantedBlock& wanted : wanted_) {
    if (wanted.missing) missing_bytes += wanted.block->rounded_bytes;
  }
  if (missing_bytes == 0) return true;
  while (core_.arena->freeBytes() < missing_bytes) {
    const std::size_t free_bytes = core_.arena->freeBytes();
    if (!parts_.room.evictNext(locked, shortage_, missing_bytes - free_bytes))
      return false;
  }
  // The largest first: they have the fewest holes to choose from.
  // Equal ones by address, so that a run repeats.
  std::sort(wanted_.begin(), wanted_.end(),
            [](const WantedBlock& a, const WantedBlock& b) {
              return std::tie(b.block->rounded_bytes,
                              a.block->logical_address) <
                     std::tie(a.block->rounded_bytes, b.block->logical_address);
            });
  for (WantedBlock& wanted : wanted_) {
    if (!wanted.missing) continue;
    const StreamIndex writer = wanted.fetched() ? kCopyIn : call_.stream;
    // A block that has no bytes yet is a result of the op, to a plan.
    const bool is_result = wanted.block->state() == BlockState::kUnbacked;
    if (!parts_.room.placeBlock(locked, wanted, writer, shortage_,
                                /*needed_at=*/0,
                                is_result ? &call_.ticket : nullptr)) {
      return false;
    }
  }
  return true;
}

void BeginAttempt::commit(const Locked& locked) {
  for (WantedBlock& wanted : wanted_) {
    Block& block = *wanted.block;
    block.last_use_tick.store(call_.tick, std::memory_order_relaxed);
    // mutant: mirror-before-write
    if (wanted.write && block.isMirrored()) {
      parts_.mirror.finishBefore(locked, block, waits_);
    }
    if (wanted.missing) {
      if (wanted.overwrite && block.host.extent != nullptr) {
        Overwrites::setOldBytesAside(locked, call_, block);
      }
      if (block.host.extent != nullptr) {
        core_.counters.faults.fetch_add(1, std::memory_order_relaxed);
      }
      parts_.residency.markResident(locked, wanted, block.claims,
                                    Decision::kFault);
    }
    // mutant: stale-host-copy
    if (wanted.write && block.host.extent != nullptr) {
      parts_.residency.host().freeCopy(locked, block);
    }
    if (wanted.write) core_.records.written(block, call_.wants_record);
    parts_.residency.countPrefetch(block);
    const Position written{block.last_write.load(std::memory_order_acquire)};
    // mutant: fetched-wait
    if (!core_.uses().inOrder(written, call_.stream))
      core_.uses().addTo(waits_, written);
    block.claims = 0;
  }
  parts_.table.freeUnheld(locked);
}

void BeginAttempt::undo(const Locked& locked) noexcept {
  std::size_t freed = call_.room_bytes;
  call_.room_bytes = 0;
  parts_.memory.freeHole(locked, call_);
  for (WantedBlock& wanted : wanted_) {
    Block& block = *wanted.block;
    if (wanted.missing) {
      freed += block.rounded_bytes;
      if (wanted.extent != nullptr) {
        parts_.room.giveBack(locked, wanted);
      }
    } else {
      const std::uint64_t old =
          block.word.fetch_sub(block.claims, std::memory_order_acq_rel);
      if (Block::pinsOf(old) == block.claims) freed += block.rounded_bytes;
    }
    block.claims = 0;
  }
  core_.admission.subtract(1, freed, call_.exclusive);
  call_.exclusive = false;
  call_.has_all = false;
  call_.hole.due_bytes = 0;
  core_.admission.wakeLocked();
}

Error BeginAttempt::error(const Locked& locked) {
  std::size_t needed_bytes = 0;
  for (const WantedBlock& wanted : wanted_) {
    needed_bytes += wanted.block->rounded_bytes;
  }
  return out_of_memory(
      locked, core_, call_,
      {operands_, needed_bytes, parts_.kernel_room.seen(call_, needed_bytes)},
      {parts_.table.residentBytes(),
       parts_.room.largestRun(locked, /*moving=*/false, SIZE_MAX)},
      shortage_);
}

} // namespace chameleon::memory
