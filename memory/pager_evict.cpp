// Out of HBM: evictions, and the host memory they need.
#include "backend/runtime/check.h"
#include "memory/pager_hot.h"
#include "memory/phase_range.h"
#include "memory/policy/planner.h"

namespace chameleon::memory {

using runtime::Error;

bool PagerImpl::evictable(const Block& block) noexcept {
  const std::uint64_t word = block.word.load(std::memory_order_relaxed);
  return Block::stateOf(word) == BlockState::kResident &&
         Block::pinsOf(word) == 0;
}

// Takes an unpinned Resident block out of HBM; its extent is free at once,
// behind a fence. Anything but kDone leaves the block as it was.
PagerImpl::Evicted PagerImpl::evict(Block& block, Shortage& shortage,
                                    Decision why) {
  const Evicted result = beginEvict(block, shortage, why);
  return copyOut(shortage) ? result : Evicted::kFailed;
}

// A clean block leaves at once, a dirty one with the next copyOut().
PagerImpl::Evicted PagerImpl::beginEvict(Block& block, Shortage& shortage,
                                         Decision why) {
  std::uint64_t word = block.word.load(std::memory_order_acquire);
  if (Block::stateOf(word) != BlockState::kResident ||
      Block::pinsOf(word) != 0) {
    return Evicted::kBusy;
  }
  const bool clean = (word & Block::kHostCopyBit) != 0;
  HostPool::Place place;
  if (!clean) {
    place = hostPlace(block.rounded_bytes, shortage);
    if (place.extent == nullptr) return Evicted::kHostFull;
  }
  // From here on no thread without the lock can pin it; one that was faster
  // makes this fail.
  if (!block.word.compare_exchange_strong(
          word,
          Block::stateBits(BlockState::kEvicting) |
              (word & Block::kRecordedBit),
          std::memory_order_acq_rel)) {
    if (!clean) host_pool_->free(place.extent, {});
    return Evicted::kBusy;
  }
  if (clean) {
    unlinkCopy(block);
    counters_.clean_evictions.fetch_add(1, std::memory_order_relaxed);
    note(why, block, 0);
    vacate(block, {});
  } else {
    outs_.push_back({&block, place, why});
  }
  return Evicted::kDone;
}

// Gives the blocks in `outs_` their host copies, in one batch. False: none of
// them has changed, or has one.
bool PagerImpl::copyOut(Shortage& shortage) {
  if (outs_.empty()) return true;
  copies_.clear();
  Fence before;
  for (const CopyOut& out : outs_) {
    const Block& block = *out.block;
    addTo(before, writesOf(block));
    addTo(before, out.place.extent->fence);
    copies_.push_back({out.place.address, block.device_address, block.bytes});
  }
  Position done;
  Error error = transfers_.out(copies_, before, done);
  for (const CopyOut& out : outs_) {
    Block& block = *out.block;
    const bool leaves = out.why != Decision::kWriteBack;
    if (error) {
      // A part may be under way: it reads the block and writes the place.
      if (!done.none()) stamp(block, done);
      Fence maybe;
      addTo(maybe, done);
      host_pool_->free(out.place.extent, maybe);
      if (leaves) {
        block.become(kIdle);
      } else {
        block.word.fetch_and(~Block::kHostCopyBit, std::memory_order_acq_rel);
      }
      continue;
    }
    out.place.extent->fence.clear();
    block.host = out.place.extent;
    block.host_address = out.place.address;
    block.host_ready = done;
    block.host_read = {};
    note(out.why, block, block.bytes);
    counters_.bytes_out.fetch_add(static_cast<std::int64_t>(block.bytes),
                                  std::memory_order_relaxed);
    if (leaves) {
      vacate(block, done);
    } else {
      stamp(block, done); // who gets the extent next waits
      block.copied_ahead = true;
      linkCopy(block);
    }
  }
  outs_.clear();
  if (!error) return true;
  shortage.failure = std::move(error);
  return false;
}

// From now on it matters what lies where.
void PagerImpl::blocksLeave() noexcept {
  arena_->keepFreedApart();
  large_room_.store(admission_.budgetBytes() / kLargeShare,
                    std::memory_order_relaxed);
}

// The block has a host copy, or will have after `copied`; its extent goes.
void PagerImpl::vacate(Block& block, Position copied) {
  Fence uses = usesOf(block);
  addTo(uses, copied);
  counters_.evictions.fetch_add(1, std::memory_order_relaxed);
  countPrefetch(block);
  block.copied_ahead = false; // the extent's next owner waits for it
  policy_->left(block);
  blocksLeave();
  arena_->free(block.device, uses);
  block.device = nullptr;
  block.device_address = nullptr;
  clearUses(block);
  if (timelines_.passed(block.host_ready)) {
    block.become(Block::stateBits(BlockState::kHost));
  }
}

// Evicts what the policy would miss least, `bytes` or more; small blocks that
// follow each other share a batch. `piece_bytes`: as Policy::Need says. False:
// none can be evicted; `shortage` says why, if it is not for pins alone.
bool PagerImpl::evictNext(Shortage& shortage, std::size_t bytes,
                          std::size_t piece_bytes) {
  if (giveBackSpares()) {
    shortage = {};
    return true;
  }
  const PhaseRange range("evict");
  const LinkModel link = link_.now();
  // As in plans: a batch's room is free when all of it is copied.
  const auto batch_bytes =
      static_cast<std::size_t>(PlannerOptions::kBatchLatencies *
                               link.latency_ns * link.out_bytes_per_ns);
  const Policy::Need need{room_needed_at_, piece_bytes};
  Shortage why;
  bool done = false;
  std::size_t chosen_bytes = 0;
  std::size_t out_bytes = 0; // of the open batch
  set_aside_.clear();
  const auto close = [&] {
    const std::size_t others = set_aside_.size();
    for (const CopyOut& out : outs_) set_aside_.push_back(out.block);
    if (!copyOut(why)) return false; // they stay
    done = done || set_aside_.size() > others;
    set_aside_.resize(others);
    out_bytes = 0;
    return true;
  };
  while (chosen_bytes < bytes) {
    Block* const victim = policy_->victim(&evictable, need);
    if (victim == nullptr) break;
    const std::size_t victim_bytes = victim->rounded_bytes;
    if (piece_bytes != 0 && chosen_bytes != 0 && victim_bytes > bytes) {
      // Enough is free as it is: first look whether moves do by now.
      set_aside_.push_back(victim);
      break;
    }
    if (out_bytes + victim_bytes > batch_bytes && !close()) {
      set_aside_.push_back(victim);
      break;
    }
    const std::size_t outs = outs_.size();
    const Evicted result = beginEvict(*victim, why, Decision::kVictim);
    // Where the host is full the next victim may still be a clean one.
    if (result == Evicted::kHostFull) why.host_full = true;
    if (result != Evicted::kDone) {
      set_aside_.push_back(victim);
      continue;
    }
    chosen_bytes += victim_bytes;
    if (outs_.size() > outs) {
      out_bytes += victim_bytes;
    } else {
      done = true;
    }
  }
  (void)close();
  for (Block* block : set_aside_) policy_->entered(*block);
  if (!done && why.host_full && !why.failure) done = giveUpForHost(bytes);
  if (done) why = {};
  shortage = std::move(why);
  return done;
}

// Room on the host; clean copies of resident blocks make way for it, the
// oldest first.
HostPool::Place PagerImpl::hostPlace(std::size_t bytes, Shortage& shortage) {
  for (;;) {
    const HostPool::Place place = host_pool_->allocate(bytes);
    if (place.extent != nullptr) return place;
    if (!dropOldestHostCopy()) break;
  }
  if (const Error& error = host_pool_->lastError()) {
    shortage.failure = Error(error.code(), error.message());
  }
  return {};
}

bool PagerImpl::dropOldestHostCopy() noexcept {
  Block* block = oldest_copy_;
  while (block != nullptr && block->host_pins > 0) block = block->newer_copy;
  if (block == nullptr) return false;
  dropHostCopy(*block);
  return true;
}

void PagerImpl::linkCopy(Block& block) noexcept {
  copy_bytes_ += block.rounded_bytes;
  block.older_copy = newest_copy_;
  block.newer_copy = nullptr;
  (newest_copy_ != nullptr ? newest_copy_->newer_copy : oldest_copy_) = &block;
  newest_copy_ = &block;
}

void PagerImpl::unlinkCopy(Block& block) noexcept {
  copy_bytes_ -= block.rounded_bytes;
  (block.older_copy != nullptr ? block.older_copy->newer_copy : oldest_copy_) =
      block.newer_copy;
  (block.newer_copy != nullptr ? block.newer_copy->older_copy : newest_copy_) =
      block.older_copy;
  block.older_copy = nullptr;
  block.newer_copy = nullptr;
}

// Failures do not matter here: what could not be evicted stays.
void PagerImpl::applyStress() {
  Shortage ignored;
  switch (stress_) {
    case Pager::Stress::kNever:
      break;
    case Pager::Stress::kAll:
      while (evictNext(ignored)) {
      }
      break;
    case Pager::Stress::kRandom:
      giveBackSpares();
      for (Block* block = live_; block != nullptr; block = block->next_live) {
        if (stress_random_() % 2 == 0) (void)evict(*block, ignored);
      }
      break;
  }
}

} // namespace chameleon::memory
