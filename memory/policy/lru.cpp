#include "memory/policy/lru.h"

#include "backend/runtime/check.h"

namespace chameleon::memory {

LruPolicy::Entry LruPolicy::entryOf(Block& block) noexcept {
  return {block.last_use_tick.load(std::memory_order_relaxed),
          block.identity.load(std::memory_order_relaxed), &block};
}

bool LruPolicy::before(const Entry& a, const Entry& b) noexcept {
  if (a.tick != b.tick) return a.tick < b.tick;
  return a.identity < b.identity;
}

void LruPolicy::place(std::size_t slot, Entry entry) noexcept {
  entry.block->policy_slot = static_cast<std::uint32_t>(slot);
  heap_[slot] = entry;
}

void LruPolicy::siftUp(std::size_t slot, Entry entry) noexcept {
  while (slot > 0) {
    const std::size_t parent = (slot - 1) / 2;
    if (!before(entry, heap_[parent])) break;
    place(slot, heap_[parent]);
    slot = parent;
  }
  place(slot, entry);
}

void LruPolicy::siftDown(std::size_t slot, Entry entry) noexcept {
  for (;;) {
    std::size_t child = 2 * slot + 1;
    if (child >= heap_.size()) break;
    if (child + 1 < heap_.size() && before(heap_[child + 1], heap_[child])) {
      ++child;
    }
    if (!before(heap_[child], entry)) break;
    place(slot, heap_[child]);
    slot = child;
  }
  place(slot, entry);
}

void LruPolicy::remove(std::size_t slot) noexcept {
  heap_[slot].block->policy_slot = profiler::kNone;
  const Entry last = heap_.back();
  heap_.pop_back();
  if (slot == heap_.size()) return;
  if (slot > 0 && before(last, heap_[(slot - 1) / 2])) {
    siftUp(slot, last);
  } else {
    siftDown(slot, last);
  }
}

void LruPolicy::entered(Block& block) {
  CHAMELEON_CHECK(block.policy_slot == profiler::kNone,
                  "a block entered twice");
  const Entry entry = entryOf(block);
  heap_.push_back(entry);
  siftUp(heap_.size() - 1, entry);
}

void LruPolicy::left(Block& block) noexcept {
  if (block.policy_slot != profiler::kNone) remove(block.policy_slot);
}

Block* LruPolicy::nextVictim(Usable usable, const Need& /*need*/) {
  Block* found = nullptr;
  while (!heap_.empty()) {
    Block& block = *heap_.front().block;
    const Entry now = entryOf(block);
    if (now.tick != heap_.front().tick ||
        now.identity != heap_.front().identity) {
      siftDown(0, now);
      continue;
    }
    if (usable(block)) {
      found = &block;
      break;
    }
    remove(0);
    skipped_.push_back(&block);
  }
  for (Block* block : skipped_) entered(*block);
  skipped_.clear();
  return found;
}

Block* LruPolicy::victim(Usable usable, const Need& need) {
  Block* const found = nextVictim(usable, need);
  if (found != nullptr) left(*found);
  return found;
}

} // namespace chameleon::memory
