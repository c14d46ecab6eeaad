// Into HBM: fetches, and what an extent's new block has to wait for.
#include "backend/runtime/check.h"
#include "backend/runtime/options.h"
#include "memory/fence_joiner.h"
#include "memory/pager_hot.h"
#include "memory/phase_range.h"

namespace chameleon::memory {

using runtime::Error;

// Gives the placed extents their bytes, in one batch, or leaves everything as
// it was. Afterwards last_write of each block covers all that a user of the
// block has to wait for.
bool PagerImpl::fetchMissing(Shortage& shortage) {
  copies_.clear();
  Fence before;
  std::int64_t bytes = 0;
  for (const Wanted& wanted : wanted_) {
    if (!wanted.fetched()) continue;
    Block& block = *wanted.block;
    copies_.push_back(
        {arena_->address(*wanted.extent), block.host_address, block.bytes});
    addTo(before, wanted.extent->fence);
    addTo(before, block.host_ready);
    bytes += static_cast<std::int64_t>(block.bytes);
  }
  Position fetched;
  if (!copies_.empty()) {
    const PhaseRange range("fetch");
    Error error = transfers_.in(copies_, before, fetched);
    if (error) {
      // Some of the copies may be under way, from and to all these places.
      for (const Wanted& wanted : wanted_) {
        if (!wanted.fetched()) continue;
        addTo(wanted.extent->fence, fetched);
        if (!fetched.none()) wanted.block->host_read = fetched;
      }
      shortage.failure = std::move(error);
      return false;
    }
    counters_.bytes_in.fetch_add(bytes, std::memory_order_relaxed);
  }
  for (const Wanted& wanted : wanted_) {
    if (!wanted.missing) continue;
    if (wanted.fetched()) wanted.block->host_read = fetched;
    Fence& earlier = wanted.extent->fence;
    const Position ready = wanted.fetched() ? fetched : join(earlier);
    earlier.clear();
    wanted.block->last_write.store(ready.word, std::memory_order_release);
  }
  return true;
}

// The block is about to be overwritten: its host copy is the call's until then.
void PagerImpl::setOldBytesAside(Call& call, Block& block) {
  call.old_bytes_.push_front({&block, block.host, block.host_address,
                              block.host_ready, block.host_read, 0});
  block.host = nullptr;
  block.host_address = nullptr;
  block.host_ready = {};
  block.host_read = {};
}

// What was not overwritten gets its old bytes, behind all that the call did and
// before all that its stream does next. REQUIRES: it still pins the blocks.
std::size_t PagerImpl::settleOldBytes(Call& call) noexcept {
  if (call.old_bytes_.empty()) return 0;
  Fence restored;
  std::size_t freed = 0;
  {
    const Lock lock(*this);
    const Position kernel = timelines_.advance(call.stream_);
    for (Call::OldBytes& old : call.old_bytes_) {
      Block& block = *old.block;
      if (old.keep_from < block.bytes) {
        Fence before = usesOf(block);
        addTo(before, kernel);
        addTo(before, old.ready);
        const runtime::Copy copy{block.device_address + old.keep_from,
                                 old.address + old.keep_from,
                                 block.bytes - old.keep_from};
        Position done;
        const bool failed = !transfers_.in({&copy, 1}, before, done).ok();
        if (!done.none()) old.read = done; // behind the former
        if (failed) {
          addTo(before, old.read);
          if (const std::size_t left = leaveOnHost(call, old, before)) {
            freed += left;
            continue;
          }
        }
        if (!done.none()) {
          block.last_write.store(done.word, std::memory_order_release);
          addTo(restored, done);
          counters_.bytes_in.fetch_add(static_cast<std::int64_t>(copy.bytes),
                                       std::memory_order_relaxed);
        }
      } else if (old.read.none()) {
        (void)cancelCopyOut(old.ready, old.address, block.bytes);
      }
      Fence host_uses;
      addTo(host_uses, old.ready);
      addTo(host_uses, old.read);
      host_pool_->free(old.host, host_uses);
    }
  }
  call.old_bytes_.clear();
  if (waitFor(call.stream_, restored)) {
    // Calls wait for the copies by themselves; what else the user submits to
    // the stream does not.
    (void)memory::synchronize(timelines_, restored).ok();
  }
  return freed;
}

// The old bytes cannot be brought back to HBM: the block goes to where they
// are. What was overwritten of it goes there too; where not even that can be
// done its bytes are lost. `uses`: all work on the block, and on its old bytes.
// 0: other calls have it pinned, so that what it holds is theirs to say.
std::size_t PagerImpl::leaveOnHost(Call& call, const Call::OldBytes& old,
                                   const Fence& uses) noexcept {
  Block& block = *old.block;
  std::uint64_t pins = 0;
  for (const Operand& operand : call.pins_) pins += operand.block == &block;
  Position ready = old.ready;
  bool complete = old.keep_from == 0;
  if (!complete) {
    const runtime::Copy copy{old.address, block.device_address, old.keep_from};
    Position done;
    complete = transfers_.out({&copy, 1}, uses, done).ok();
    if (!done.none()) ready = done; // behind old.ready, on the same stream
  }
  std::uint64_t word = kIdle | pins;
  if (!block.word.compare_exchange_strong(
          word, Block::stateBits(BlockState::kEvicting),
          std::memory_order_acq_rel)) {
    return 0;
  }
  const std::size_t freed = dropPins(call, block);
  for (const Position position : uses.slots()) stamp(block, position);
  if (complete) {
    block.host = old.host;
    block.host_address = old.address;
    block.host_ready = ready;
    block.host_read = old.read;
    vacate(block, ready);
  } else {
    Fence all = uses;
    addTo(all, ready);
    vacate(block, ready);
    host_pool_->free(old.host, all);
    block.lost = true;
    block.word.store(Block::stateBits(BlockState::kUnbacked),
                     std::memory_order_release);
  }
  return freed;
}

// All that the call has of the block, whose word says so already.
std::size_t PagerImpl::dropPins(Call& call, Block& block) noexcept {
  const auto is_pin = [&](const Operand& pin) { return pin.block == &block; };
  for (;;) {
    const std::size_t index = call.pins_.findIf(is_pin);
    if (index == call.pins_.size()) return block.rounded_bytes;
    call.pins_.remove(index);
  }
}

// Among what the call that begins wants there is a block without its bytes.
bool PagerImpl::refuseLost(Shortage& shortage) const {
  for (const Wanted& wanted : wanted_) {
    if (!wanted.block->lost || wanted.overwrite) continue;
    shortage.failure = lostError(*wanted.block);
    return true;
  }
  return false;
}

Error PagerImpl::lostError(const Block& block) const {
  return {runtime::ErrorCode::kLost,
          name() + ": the value of a tensor of " +
              runtime::format_bytes(block.bytes) +
              " is lost: the device failed to bring it back when an op that "
              "was overwriting it had failed. Assign all of it anew (copy_, "
              "fill_, zero_), or load it from a checkpoint"};
}

// One position that covers a fence.
Position PagerImpl::join(const Fence& fence) noexcept {
  Position only;
  unsigned open = 0;
  for (const Position position : fence.slots()) {
    if (timelines_.passed(position)) continue;
    only = position;
    ++open;
  }
  if (open <= 1) return only;
  if (timelines_.wait(kCopyOut, fence)) {
    // The host waits instead. Where that fails too the device is lost.
    for (const Position position : fence.slots()) {
      (void)timelines_.synchronize(position).ok();
    }
    return {};
  }
  return timelines_.advance(kCopyOut);
}

// Evicting becomes Host once the copy has passed.
void PagerImpl::settle(Block& block) noexcept {
  if (block.state() != BlockState::kEvicting ||
      !timelines_.poll(block.host_ready)) {
    return;
  }
  block.become(Block::stateBits(BlockState::kHost));
}

// A copy out whose bytes nobody will read, if it has not begun. REQUIRES: no
// copy in of them was submitted. False: it runs, or has run.
bool PagerImpl::cancelCopyOut(Position done, const std::byte* destination,
                              std::size_t bytes) noexcept {
  if (timelines_.passed(done) ||
      !runtime_.cancel(timelines_.stream(kCopyOut), destination)) {
    return false;
  }
  counters_.bytes_out.fetch_sub(static_cast<std::int64_t>(bytes),
                                std::memory_order_relaxed);
  return true;
}

// The host copy of a Resident block is no longer needed or no longer right. A
// copy to it that has begun still reads the block: whoever uses that next waits
// for it too.
void PagerImpl::dropHostCopy(Block& block) noexcept {
  CHAMELEON_CHECK(block.host_pins == 0, "a host copy in use is dropped");
  if (block.copied_ahead && !timelines_.passed(block.host_ready) &&
      !cancelCopyOut(block.host_ready, block.host_address, block.bytes)) {
    Fence both;
    addTo(both, Position{block.last_write.load(std::memory_order_acquire)});
    addTo(both, block.host_ready);
    const Position joined = join(both);
    if (!joined.none()) {
      block.last_write.store(joined.word, std::memory_order_release);
    }
  }
  block.copied_ahead = false;
  unlinkCopy(block);
  block.word.fetch_and(~Block::kHostCopyBit, std::memory_order_acq_rel);
  host_pool_->free(block.host, hostUsesOf(block));
  block.host = nullptr;
  block.host_address = nullptr;
  block.host_ready = {};
  block.host_read = {};
}

} // namespace chameleon::memory
