// A block: the unit of residency. Each live, non-empty storage has one; some
// outlive it, as spare blocks or held by records (block_table.h). It has no
// fixed place; this struct says where its bytes are and what must be waited
// for before they are touched.
//
// States and who may change them (only the pager, under its lock, except the
// pin count):
//
//   Unbacked --pin--> Resident --evict--> Evicting --> Host
//                        ^                    |          |
//                        +---- Fetching <-----+----------+
//
// A clean block goes from Resident to Host at once. Where HBM is full, a host
// thread's write() makes an Unbacked block Host. Resident, Host and Evicting
// become Dropped, and Dropped becomes Resident or Host when the ops have run
// again: as they left the block. A block that is lost becomes Unbacked.
//
//   Unbacked  no bytes anywhere: nothing was written yet
//   Resident  bytes in `device` (once last_write has passed); with the
//             host-copy bit an equal copy is in `host` too
//   Evicting  bytes are being written to `host`; `device` is given back
//   Host      bytes in `host` only
//   Fetching  `device` is being given its bytes, from `host` or by compaction:
//             seen only by threads without the lock, which then come for it
//   Dropped   bytes nowhere: the ops that made them are run again when an op
//             needs them (recompute_records.h)
//
// Invariants (memory/invariants.h checks them):
//   B1 device != null exactly in Resident and Fetching
//   B2 host.extent != null exactly in Host and Evicting, and in Resident when
//   the
//      host-copy bit is set
//   B3 pins > 0 only in Resident (Fetching: pins of the call that begins)
//   B4 both extents are the block's and have rounded_bytes, so the alignment
//      class never changes over a move
//
// Hot path: `word` packs state, the host-copy bit and the pin count, so an op
// whose operands are Resident pins with one compare-and-swap and no lock.
//
// Thread safety: `word` is atomic; each group of members says who may use it.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "memory/space/extent.h"
#include "memory/streams/fence.h"
#include "profiler/live_blocks.h"

namespace chameleon::memory {

class Pager;
struct Lineage;

enum class BlockState : std::uint8_t {
  kUnbacked,
  kResident,
  kHost,
  kFetching,
  kEvicting,
  kDropped,
};

// Where a block's bytes are on the host, and which copies are at them.
struct HostPlace {
  Extent* extent = nullptr; // in the host pool; null: there is none
  std::byte* address = nullptr;
  Position ready; // the copy that fills it; a fetch waits
  Position read;  // the latest fetch from it: it may run still, so who frees or
                  // fills the place waits for it
};

struct Block {
  // ---- word:
  // [63..43 unused | 42 mirrored | 41 recorded | 40 freed | 39..32 state | 31
  // host copy | 30..0 pins]
  static constexpr std::uint64_t kPinMask = 0x7fffffff;
  static constexpr std::uint64_t kHostCopyBit = std::uint64_t{1} << 31;
  static constexpr unsigned kStateShift = 32;
  // In-call memory that another thread freed; the call finds it at its end.
  static constexpr std::uint64_t kFreedBit = std::uint64_t{1} << 40;
  // Part of a record (recompute_records.h): who writes it comes for the lock.
  // Changed under the lock, whatever the state.
  static constexpr std::uint64_t kRecordedBit = std::uint64_t{1} << 41;
  // To be copied before it is written (mirror/): who writes it comes for the
  // lock. Changed under the lock, whatever the state.
  static constexpr std::uint64_t kMirroredBit = std::uint64_t{1} << 42;
  // What stays as it is where the state changes.
  static constexpr std::uint64_t kKeptBits = kRecordedBit | kMirroredBit;
  static constexpr std::size_t kUseSlots = 3;
  static constexpr std::uint64_t kAlive = ~std::uint64_t{0};

  // The word of a Resident block that nobody pins and nothing else is true of.
  static constexpr std::uint64_t kIdle =
      static_cast<std::uint64_t>(BlockState::kResident) << kStateShift;

  static constexpr std::uint64_t stateBits(BlockState state) {
    return static_cast<std::uint64_t>(state) << kStateShift;
  }
  static constexpr BlockState stateOf(std::uint64_t word) {
    return static_cast<BlockState>((word >> kStateShift) & 0xff);
  }
  static constexpr std::uint32_t pinsOf(std::uint64_t word) {
    return static_cast<std::uint32_t>(word & kPinMask);
  }
  BlockState state() const noexcept {
    return stateOf(word.load(std::memory_order_acquire));
  }
  std::uint32_t pins() const noexcept {
    return pinsOf(word.load(std::memory_order_acquire));
  }
  // State, host copy and pins at once, by who alone may change them.
  void become(std::uint64_t bits) noexcept {
    const std::uint64_t old = word.load(std::memory_order_relaxed);
    word.store(bits | (old & kKeptBits), std::memory_order_release);
  }
  // Its storage died.
  bool isReleased() const noexcept {
    return released_at.load(std::memory_order_relaxed) != kAlive;
  }
  bool isMirrored() const noexcept {
    return (word.load(std::memory_order_acquire) & kMirroredBit) != 0;
  }
  bool hasHostCopy() const noexcept {
    return (word.load(std::memory_order_acquire) & kHostCopyBit) != 0;
  }

  std::atomic<std::uint64_t> word{0};

  // ---- fixed when it was made
  Pager* pager = nullptr;
  std::byte* logical_address = nullptr; // what tensors show; inaccessible
  std::size_t rounded_bytes = 0;        // what an extent for it takes

  // ---- fixed at birth; a spare block (spare_blocks.h) is born again
  std::atomic<std::size_t> bytes{0};      // as asked, unrounded
  std::atomic<std::uint64_t> identity{0}; // order of birth, never used again

  // ---- place: guarded by the pager's lock; `device_address` may also be read
  // by whoever holds a pin.
  std::byte* device_address = nullptr;
  Extent* device = nullptr;
  HostPlace host;
  std::uint32_t host_pins = 0; // host threads that use the host copy
  // How many operands of the call that begins just now are this block.
  std::uint32_t claims = 0;
  // Calls that need this block, and first run again the ops that make their
  // other operands. It must not be dropped meanwhile.
  std::uint32_t awaited = 0;
  bool host_writing = false; // a host thread writes the host copy
  // `host` was filled by a write back, while the block was Resident. That copy
  // may still run, and last_write does not cover it.
  bool copied_ahead = false;
  // Unbacked, since the device failed to give the bytes back; until something
  // overwrites it all.
  bool lost = false;

  // ---- use: written at unpin without the lock. last_write also covers what
  // the pager wrote (fetch, move) or left to be waited for in a new extent: a
  // call on any stream waits for it, and then for nothing else.
  std::atomic<std::uint64_t> last_write{0}; // Position::word
  std::array<std::atomic<std::uint64_t>, kUseSlots> last_use{}; // per stream
  std::atomic<std::uint64_t> last_use_tick{0}; // pager's count of calls
  std::atomic<std::uint64_t> version{0};       // bumped by each op that writes
  // What the profiler knows it by (a policy may read it while a spare block is
  // born again); its count of ops when the storage died, or kAlive; the tick of
  // the last fetch ahead, until it is known to have been of use.
  std::atomic<profiler::BlockSlot> profiler_slot{profiler::kNoSlot};
  std::atomic<std::uint64_t> released_at{kAlive};
  std::uint64_t prefetched_tick = 0;
  // An op on it was deferred, by who calls the pager: who uses the bytes lets
  // that run first. To the pager it is nothing but that a mirror awaits it.
  std::atomic<bool> has_deferred_op{false};

  // ---- links, guarded by the pager's lock (next_released: by whoever took
  // the block out of the stack of released or out of the spare ones)
  Block* next_released = nullptr;
  Block* previous_live = nullptr;
  Block* next_live = nullptr;
  Block* older_copy = nullptr; // list of resident blocks with a host copy
  Block* newer_copy = nullptr;
  std::uint32_t policy_slot = ~std::uint32_t{0}; // the policy's own index
  Lineage* lineage = nullptr; // null exactly without kRecordedBit
};

} // namespace chameleon::memory
