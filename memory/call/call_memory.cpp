#include "memory/call/call_memory.h"

#include <algorithm>
#include <utility>

#include "backend/runtime/check.h"
#include "memory/room/out_of_memory.h"

namespace chameleon::memory {

using runtime::ByteRange;
using runtime::Error;
using runtime::ErrorCode;
using runtime::Result;

// ---- what an op call runs through, inline: half of what a small function
// costs is its call

[[gnu::always_inline]] inline std::size_t CallMemory::indexOfSpare(
    const CallState& call, const std::byte* address) noexcept {
  return call.spares.blocks.findIf(
      [=](const Block* block) { return block->device_address == address; });
}

// The call has it no more. It is still pinned: by nobody, unless it is adopted.
[[gnu::always_inline]] inline Block& CallMemory::removeSpare(
    CallState& call, std::size_t index) noexcept {
  Block& block = *call.spares.blocks[index];
  call.spares.blocks.remove(index);
  call.spares.bytes -= block.rounded_bytes;
  return block;
}

// A result of the op is a block from now on; a spare block was another before.
[[gnu::always_inline]] inline void CallMemory::introduce(
    CallState& call, Block& block) noexcept {
  const std::uint64_t identity = block.identity.load(std::memory_order_relaxed);
  const profiler::BlockSlot slot =
      block.profiler_slot.load(std::memory_order_relaxed);
  if (slot != profiler::kNoSlot && call.observed) [[likely]] {
    const std::uint64_t died =
        block.released_at.load(std::memory_order_relaxed);
    block.released_at.store(Block::kAlive, std::memory_order_relaxed);
    residency_.countPrefetch(block);
    core_.profiler.resultInPlaceOf(slot, died, call.ticket, identity);
    return;
  }
  table_.forgetDead(block);
  block.released_at.store(Block::kAlive, std::memory_order_relaxed);
  block.profiler_slot.store(
      call.observed
          ? core_.profiler.result(call.ticket, identity, block.rounded_bytes,
                                  &block)
          : core_.profiler.born(identity, block.rounded_bytes, &block),
      std::memory_order_relaxed);
}

// What was committed as the call's room is now committed as a pinned block.
[[gnu::always_inline]] inline void CallMemory::adopted(CallState& call,
                                                       Block& block) noexcept {
  core_.note(Decision::kAdopt, block, block.bytes);
  block.last_use_tick.store(call.tick, std::memory_order_relaxed);
  call.room_bytes -= block.rounded_bytes;
  call.adopted_bytes += block.rounded_bytes;
  call.adopted.push_back(&block);
  if (call.rerun) [[unlikely]] { // it will be another block's bytes
    table_.forgetDead(block);
    block.released_at.store(Block::kAlive, std::memory_order_relaxed);
    return;
  }
  table_.addLogical(block);
  introduce(call, block);
}

// The kernel returned it: another block, in the same place.
[[gnu::always_inline]] inline Block& CallMemory::adoptSpare(
    CallState& call, std::size_t index, std::size_t bytes) noexcept {
  Block& block = removeSpare(call, index);
  block.bytes.store(bytes, std::memory_order_relaxed);
  block.identity.store(table_.nextIdentity(), std::memory_order_relaxed);
  adopted(call, block);
  return block;
}

// Null: there is none, or none that the call may have.
[[gnu::always_inline]] inline Block* CallMemory::takeSpare(
    CallState& call, std::size_t rounded_bytes) noexcept {
  // Within the room that was committed for it: nobody is asked for more.
  if (call.spares.left == 0 ||
      call.liveBytes() + rounded_bytes > call.room_bytes) {
    return nullptr;
  }
  Block* const block = table_.takeSpare(rounded_bytes);
  if (block == nullptr) return nullptr;
  --call.spares.left;
  call.spares.blocks.push_back(block);
  call.spares.bytes += rounded_bytes;
  raise(core_.counters.peak_resident_bytes, table_.residentBytes());
  if (core_.checksCallers()) [[unlikely]] {
    // As fresh as any other memory: poison, where that is asked for.
    const runtime::ByteRange range{block->device_address, rounded_bytes};
    core_.runtime.discarded(range);
    core_.runtime.revived(range);
  }
  return block;
}

// ---- in the kernel

Result<std::byte*> CallMemory::allocate(CallState& call, std::size_t bytes) {
  CHAMELEON_CHECK(call.active && !call.keeps_pins,
                  "allocate() in a call that does not run");
  const std::size_t rounded = ExtentMap::round(std::max<std::size_t>(bytes, 1));
  call.peak_bytes = std::max(call.peak_bytes,
                             call.liveBytes() + call.adopted_bytes + rounded);
  if (table_.hasReleased()) [[unlikely]] {
    const PagerLock locked(core_);
    table_.drainReleased(locked);
  }
  const std::size_t offset =
      call.must_not_fail ? call.hole.layout.find(rounded) : 0;
  if (Block* const block = takeSpare(call, rounded)) {
    if (!core_.uses().usesInOrder(*block, call.stream)) [[unlikely]] {
      if (Error error = orderSpare(call, *block)) return error;
    }
    core_.note(Decision::kAllocate, block->device_address, rounded);
    if (call.must_not_fail) {
      call.hole.layout.add(offset, rounded, block->device_address);
    }
    return block->device_address;
  }
  return allocateExtent(call, rounded, offset);
}

// `offset`: where the call's layout has it.
Result<std::byte*> CallMemory::allocateExtent(CallState& call,
                                              std::size_t rounded,
                                              std::size_t offset) {
  const OpPause pause(call.timing.get());
  Shortage shortage;
  Extent* extent = nullptr;
  std::byte* address = nullptr;
  Fence waits;
  {
    const PagerLock locked(core_);
    if (call.must_not_fail) extent = cutHole(locked, call, offset, rounded);
    if (extent == nullptr) {
      freeHole(locked, call);
      extent = room_.place(locked,
                           {.bytes = rounded,
                            .end = End::kTop,
                            .use = ExtentUse::kInCall,
                            .stream = call.stream,
                            .planned_for = &call.ticket},
                           shortage);
    }
    if (extent != nullptr) {
      // mutant: in-kernel-wait
      if (!core_.uses().inOrder(extent->fence, call.stream))
        waits = extent->fence;
      extent->fence.clear();
      address = core_.arena->address(*extent);
      core_.note(Decision::kAllocate, address, rounded);
      list(locked, call, extent);
      if (call.must_not_fail) call.hole.layout.add(offset, rounded, address);
    }
  }
  if (extent != nullptr) {
    if (waits.empty()) return address;
    Error error = core_.waitFor(call.stream, waits);
    if (!error) return address;
    const PagerLock locked(core_);
    if (call.must_not_fail) call.hole.layout.remove(address);
    forget(locked, call, indexOf(call, extent));
    giveBack(locked, call, extent, waits);
    return core_.named(call, std::move(error));
  }
  if (!call.failed) {
    call.failed = true; // the peak is learned at end(): a retry gets the room
    ++call.failures;
  }
  const PagerLock locked(core_);
  const std::size_t inside_bytes = std::max(
      {call.liveBytes() + call.adopted_bytes + rounded, call.hole.layout.span(),
       call.memory == nullptr ? 0 : call.memory->peakAt(call.operand_bytes)});
  return out_of_memory(
      locked, core_, call,
      {{call.pins.data(), call.pins.size()}, call.operand_bytes, inside_bytes},
      {table_.residentBytes(),
       room_.largestRun(locked, /*moving=*/false, SIZE_MAX)},
      shortage);
}

// From the hole that the call holds. Null: it has none, or needs something else
// than it did when this was learned.
Extent* CallMemory::cutHole(const Locked& locked, CallState& call,
                            std::size_t offset, std::size_t bytes) {
  const std::size_t due_bytes = std::exchange(call.hole.due_bytes, 0);
  // Places that were planned do as well: the call is alone.
  if (due_bytes != 0 && !room_.hasPlaces(locked, call.ticket)) {
    Shortage ignored;
    reserveHole(
        locked, call,
        room_.place(locked,
                    {due_bytes, End::kTop, ExtentUse::kInCall, call.stream},
                    ignored));
  }
  Extent* const extent = call.hole.reserved.cut(*core_.arena, offset, bytes);
  if (extent != nullptr) {
    hole_bytes_ -= bytes;
    raise(core_.counters.peak_resident_bytes,
          table_.residentNow(locked) - hole_bytes_);
  }
  return extent;
}

std::size_t CallMemory::largestInCall(const CallState& call) const {
  const PagerLock locked(core_);
  return std::max(call.hole.reserved.largestPiece(),
                  room_.largestRun(locked, /*moving=*/false, SIZE_MAX));
}

// An in-call extent that is listed no more.
void CallMemory::giveBack(const Locked& /*locked*/, CallState& call,
                          Extent* extent, const Fence& fence) noexcept {
  const std::size_t bytes = extent->bytes;
  if (call.hole.reserved.takeBack(*core_.arena, extent, fence)) {
    hole_bytes_ += bytes;
  } else {
    core_.arena->free(extent, fence);
  }
}

void CallMemory::free(CallState* hint, std::byte* address) noexcept {
  core_.note(Decision::kFree, address, 0);
  if (hint != nullptr && !hint->spares.blocks.empty()) {
    const std::size_t index = indexOfSpare(*hint, address);
    if (index < hint->spares.blocks.size()) {
      freeSpare(*hint, index);
      return;
    }
  }
  if (hint != nullptr && hint->must_not_fail) hint->hole.layout.remove(address);
  std::size_t foreign_bytes = 0;
  {
    const PagerLock locked(core_);
    Extent* const extent = core_.arena->find(address);
    if (extent == nullptr) {
      freeElsewhere(locked, address);
      return;
    }
    StreamIndex stream;
    CallState* call = nullptr;
    if (extent->use == ExtentUse::kForeign) {
      foreign_bytes = extent->bytes;
      removeFixed(1);
      stream = extent->fence.slots()[0].stream(); // of the call it outlived
    } else {
      call = &ownerOf(locked, hint, extent);
      stream = call->stream;
      forget(locked, *call, indexOf(*call, extent));
    }
    if (core_.checksCallers()) [[unlikely]] {
      const ByteRange range{address, extent->bytes};
      core_.runtime.submitted(core_.streams.stream(stream), {}, {&range, 1});
    }
    // Kernels up to now may use it.
    Fence fence;
    fence.add(core_.streams.advance(stream));
    if (call != nullptr) {
      giveBack(locked, *call, extent, fence);
    } else {
      core_.arena->free(extent, fence);
    }
  }
  if (foreign_bytes != 0) {
    core_.admission.subtract(0, foreign_bytes);
    core_.admission.wake();
  }
}

Result<Block*> CallMemory::adopt(CallState& call, std::byte* address,
                                 std::size_t bytes) {
  const std::size_t spare = indexOfSpare(call, address);
  if (spare < call.spares.blocks.size() && bytes > 0 &&
      bytes <= call.spares.blocks[spare]->rounded_bytes) {
    return &adoptSpare(call, spare, bytes);
  }
  const PagerLock locked(core_);
  const std::size_t offset = core_.offsetOf(address);
  const std::size_t index = call.in_call.extents.findIf(
      [offset](const Extent* extent) { return extent->offset == offset; });
  if (index == call.in_call.extents.size() || bytes == 0 ||
      bytes > call.in_call.extents[index]->bytes) {
    return Error(ErrorCode::kInvalidArgument,
                 core_.name() +
                     ": memory to adopt was not allocated inside this "
                     "call, or is smaller than the tensor");
  }
  // What runs again makes what is live already. A budget that is a quarter of
  // the peak was rounded down.
  if (!call.rerun) {
    if (Error error =
            table_.refuseBeyondLimit(locked, bytes, ExtentMap::kAlignment)) {
      return error;
    }
  }
  Extent* const extent = call.in_call.extents[index];
  Result<Block*> result = table_.newBlock(locked, bytes, extent->bytes);
  if (!result.ok()) return result;
  Block& block = **result;
  // mutant: adopted-extent
  forget(locked, call, index);
  if (call.in_call.extents.empty())
    unlist(locked, call); // spares end() the lock
  residency_.adoptExtent(locked, block, extent);
  adopted(call, block);
  return result;
}

// Counts a new extent as the call's.
void CallMemory::list(const Locked& /*locked*/, CallState& call,
                      Extent* extent) {
  if (!call.in_call.listed) {
    call.in_call.listed = true;
    call.in_call.previous = nullptr;
    call.in_call.next = calls_;
    if (calls_ != nullptr) calls_->in_call.previous = &call;
    calls_ = &call;
  }
  call.in_call.extents.push_back(extent);
  call.in_call.bytes += extent->bytes;
  if (call.liveBytes() > call.room_bytes) {
    core_.admission.add(0, call.liveBytes() - call.room_bytes);
    call.room_bytes = call.liveBytes();
  }
}

void CallMemory::forget(const Locked& /*locked*/, CallState& call,
                        std::size_t index) noexcept {
  CHAMELEON_CHECK(index < call.in_call.extents.size(),
                  "an extent of another call");
  call.in_call.bytes -= call.in_call.extents[index]->bytes;
  call.in_call.extents.remove(index);
}

std::size_t CallMemory::indexOf(const CallState& call,
                                const Extent* extent) noexcept {
  return call.in_call.extents.findIf(
      [=](const Extent* e) { return e == extent; });
}

CallState& CallMemory::ownerOf(const Locked& /*locked*/, CallState* hint,
                               const Extent* extent) noexcept {
  const auto owns = [&](const CallState& call) {
    return indexOf(call, extent) < call.in_call.extents.size();
  };
  if (hint != nullptr && owns(*hint)) return *hint;
  CallState* call = calls_;
  while (call != nullptr && !owns(*call)) call = call->in_call.next;
  CHAMELEON_CHECK(call != nullptr, "an in-call extent without a call");
  return *call;
}

void CallMemory::unlist(const Locked& /*locked*/, CallState& call) noexcept {
  CallState::InCall& links = call.in_call;
  (links.previous != nullptr ? links.previous->in_call.next : calls_) =
      links.next;
  if (links.next != nullptr) links.next->in_call.previous = links.previous;
  links.listed = false;
}

void CallMemory::makeForeign(CallState& call, Position position) noexcept {
  const PagerLock locked(core_);
  for (Extent* const extent : call.in_call.extents) {
    core_.arena->makeForeign(extent);
    extent->fence.add(position); // the stream that a later free() is ordered on
    call.room_bytes -= extent->bytes; // stays committed
    addFixed(1);
  }
  call.in_call.extents.clear();
  call.in_call.bytes = 0;
  if (call.in_call.listed) unlist(locked, call);
  for (Block* const block : call.spares.blocks)
    outliveSpare(locked, call, *block, position);
  call.spares.blocks.clear();
  call.spares.bytes = 0;
}

void CallMemory::reserveHole(const Locked& /*locked*/, CallState& call,
                             Extent* hole) noexcept {
  if (hole == nullptr) return;
  hole_bytes_ += hole->bytes;
  call.hole.reserved.reserve(hole);
}

void CallMemory::freeHole(const Locked& /*locked*/, CallState& call) noexcept {
  if (!call.hole.reserved.empty())
    hole_bytes_ -= call.hole.reserved.release(*core_.arena);
}

// Makes the call's stream run after all work on the block.
Error CallMemory::orderSpare(CallState& call, Block& block) {
  const OpPause pause(call.timing.get());
  Error error = core_.waitFor(call.stream, core_.uses().usesOf(block));
  if (error) {
    removeSpare(call, indexOfSpare(call, block.device_address));
    block.word.store(Block::kIdle, std::memory_order_release);
    table_.pushReleased(&block);
  }
  return error;
}

// The kernel freed it.
void CallMemory::freeSpare(CallState& call, std::size_t index) noexcept {
  Block& block = removeSpare(call, index);
  if (core_.checksCallers()) [[unlikely]] {
    const ByteRange range{block.device_address, block.rounded_bytes};
    core_.runtime.submitted(core_.streams.stream(call.stream), {}, {&range, 1});
  }
  // Kernels up to now may use it.
  const Position position = core_.streams.advance(call.stream);
  core_.uses().stamp(block, position);
  block.last_write.store(position.word, std::memory_order_release);
  block.word.store(Block::kIdle, std::memory_order_release);
  table_.spare(block);
}

// The call ends and still has it.
void CallMemory::outliveSpare(const Locked& locked, CallState& call,
                              Block& block, Position position) noexcept {
  core_.uses().stamp(block, position);
  block.last_write.store(position.word, std::memory_order_release);
  const bool freed =
      (block.word.load(std::memory_order_relaxed) & Block::kFreedBit) != 0;
  block.word.store(Block::kIdle, std::memory_order_release);
  if (freed) {
    table_.pushReleased(&block);
    return;
  }
  call.room_bytes -= block.rounded_bytes; // stays committed
  residency_.orphanExtent(locked, block, position);
  table_.destroy(locked, block);
  addFixed(1);
}

// A thread that is not the call's frees what the call has.
void CallMemory::freeElsewhere(const Locked& /*locked*/,
                               std::byte* address) noexcept {
  const Extent* extent = core_.arena->extents().first();
  while (extent != nullptr && core_.arena->address(*extent) != address) {
    extent = extent->next;
  }
  CHAMELEON_CHECK(
      extent != nullptr && extent->use == ExtentUse::kBlock &&
          extent->block->word.fetch_or(
              Block::kFreedBit, std::memory_order_relaxed) == Block::kIdle + 1,
      "free() of an address that is not the start of an in-call "
      "extent");
}

} // namespace chameleon::memory
