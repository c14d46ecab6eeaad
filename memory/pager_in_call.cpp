// Memory that a running call allocates inside its kernel: outputs, workspaces,
// temporaries.
#include <algorithm>

#include "backend/runtime/check.h"
#include "memory/pager_hot.h"

namespace chameleon::memory {

using runtime::ByteRange;
using runtime::Error;
using runtime::ErrorCode;
using runtime::Result;

Result<std::byte*> PagerImpl::allocate(Call& call, std::size_t bytes) {
  CHAMELEON_CHECK(call.active_ && !call.held_,
                  "allocate() in a call that does not run");
  const std::size_t rounded = ExtentMap::round(std::max<std::size_t>(bytes, 1));
  call.peak_bytes_ = std::max(
      call.peak_bytes_, call.live_bytes() + call.adopted_bytes_ + rounded);
  if (released_.load(std::memory_order_relaxed) != nullptr) [[unlikely]] {
    const Lock lock(*this);
    drainReleased();
  }
  const std::size_t offset =
      call.must_not_fail_ ? call.layout_.find(rounded) : 0;
  if (Block* const block = takeSpare(call, rounded)) {
    if (!usesInOrder(*block, call.stream_)) [[unlikely]] {
      if (Error error = orderSpare(call, *block)) return error;
    }
    note(Decision::kAllocate, block->device_address, rounded);
    if (call.must_not_fail_) {
      call.layout_.add(offset, rounded, block->device_address);
    }
    return block->device_address;
  }
  return allocateExtent(call, rounded, offset);
}

// `offset`: where the call's layout has it.
Result<std::byte*> PagerImpl::allocateExtent(Call& call, std::size_t rounded,
                                             std::size_t offset) {
  const OpPause pause(call.timing_.get());
  Shortage shortage;
  Extent* extent = nullptr;
  std::byte* address = nullptr;
  Fence waits;
  {
    const Lock lock(*this);
    if (call.must_not_fail_) extent = cutHole(call, offset, rounded);
    if (extent == nullptr) {
      freeHole(call);
      extent =
          place(rounded, End::kTop, ExtentUse::kInCall, call.stream_, shortage);
    }
    if (extent != nullptr) {
      if (!inOrder(extent->fence, call.stream_)) waits = extent->fence;
      extent->fence.clear();
      address = arena_->address(*extent);
      note(Decision::kAllocate, address, rounded);
      list(call, extent);
      if (call.must_not_fail_) call.layout_.add(offset, rounded, address);
    }
  }
  if (extent != nullptr) {
    if (waits.empty()) return address;
    Error error = waitFor(call.stream_, waits);
    if (!error) return address;
    const Lock lock(*this);
    if (call.must_not_fail_) call.layout_.remove(address);
    forget(call, indexOf(call, extent));
    giveBack(call, extent, waits);
    return named(call, std::move(error));
  }
  if (!call.failed_) {
    call.failed_ = true; // the peak is learned at end(): a retry gets the room
    ++call.failures_;
  }
  return outOfMemory(call, call.operand_bytes_,
                     std::max(call.live_bytes() + call.adopted_bytes_ + rounded,
                              call.layout_.span()),
                     shortage);
}

// From the hole that the call holds. Null: it has none, or needs something else
// than it did when this was learned.
Extent* PagerImpl::cutHole(Call& call, std::size_t offset, std::size_t bytes) {
  if (call.hole_due_) {
    call.hole_due_ = false;
    Shortage ignored;
    holdHole(call, place(holeWished(call), End::kTop, ExtentUse::kInCall,
                         call.stream_, ignored));
  }
  Extent* const extent = call.hole_.cut(*arena_, offset, bytes);
  if (extent != nullptr) {
    hole_bytes_ -= bytes;
    raise(counters_.peak_resident_bytes, residentNow() - hole_bytes_);
  }
  return extent;
}

std::size_t PagerImpl::largestInCall(const Call& call) const {
  const Lock lock(*this);
  return std::max(call.hole_.largestPiece(),
                  largestRun(/*moving=*/false, SIZE_MAX));
}

// An in-call extent that is listed no more.
void PagerImpl::giveBack(Call& call, Extent* extent,
                         const Fence& fence) noexcept {
  const std::size_t bytes = extent->bytes;
  if (call.hole_.takeBack(*arena_, extent, fence)) {
    hole_bytes_ += bytes;
  } else {
    arena_->free(extent, fence);
  }
}

void PagerImpl::free(Call* hint, std::byte* address) noexcept {
  note(Decision::kFree, address, 0);
  if (hint != nullptr && !hint->spares_.empty()) {
    const std::size_t index = indexOfSpare(*hint, address);
    if (index < hint->spares_.size()) {
      freeSpare(*hint, index);
      return;
    }
  }
  if (hint != nullptr && hint->must_not_fail_) hint->layout_.remove(address);
  std::size_t foreign_bytes = 0;
  {
    const Lock lock(*this);
    Extent* const extent = arena_->find(address);
    if (extent == nullptr) {
      freeElsewhere(address);
      return;
    }
    StreamIndex stream;
    Call* call = nullptr;
    if (extent->use == ExtentUse::kForeign) {
      foreign_bytes = extent->bytes;
      fixed_extents_.fetch_sub(1, std::memory_order_relaxed);
      stream = extent->fence.slots()[0].stream(); // of the call it outlived
    } else {
      call = &ownerOf(hint, extent);
      stream = call->stream_;
      forget(*call, indexOf(*call, extent));
    }
    if (checks_callers_) [[unlikely]] {
      const ByteRange range{address, extent->bytes};
      runtime_.submitted(timelines_.stream(stream), {}, {&range, 1});
    }
    // Kernels up to now may use it.
    Fence fence;
    fence.add(timelines_.advance(stream));
    if (call != nullptr) {
      giveBack(*call, extent, fence);
    } else {
      arena_->free(extent, fence);
    }
  }
  if (foreign_bytes != 0) {
    admission_.subtract(0, foreign_bytes);
    admission_.wake();
  }
}

Result<Block*> PagerImpl::adopt(Call& call, std::byte* address,
                                std::size_t bytes) {
  const std::size_t spare = indexOfSpare(call, address);
  if (spare < call.spares_.size() && bytes > 0 &&
      bytes <= call.spares_[spare]->rounded_bytes) {
    return &adoptSpare(call, spare, bytes);
  }
  const Lock lock(*this);
  const std::size_t index = call.in_call_.findIf([&](const Extent* extent) {
    return arena_->address(*extent) == address;
  });
  if (index == call.in_call_.size() || bytes == 0 ||
      bytes > call.in_call_[index]->bytes) {
    return Error(ErrorCode::kInvalidArgument,
                 name() +
                     ": memory to adopt was not allocated inside this "
                     "call, or is smaller than the tensor");
  }
  Extent* const extent = call.in_call_[index];
  Result<Block*> result = newBlock(bytes, extent->bytes);
  if (!result.ok()) return result;
  Block& block = **result;
  forget(call, index);
  if (call.in_call_.empty()) unlist(call); // spares end() the lock
  arena_->adopt(extent, &block);
  block.device = extent;
  block.device_address = address;
  block.word.store(Block::stateBits(BlockState::kResident) | 1,
                   std::memory_order_release);
  adopted(call, block);
  policy_->entered(block);
  return result;
}

// Counts a new extent as the call's.
void PagerImpl::list(Call& call, Extent* extent) {
  if (!call.listed_) {
    call.listed_ = true;
    call.previous_ = nullptr;
    call.next_ = calls_;
    if (calls_ != nullptr) calls_->previous_ = &call;
    calls_ = &call;
  }
  call.in_call_.push_back(extent);
  call.in_call_bytes_ += extent->bytes;
  if (call.live_bytes() > call.room_bytes_) {
    admission_.add(0, call.live_bytes() - call.room_bytes_);
    call.room_bytes_ = call.live_bytes();
  }
}

void PagerImpl::forget(Call& call, std::size_t index) noexcept {
  CHAMELEON_CHECK(index < call.in_call_.size(), "an extent of another call");
  call.in_call_bytes_ -= call.in_call_[index]->bytes;
  call.in_call_.remove(index);
}

std::size_t PagerImpl::indexOf(const Call& call,
                               const Extent* extent) const noexcept {
  return call.in_call_.findIf([=](const Extent* e) { return e == extent; });
}

Call& PagerImpl::ownerOf(Call* hint, const Extent* extent) noexcept {
  const auto owns = [&](const Call& call) {
    return indexOf(call, extent) < call.in_call_.size();
  };
  if (hint != nullptr && owns(*hint)) return *hint;
  Call* call = calls_;
  while (call != nullptr && !owns(*call)) call = call->next_;
  CHAMELEON_CHECK(call != nullptr, "an in-call extent without a call");
  return *call;
}

void PagerImpl::unlist(Call& call) noexcept {
  (call.previous_ != nullptr ? call.previous_->next_ : calls_) = call.next_;
  if (call.next_ != nullptr) call.next_->previous_ = call.previous_;
  call.listed_ = false;
}

// The call ends: what it still has allocated outlives it.
void PagerImpl::makeForeign(Call& call, Position position) noexcept {
  const Lock lock(*this);
  for (Extent* const extent : call.in_call_) {
    arena_->makeForeign(extent);
    extent->fence.add(position); // the stream that a later free() is ordered on
    call.room_bytes_ -= extent->bytes; // stays committed
    fixed_extents_.fetch_add(1, std::memory_order_relaxed);
  }
  call.in_call_.clear();
  call.in_call_bytes_ = 0;
  if (call.listed_) unlist(call);
  for (Block* const block : call.spares_) outliveSpare(call, *block, position);
  call.spares_.clear();
  call.spare_bytes_ = 0;
}

} // namespace chameleon::memory
