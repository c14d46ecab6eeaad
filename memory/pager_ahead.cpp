// Ahead of need: the profiler sees each op, and what the policy wants before
// it is carried out. Nothing here waits on the host, and nothing that fails
// matters: what was not moved ahead is moved when it is needed.
#include <utility>
#include <vector>

#include "memory/pager_hot.h"
#include "memory/phase_range.h"

namespace chameleon::memory {

PolicyInputs PagerImpl::policyInputs() noexcept {
  return {profiler_,
          durations_,
          gate_,
          link_,
          limits_.hbm_budget_bytes,
          runtime_.modelsTime(),
          recompute_};
}

bool PagerImpl::isReleased(const void* block) noexcept {
  return static_cast<const Block*>(block)->released_at.load(
             std::memory_order_relaxed) != Block::kAlive;
}

// The storage of this identity is gone, if there was one.
void PagerImpl::forgetDead(Block& block) noexcept {
  const profiler::BlockSlot slot =
      block.profiler_slot.load(std::memory_order_relaxed);
  if (slot == profiler::kNoSlot) return;
  const std::uint64_t died = block.released_at.load(std::memory_order_relaxed);
  profiler_.freed(slot, died == Block::kAlive ? profiler_.opCount() : died);
  block.profiler_slot.store(profiler::kNoSlot, std::memory_order_relaxed);
  countPrefetch(block);
}

bool PagerImpl::fulfil(const Call& call) {
  const PhaseRange range("follow the plan");
  const Lock lock(*this);
  drainReleased();
  wishes_.clear();
  const bool recorded = policy_->wishes(call.ticket_, wishes_);
  Shortage ignored;
  for (std::size_t i = 0; i < wishes_.size(); ++i) {
    const Wish& wish = wishes_[i];
    Block& block = *wish.block;
    const bool meant =
        block.identity.load(std::memory_order_relaxed) == wish.identity &&
        (block.released_at.load(std::memory_order_relaxed) == Block::kAlive ||
         Recreation::isHeld(block));
    // Of one batch, and not the last of it.
    const bool goes_on = i + 1 < wishes_.size() && wishes_[i + 1].joined &&
                         wishes_[i + 1].kind == wish.kind;
    switch (wish.kind) {
      case Action::Kind::kWriteBack:
        if (meant) beginWriteBack(block);
        if (!goes_on) (void)copyOut(ignored);
        break;
      case Action::Kind::kRelease:
        if (meant) (void)evict(block, ignored, Decision::kRelease);
        break;
      case Action::Kind::kFetch:
        if (meant && mayFetchAhead(block)) {
          block.claims = 1; // once; no victim, and not moved by compaction
          ahead_.push_back({&block, false, true, false, nullptr});
        }
        if (!goes_on) fetchAhead(wish.needed_at);
        break;
      case Action::Kind::kDrop:
        if (meant) (void)drop(block);
        break;
    }
  }
  return recorded;
}

// Makes a Resident block clean while it stays where it is, with the next
// copyOut(). An op that writes it afterwards goes through the lock, drops the
// copy and waits for it.
void PagerImpl::beginWriteBack(Block& block) {
  std::uint64_t word = block.word.load(std::memory_order_acquire);
  if ((word & ~Block::kRecordedBit) != kIdle) return; // or in use
  Shortage shortage;
  const HostPool::Place place = hostPlace(block.rounded_bytes, shortage);
  if (place.extent == nullptr) return;
  if (!block.word.compare_exchange_strong(word, word | Block::kHostCopyBit,
                                          std::memory_order_acq_rel)) {
    host_pool_->free(place.extent, {});
    return;
  }
  outs_.push_back({&block, place, Decision::kWriteBack});
}

bool PagerImpl::mayFetchAhead(Block& block) noexcept {
  return (block.state() == BlockState::kHost ||
          block.state() == BlockState::kEvicting) &&
         !block.host_writing && block.claims == 0;
}

// Fetches what is in `ahead_` in one batch, as far as there is room.
void PagerImpl::fetchAhead(std::uint64_t needed_at) {
  if (ahead_.empty()) return;
  room_needed_at_ = needed_at;
  Shortage shortage;
  std::swap(wanted_, ahead_);
  std::int64_t bytes = 0;
  for (Wanted& wanted : wanted_) {
    Block& block = *wanted.block;
    wanted.extent = place(block.rounded_bytes, End::kBottom, ExtentUse::kBlock,
                          kCopyIn, shortage);
    if (wanted.extent == nullptr) break;
    wanted.extent->block = &block;
    bytes += static_cast<std::int64_t>(block.bytes);
  }
  room_needed_at_ = 0;
  while (!wanted_.empty() && wanted_.back().extent == nullptr) {
    wanted_.back().block->claims = 0;
    wanted_.pop_back();
  }
  const bool fetched = !wanted_.empty() && fetchMissing(shortage);
  for (const Wanted& wanted : wanted_) {
    Block& block = *wanted.block;
    block.claims = 0;
    if (!fetched) {
      wanted.extent->block = nullptr;
      arena_->free(wanted.extent, {});
      continue;
    }
    block.device = wanted.extent;
    block.device_address = arena_->address(*wanted.extent);
    block.prefetched_tick = ticks_.load(std::memory_order_relaxed);
    block.become(Block::stateBits(BlockState::kResident) | Block::kHostCopyBit);
    linkCopy(block);
    note(Decision::kFetch, block, block.bytes);
    policy_->entered(block);
  }
  if (fetched) {
    counters_.prefetched_bytes.fetch_add(bytes, std::memory_order_relaxed);
  }
  wanted_.clear();
  std::swap(wanted_, ahead_);
  ahead_.clear();
}

} // namespace chameleon::memory
