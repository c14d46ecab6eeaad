#include "memory/call/overwrites.h"

#include "memory/space/fence_joiner.h"

namespace chameleon::memory {

void Overwrites::setOldBytesAside(const Locked& locked, CallState& call,
                                  Block& block) {
  call.old_bytes.push_front({&block, block.host, 0});
  HostPlaces::forget(locked, block);
}

std::size_t Overwrites::settleOldBytes(CallState& call) noexcept {
  if (call.old_bytes.empty()) return 0;
  Fence restored;
  std::size_t freed = 0;
  {
    const PagerLock locked(core_);
    const Position kernel = core_.streams.advance(call.stream);
    for (CallState::OldBytes& old : call.old_bytes) {
      Block& block = *old.block;
      // mutant: smaller-result
      if (old.keep_from < block.bytes) {
        Fence before = core_.uses().usesOf(block);
        core_.uses().addTo(before, kernel);
        core_.uses().addTo(before, old.host.ready);
        const runtime::Copy copy{block.device_address + old.keep_from,
                                 old.host.address + old.keep_from,
                                 block.bytes - old.keep_from};
        Position done;
        const bool failed =
            !residency_.transfers().in({&copy, 1}, before, done).ok();
        if (!done.none()) old.host.read = done; // behind the former
        if (failed) {
          core_.uses().addTo(before, old.host.read);
          if (const std::size_t left = leaveOnHost(locked, call, old, before)) {
            freed += left;
            continue;
          }
        }
        if (!done.none()) {
          block.last_write.store(done.word, std::memory_order_release);
          core_.uses().addTo(restored, done);
          core_.counters.bytes_in.fetch_add(
              static_cast<std::int64_t>(copy.bytes), std::memory_order_relaxed);
        }
      } else if (old.host.read.none()) {
        (void)residency_.host().cancelCopyOut(locked, old.host.ready,
                                              old.host.address, block.bytes);
      }
      Fence host_uses;
      core_.uses().addTo(host_uses, old.host.ready);
      core_.uses().addTo(host_uses, old.host.read);
      core_.host_pool->free(old.host.extent, host_uses);
    }
  }
  call.old_bytes.clear();
  if (core_.waitFor(call.stream, restored)) {
    // Calls wait for the copies by themselves; what else the user submits to
    // the stream does not.
    (void)memory::synchronize(core_.streams, restored).ok();
  }
  return freed;
}

// The old bytes cannot be brought back to HBM: the block goes to where they
// are. What was overwritten of it goes there too; where not even that can be
// done its bytes are lost. `uses`: all work on the block, and on its old bytes.
// 0: other calls have it pinned, so that what it holds is theirs to say.
std::size_t Overwrites::leaveOnHost(const Locked& locked, CallState& call,
                                    const CallState::OldBytes& old,
                                    const Fence& uses) noexcept {
  Block& block = *old.block;
  std::uint64_t pins = 0;
  for (const Operand& operand : call.pins) pins += operand.block == &block;
  HostPlace place = old.host;
  bool complete = old.keep_from == 0;
  if (!complete) {
    const runtime::Copy copy{place.address, block.device_address,
                             old.keep_from};
    Position done;
    complete = residency_.transfers().out({&copy, 1}, uses, done).ok();
    if (!done.none()) place.ready = done; // behind the former, on that stream
  }
  return residency_.evictTo(locked, block, pins, place, uses, complete)
             ? dropPins(call, block)
             : 0;
}

// All that the call has of the block, whose word says so already.
std::size_t Overwrites::dropPins(CallState& call, Block& block) noexcept {
  const auto is_pin = [&](const Operand& pin) { return pin.block == &block; };
  for (;;) {
    const std::size_t index = call.pins.findIf(is_pin);
    if (index == call.pins.size()) return block.rounded_bytes;
    call.pins.remove(index);
  }
}

} // namespace chameleon::memory
