#include "memory/block_uses.h"

namespace chameleon::memory {

void BlockUses::joinTo(Fence& fence, Position position) noexcept {
  // Where joining fails too the device is lost, and later calls say so.
  if (streams_.add(fence, position)) {
    (void)streams_.synchronize(position).ok();
  }
}

void BlockUses::addTo(Fence& fence, const Fence& other) noexcept {
  for (const Position position : other.slots()) addTo(fence, position);
}

void BlockUses::stampSlow(Block& block, Position position) noexcept {
  for (;;) {
    for (std::atomic<std::uint64_t>& slot : block.last_use) {
      std::uint64_t old = slot.load(std::memory_order_relaxed);
      while (Position{old}.stream() == position.stream() ||
             streams_.passed(Position{old})) {
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
    if (streams_.wait(kCopyOut, Position{old}) ||
        streams_.wait(kCopyOut, position)) {
      (void)streams_.synchronize(position).ok();
      return;
    }
    const Position joined = streams_.advance(kCopyOut);
    if (slot.compare_exchange_strong(old, joined.word,
                                     std::memory_order_release,
                                     std::memory_order_relaxed)) {
      return;
    }
  }
}

void BlockUses::clearUses(Block& block) noexcept {
  for (auto& slot : block.last_use) slot.store(0, std::memory_order_relaxed);
}

Fence BlockUses::usesOf(const Block& block) {
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

Fence BlockUses::writesOf(const Block& block) {
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

Fence BlockUses::hostUsesOf(const Block& block) {
  Fence fence;
  addTo(fence, block.host.ready);
  addTo(fence, block.host.read);
  return fence;
}

// One position that covers a fence.
Position BlockUses::join(const Fence& fence) noexcept {
  Position only;
  unsigned open = 0;
  for (const Position position : fence.slots()) {
    if (streams_.passed(position)) continue;
    only = position;
    ++open;
  }
  if (open <= 1) return only;
  if (streams_.wait(kCopyOut, fence)) {
    // The host waits instead. Where that fails too the device is lost.
    for (const Position position : fence.slots()) {
      (void)streams_.synchronize(position).ok();
    }
    return {};
  }
  return streams_.advance(kCopyOut);
}

} // namespace chameleon::memory
