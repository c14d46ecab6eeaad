// Birth and death of blocks, and the positions that say who uses them.
#include <memory>

#include "backend/runtime/check.h"
#include "backend/runtime/fault_injection.h"
#include "backend/runtime/options.h"
#include "memory/pager_hot.h"

namespace chameleon::memory {

using runtime::Error;
using runtime::ErrorCode;
using runtime::format_bytes;
using runtime::Result;

std::size_t PagerImpl::logicalLimit() const noexcept {
  return logical_limit_.load(std::memory_order_relaxed);
}

Result<Block*> PagerImpl::create(std::size_t bytes) {
  CHAMELEON_CHECK(bytes > 0, "a block has bytes");
  const Lock lock(*this);
  drainReleased();
  const std::size_t live = logical_bytes_.load(std::memory_order_relaxed);
  if (bytes > logicalLimit() || live > logicalLimit() - bytes) {
    return Error(ErrorCode::kOutOfLogicalMemory,
                 name() + " out of memory. A tensor of " + format_bytes(bytes) +
                     " does not fit beside the " + format_bytes(live) +
                     " of live tensors; the limit is " +
                     format_bytes(logicalLimit()) +
                     " (oversubscription x hbm_budget of " +
                     format_bytes(limits_.hbm_budget_bytes) +
                     "). Raise torch_chameleon.config.oversubscription or "
                     "torch_chameleon.config.hbm_budget");
  }
  Result<Block*> block = newBlock(bytes, ExtentMap::round(bytes));
  if (!block.ok()) return block;
  addLogical(**block);
  (*block)->profiler_slot.store(
      profiler_.born((*block)->identity, (*block)->rounded_bytes, *block),
      std::memory_order_relaxed);
  return block;
}

Result<Block*> PagerImpl::newBlock(std::size_t bytes,
                                   std::size_t rounded_bytes) {
  using runtime::FaultInjection;
  if (Error error =
          FaultInjection::instance().pass(runtime::FaultPoint::kBlock)) {
    return error;
  }
  std::byte* const address = logical_space_->allocate(bytes);
  if (address == nullptr) {
    return Error(ErrorCode::kOutOfLogicalMemory,
                 name() + " out of memory. No logical address is left for " +
                     format_bytes(bytes) + " out of a range of " +
                     format_bytes(logical_space_->rangeBytes()) +
                     "; free tensors first");
  }
  Block* block = recycled_;
  if (block != nullptr) {
    recycled_ = block->next_live;
    std::destroy_at(block);
    std::construct_at(block);
  } else {
    block = new Block;
  }
  block->pager = &owner_;
  block->logical_address = address;
  block->bytes = bytes;
  block->rounded_bytes = rounded_bytes;
  block->identity = nextIdentity();
  block->next_live = live_;
  if (live_ != nullptr) live_->previous_live = block;
  live_ = block;
  return block;
}

void PagerImpl::release(Block* block) noexcept {
  block->released_at.store(profiler_.opCount(), std::memory_order_relaxed);
  logical_bytes_.fetch_sub(block->bytes, std::memory_order_relaxed);
  logical_rounded_bytes_.fetch_sub(ExtentMap::round(block->bytes),
                                   std::memory_order_relaxed);
  spare(*block);
}

void PagerImpl::pushReleased(Block* block) noexcept {
  released_bytes_.fetch_add(block->rounded_bytes, std::memory_order_relaxed);
  Block* head = released_.load(std::memory_order_relaxed);
  do {
    block->next_released = head;
  } while (!released_.compare_exchange_weak(
      head, block, std::memory_order_release, std::memory_order_relaxed));
}

void PagerImpl::drainReleased() noexcept {
  if (released_.load(std::memory_order_relaxed) == nullptr) return;
  Block* block = released_.exchange(nullptr, std::memory_order_acquire);
  while (block != nullptr) {
    Block* const next = block->next_released;
    released_bytes_.fetch_sub(block->rounded_bytes, std::memory_order_relaxed);
    if (block->pins() == 0) {
      if (recreation_.hold(*block)) {
        forgetDead(*block); // for the profiler it died
        (void)drop(*block); // nobody but a re-run asks for it
      } else {
        destroy(*block);
      }
    } else {
      pushReleased(block); // it dies after its last unpin
    }
    block = next;
  }
  freeUnheld();
}

void PagerImpl::destroy(Block& block) noexcept {
  recreation_.forget(block);
  CHAMELEON_CHECK(block.host_pins == 0 && !block.host_writing,
                  "a block was released while a host thread copies it");
  giveUpPlaces(block, block.hasHostCopy());
  logical_space_->free(block.logical_address, block.bytes);
  forgetDead(block);
  if (block.previous_live != nullptr) {
    block.previous_live->next_live = block.next_live;
  } else {
    live_ = block.next_live;
  }
  if (block.next_live != nullptr) {
    block.next_live->previous_live = block.previous_live;
  }
  recycle(block);
}

// Its bytes are needed no more, wherever they are.
void PagerImpl::giveUpPlaces(Block& block, bool host_copy) noexcept {
  if (block.host != nullptr) {
    if (block.host_read.none()) {
      (void)cancelCopyOut(block.host_ready, block.host_address, block.bytes);
    }
    const Fence host_uses = hostUsesOf(block);
    if (host_copy) unlinkCopy(block);
    host_pool_->free(block.host, host_uses);
    block.host = nullptr;
    block.host_address = nullptr;
  }
  if (block.device != nullptr) {
    countPrefetch(block);
    policy_->left(block);
    arena_->free(block.device, usesOf(block));
    block.device = nullptr;
    block.device_address = nullptr;
  }
  block.host_ready = {};
  block.host_read = {};
  block.copied_ahead = false;
  clearUses(block);
  block.last_write.store(0, std::memory_order_release);
}

void PagerImpl::recycle(Block& block) noexcept {
  block.next_live = recycled_;
  recycled_ = &block;
}

// ---- positions ---------------------------------------------------------

void PagerImpl::joinTo(Fence& fence, Position position) noexcept {
  // Where joining fails too the device is lost, and later calls say so.
  if (timelines_.add(fence, position)) {
    (void)timelines_.synchronize(position).ok();
  }
}

void PagerImpl::addTo(Fence& fence, const Fence& other) noexcept {
  for (const Position position : other.slots()) addTo(fence, position);
}

void PagerImpl::stampSlow(Block& block, Position position) noexcept {
  for (;;) {
    for (std::atomic<std::uint64_t>& slot : block.last_use) {
      std::uint64_t old = slot.load(std::memory_order_relaxed);
      while (Position{old}.stream() == position.stream() ||
             timelines_.passed(Position{old})) {
        if (Position{old}.stream() == position.stream() &&
            old >= position.word) {
          return;
        }
        if (slot.compare_exchange_weak(old, position.word,
                                       std::memory_order_release,
                                       std::memory_order_relaxed)) {
          return;
        }
      }
    }
    // A fourth stream: its use and that of another become one position of the
    // copy-out stream, which waits for both.
    std::atomic<std::uint64_t>& slot = block.last_use[0];
    std::uint64_t old = slot.load(std::memory_order_relaxed);
    if (timelines_.wait(kCopyOut, Position{old}) ||
        timelines_.wait(kCopyOut, position)) {
      (void)timelines_.synchronize(position).ok();
      return;
    }
    const Position joined = timelines_.advance(kCopyOut);
    if (slot.compare_exchange_strong(old, joined.word,
                                     std::memory_order_release,
                                     std::memory_order_relaxed)) {
      return;
    }
  }
}

void PagerImpl::clearUses(Block& block) noexcept {
  for (auto& slot : block.last_use) slot.store(0, std::memory_order_relaxed);
}

Fence PagerImpl::usesOf(const Block& block) {
  Fence fence;
  const std::uint64_t first = block.last_use[0].load(std::memory_order_acquire);
  if (block.last_use[1].load(std::memory_order_acquire) == 0 &&
      block.last_write.load(std::memory_order_acquire) == first) {
    fence.add(Position{first}); // written once, on one stream
    return fence;
  }
  for (const auto& slot : block.last_use) {
    addTo(fence, Position{slot.load(std::memory_order_acquire)});
  }
  addTo(fence, Position{block.last_write.load(std::memory_order_acquire)});
  return fence;
}

Fence PagerImpl::writesOf(const Block& block) {
  const Position last{block.last_write.load(std::memory_order_acquire)};
  Fence fence;
  addTo(fence, last);
  // Two streams may write parts of one block, and only the later write is
  // known as such: unless one stream did it all, every use is waited for.
  for (const auto& slot : block.last_use) {
    const Position use{slot.load(std::memory_order_acquire)};
    if (use.stream() != last.stream()) addTo(fence, use);
  }
  return fence;
}

Fence PagerImpl::hostUsesOf(const Block& block) {
  Fence fence;
  addTo(fence, block.host_ready);
  addTo(fence, block.host_read);
  return fence;
}

void PagerImpl::recordUse(Block& block, runtime::Stream stream) {
  const StreamIndex index = timelines_.indexOf(stream);
  const Lock lock(*this);
  stamp(block, timelines_.advance(index));
}

} // namespace chameleon::memory
