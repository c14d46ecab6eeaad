// Memory inside a call without the lock: spare blocks (spare_blocks.h) that a
// call takes, and that are freed or born again in it.
//
// Between take and adoption a spare block is pinned by the call that took it,
// so it is found in its place whatever others do; its bytes are part of the
// call's room. Only the call's own thread touches Call::spares_.
#include "backend/runtime/check.h"
#include "memory/pager_hot.h"

namespace chameleon::memory {

using runtime::ByteRange;
using runtime::Error;

bool PagerImpl::giveBackSpares() noexcept {
  Block* block = spares_.takeAll();
  if (block == nullptr) return false;
  while (block != nullptr) {
    Block* const next = block->next_released;
    destroy(*block);
    block = next;
  }
  return true;
}

// Makes the call's stream run after all work on the block.
Error PagerImpl::orderSpare(Call& call, Block& block) {
  const OpPause pause(call.timing_.get());
  Error error = waitFor(call.stream_, usesOf(block));
  if (error) {
    removeSpare(call, indexOfSpare(call, block.device_address));
    block.word.store(kIdle, std::memory_order_release);
    pushReleased(&block);
  }
  return error;
}

// The kernel freed it.
void PagerImpl::freeSpare(Call& call, std::size_t index) noexcept {
  Block& block = removeSpare(call, index);
  if (checks_callers_) [[unlikely]] {
    const ByteRange range{block.device_address, block.rounded_bytes};
    runtime_.submitted(timelines_.stream(call.stream_), {}, {&range, 1});
  }
  // Kernels up to now may use it.
  const Position position = timelines_.advance(call.stream_);
  stamp(block, position);
  block.last_write.store(position.word, std::memory_order_release);
  block.word.store(kIdle, std::memory_order_release);
  spare(block);
}

// The call ends and still has it. REQUIRES the lock.
void PagerImpl::outliveSpare(Call& call, Block& block,
                             Position position) noexcept {
  stamp(block, position);
  block.last_write.store(position.word, std::memory_order_release);
  const bool freed =
      (block.word.load(std::memory_order_relaxed) & Block::kFreedBit) != 0;
  block.word.store(kIdle, std::memory_order_release);
  if (freed) {
    pushReleased(&block);
    return;
  }
  call.room_bytes_ -= block.rounded_bytes; // stays committed
  block.device->fence.add(position);
  policy_->left(block);
  arena_->orphan(block.device);
  block.device = nullptr;
  block.device_address = nullptr;
  block.word.store(Block::stateBits(BlockState::kUnbacked),
                   std::memory_order_release);
  destroy(block);
  fixed_extents_.fetch_add(1, std::memory_order_relaxed);
}

// A thread that is not the call's frees what the call has. REQUIRES the lock.
void PagerImpl::freeElsewhere(std::byte* address) noexcept {
  const Extent* extent = arena_->extents().first();
  while (extent != nullptr && arena_->address(*extent) != address) {
    extent = extent->next;
  }
  CHAMELEON_CHECK(
      extent != nullptr && extent->use == ExtentUse::kBlock &&
          extent->block->word.fetch_or(Block::kFreedBit,
                                       std::memory_order_relaxed) == kIdle + 1,
      "free() of an address that is not the start of an in-call "
      "extent");
}

} // namespace chameleon::memory
