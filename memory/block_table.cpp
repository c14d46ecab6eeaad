#include "memory/block_table.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "backend/runtime/check.h"
#include "backend/runtime/fault_injection.h"
#include "memory/room/out_of_memory.h"

namespace chameleon::memory {

using runtime::Error;
using runtime::Result;

BlockTable::BlockTable(PagerCore& core, Residency& residency, Pager* owner,
                       std::unique_ptr<LogicalSpace> space)
    : core_(core),
      residency_(residency),
      owner_(owner),
      logical_limit_bytes_(
          logical_limit_bytes(core.limits, core.limits.hbm_budget_bytes)),
      space_(std::move(space)) {}

BlockTable::~BlockTable() {
  while (recycled_ != nullptr) {
    delete std::exchange(recycled_, recycled_->next_live);
  }
}

Result<Block*> BlockTable::create(const Locked& locked, std::size_t bytes) {
  CHAMELEON_CHECK(bytes > 0, "a block has bytes");
  drainReleased(locked);
  if (Error error = refuseBeyondLimit(locked, bytes)) return error;
  Result<Block*> block = newBlock(locked, bytes, ExtentMap::round(bytes));
  if (!block.ok()) return block;
  addLogical(**block);
  (*block)->profiler_slot.store(
      core_.profiler.born((*block)->identity, (*block)->rounded_bytes, *block),
      std::memory_order_relaxed);
  return block;
}

Error BlockTable::refuseBeyondLimit(const Locked& locked, std::size_t bytes,
                                    std::size_t rounding_bytes) const {
  const std::size_t live = logicalBytes();
  const std::size_t limit =
      logical_limit_bytes_.load(std::memory_order_relaxed);
  const std::size_t more = bytes - std::min(bytes, rounding_bytes);
  if (more <= limit && live <= limit - more) return {};
  return out_of_logical_memory(locked, core_, bytes, live, limit);
}

Result<Block*> BlockTable::newBlock(const Locked& /*locked*/, std::size_t bytes,
                                    std::size_t rounded_bytes) {
  using runtime::FaultInjection;
  if (Error error =
          FaultInjection::instance().pass(runtime::FaultPoint::kBlock)) {
    return error;
  }
  std::byte* const address = space_->allocate(bytes);
  if (address == nullptr) {
    return out_of_addresses(core_, bytes, space_->rangeBytes());
  }
  Block* block = recycled_;
  if (block != nullptr) {
    recycled_ = block->next_live;
    std::destroy_at(block);
    std::construct_at(block);
  } else {
    block = new Block;
  }
  block->pager = owner_;
  block->logical_address = address;
  block->bytes = bytes;
  block->rounded_bytes = rounded_bytes;
  block->identity = nextIdentity();
  block->next_live = live_;
  if (live_ != nullptr) live_->previous_live = block;
  live_ = block;
  return block;
}

void BlockTable::release(Block& block) noexcept {
  block.released_at.store(core_.profiler.opCount(), std::memory_order_relaxed);
  logical_bytes_.fetch_sub(block.bytes, std::memory_order_relaxed);
  logical_rounded_bytes_.fetch_sub(ExtentMap::round(block.bytes),
                                   std::memory_order_relaxed);
  spare(block);
}

void BlockTable::pushReleased(Block* block) noexcept {
  released_bytes_.fetch_add(block->rounded_bytes, std::memory_order_relaxed);
  Block* head = released_.load(std::memory_order_relaxed);
  do {
    block->next_released = head;
  } while (!released_.compare_exchange_weak(
      head, block, std::memory_order_release, std::memory_order_relaxed));
}

void BlockTable::drainReleased(const Locked& locked) noexcept {
  if (released_.load(std::memory_order_relaxed) == nullptr) return;
  Block* block = released_.exchange(nullptr, std::memory_order_acquire);
  while (block != nullptr) {
    Block* const next = block->next_released;
    released_bytes_.fetch_sub(block->rounded_bytes, std::memory_order_relaxed);
    if (block->pins() == 0 && !block->isMirrored()) {
      if (core_.records.hold(*block)) {
        forgetDead(*block); // for the profiler it died
        (void)residency_.drop(locked,
                              *block); // nobody but a re-run asks for it
      } else {
        destroy(locked, *block);
      }
    } else {
      pushReleased(block); // it dies after its last unpin, or copy
    }
    block = next;
  }
  freeUnheld(locked);
}

bool BlockTable::giveBackSpares(const Locked& locked) noexcept {
  Block* block = spares_.takeAll();
  if (block == nullptr) return false;
  while (block != nullptr) {
    Block* const next = block->next_released;
    destroy(locked, *block);
    block = next;
  }
  return true;
}

void BlockTable::freeUnheld(const Locked& locked) noexcept {
  while (Block* const block = core_.records.takeUnheld())
    destroy(locked, *block);
}

void BlockTable::destroy(const Locked& locked, Block& block) noexcept {
  core_.records.forget(block);
  CHAMELEON_CHECK(block.host_pins == 0 && !block.host_writing,
                  "a block was released while a host thread copies it");
  residency_.giveUpPlaces(locked, block, block.hasHostCopy());
  space_->free(block.logical_address, block.bytes);
  forgetDead(block);
  if (block.previous_live != nullptr) {
    block.previous_live->next_live = block.next_live;
  } else {
    live_ = block.next_live;
  }
  if (block.next_live != nullptr) {
    block.next_live->previous_live = block.previous_live;
  }
  block.next_live = recycled_;
  recycled_ = &block;
}

void BlockTable::forgetDead(Block& block) noexcept {
  const profiler::BlockSlot slot =
      block.profiler_slot.load(std::memory_order_relaxed);
  if (slot == profiler::kNoSlot) return;
  const std::uint64_t died = block.released_at.load(std::memory_order_relaxed);
  core_.profiler.freed(slot,
                       died == Block::kAlive ? core_.profiler.opCount() : died);
  block.profiler_slot.store(profiler::kNoSlot, std::memory_order_relaxed);
  residency_.countPrefetch(block);
}

void BlockTable::destroyAll(const Locked& locked) noexcept {
  released_.store(nullptr, std::memory_order_relaxed); // they are live_ too
  core_.records.clear();
  while (live_ != nullptr) destroy(locked, *live_);
}

} // namespace chameleon::memory
