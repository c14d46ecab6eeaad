// Out of HBM: evictions, and the host memory they need.
#include "backend/runtime/check.h"
#include "memory/pager_hot.h"

namespace chameleon::memory {

using runtime::Error;

// Takes an unpinned Resident block out of HBM; its extent is free at once,
// behind a fence. Anything but kDone leaves the block as it was.
PagerImpl::Evicted PagerImpl::evict(Block& block, Shortage& shortage,
                                    Decision why) {
  std::uint64_t word = block.word.load(std::memory_order_acquire);
  if (Block::stateOf(word) != Residency::kResident ||
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
          word, Block::stateBits(Residency::kEvicting),
          std::memory_order_acq_rel)) {
    if (!clean) host_pool_->free(place.extent, {});
    return Evicted::kBusy;
  }
  arena_->keepFreedApart();
  Fence uses = usesOf(block);
  if (clean) {
    unlinkCopy(block);
    counters_.clean_evictions.fetch_add(1, std::memory_order_relaxed);
  } else {
    Fence before = writesOf(block);
    addTo(before, place.extent->fence);
    const runtime::Copy copy{place.address, block.device_address, block.bytes};
    Position done;
    if (Error error = transfers_.out({&copy, 1}, before, done)) {
      // A part may be under way: it reads the block and writes the place.
      Fence maybe;
      addTo(maybe, done);
      host_pool_->free(place.extent, maybe);
      if (!done.none()) stamp(block, done);
      block.word.store(Block::stateBits(Residency::kResident),
                       std::memory_order_release);
      shortage.failure = std::move(error);
      return Evicted::kFailed;
    }
    place.extent->fence.clear();
    block.host = place.extent;
    block.host_address = place.address;
    block.host_ready = done;
    addTo(uses, done);
    counters_.bytes_out.fetch_add(static_cast<std::int64_t>(block.bytes),
                                  std::memory_order_relaxed);
  }
  counters_.evictions.fetch_add(1, std::memory_order_relaxed);
  note(why, block, clean ? 0 : block.bytes.load(std::memory_order_relaxed));
  countPrefetch(block);
  block.copied_ahead = false; // the extent's next owner waits for it
  policy_->left(block);
  arena_->free(block.device, uses);
  block.device = nullptr;
  block.device_address = nullptr;
  clearUses(block);
  if (timelines_.passed(block.host_ready)) {
    block.word.store(Block::stateBits(Residency::kHost),
                     std::memory_order_release);
  }
  return Evicted::kDone;
}

// Evicts the block that the policy would miss least. False: none can be
// evicted; `shortage` says why, if it is not for pins alone.
bool PagerImpl::evictNext(Shortage& shortage) {
  if (giveBackSpares()) {
    shortage = {};
    return true;
  }
  const auto usable = [](const Block& block) {
    const std::uint64_t word = block.word.load(std::memory_order_relaxed);
    return Block::stateOf(word) == Residency::kResident &&
           Block::pinsOf(word) == 0;
  };
  Shortage why;
  bool done = false;
  set_aside_.clear();
  while (!done) {
    Block* const victim = policy_->victim(usable);
    if (victim == nullptr) break;
    const Evicted result = evict(*victim, why);
    done = result == Evicted::kDone;
    if (!done) set_aside_.push_back(victim);
    // Where the host is full the next victim may still be a clean one.
    if (result == Evicted::kHostFull) why.host_full = true;
    if (result == Evicted::kFailed) break;
  }
  for (Block* block : set_aside_) policy_->entered(*block);
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
  block.older_copy = newest_copy_;
  block.newer_copy = nullptr;
  (newest_copy_ != nullptr ? newest_copy_->newer_copy : oldest_copy_) = &block;
  newest_copy_ = &block;
}

void PagerImpl::unlinkCopy(Block& block) noexcept {
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
