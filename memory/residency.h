// Where blocks are. Everything that brings bytes into HBM, out of it, or to
// another place in it is a method here, so that no other part changes a block's
// places or takes it from one state to another; pins, and the bits that say
// that a block is freed or recorded, are changed by others too. What to move,
// and where to find room, others decide.
//
// Copies of several blocks are one batch: beginEvict() and beginWriteBack() add
// to the open batch, copyOut() submits it. Between two holds of the lock no
// batch is open.
//
// Thread safety: methods with a Locked need the pager's lock; the others may be
// called by any thread. The host waits for device work only where bytes on the
// host move, where an empty host slab is given back, and where streams cannot
// be made to wait for each other.
#pragma once

#include <atomic>
#include <cstddef>
#include <span>
#include <vector>

#include "memory/host_places.h"
#include "memory/pager_core.h"
#include "memory/room_request.h"
#include "memory/streams/transfers.h"
#include "memory/wanted_block.h"

namespace chameleon::memory {

class Residency {
 public:
  // REQUIRES: `core` and `timer` outlive it.
  Residency(PagerCore& core, OpTimer& timer);

  // ---- questions -----------------------------------------------------------
  // Resident, and nobody has it pinned.
  static bool evictable(const Block& block) noexcept;
  // The extent of a block that nobody but the call that begins has pinned, or
  // one that was placed for a missing operand of that call.
  static bool movable(const Extent& extent) noexcept;
  // The record could run again within the budget.
  static bool fits(const Record& record, std::size_t budget_bytes) noexcept;

  // ---- out of HBM ----------------------------------------------------------
  enum class Evicted {
    kDone,
    kBusy,     // it is pinned, or not Resident
    kHostFull, // no place for its bytes, even without clean copies
    kFailed,   // the runtime: `shortage` has its error
  };
  // Takes an unpinned Resident block out of HBM; its extent is free at once,
  // behind a fence. Anything but kDone leaves the block as it was.
  Evicted evict(const Locked& locked, Block& block, Shortage& shortage,
                Decision why = Decision::kVictim) REQUIRES(pager_lock);
  // A clean block leaves at once, a dirty one with the next copyOut().
  Evicted beginEvict(const Locked& locked, Block& block, Shortage& shortage,
                     Decision why) REQUIRES(pager_lock);
  // Makes a Resident block clean while it stays where it is, with the next
  // copyOut(). An op that writes it afterwards goes through the lock, drops the
  // copy and waits for it. A block that is in use, or has no hole on the host,
  // stays as it is: it is not worth a host wait.
  void beginWriteBack(const Locked& locked, Block& block) REQUIRES(pager_lock);
  // Submits the open batch. False: none of its blocks has changed.
  bool copyOut(const Locked& locked, Shortage& shortage) REQUIRES(pager_lock);
  // The blocks of the open batch.
  struct CopyOut {
    Block* block;
    HostPool::Place place;
    Decision why;
  };
  std::span<const CopyOut> batch(const Locked& /*locked*/) const noexcept
      REQUIRES(pager_lock) {
    return outs_;
  }
  // Gives a block's bytes up, wherever they are. False: it is in use, or cannot
  // be made again within the budget.
  bool drop(const Locked& locked, Block& block) REQUIRES(pager_lock);
  // Evicts a block that only this call has pinned, `pins` times, to where a
  // copy of its bytes is already.
  // `uses`: all work on the block and on that place.
  // `complete`: the place has all bytes. Else they are lost.
  // False: other calls have the block pinned too. Nothing was done.
  bool evictTo(const Locked& locked, Block& block, std::uint64_t pins,
               const HostPlace& place, const Fence& uses,
               bool complete) noexcept REQUIRES(pager_lock);

  // ---- into HBM ------------------------------------------------------------
  // Gives the placed extents of missing blocks their bytes, in one batch, or
  // leaves everything as it was. Afterwards last_write of each block covers all
  // that a user of the block has to wait for.
  bool fetch(const Locked& locked, std::span<const WantedBlock> wanted,
             Shortage& shortage) REQUIRES(pager_lock);
  // After that: the block is Resident in its extent, with so many pins.
  void markResident(const Locked& locked, const WantedBlock& wanted,
                    std::uint64_t pins, Decision why) REQUIRES(pager_lock);
  // A new block has the in-call extent, and one pin.
  void adoptExtent(const Locked& locked, Block& block, Extent* extent)
      REQUIRES(pager_lock);
  // The block's extent outlives it as a foreign one, in use up to `position`.
  void orphanExtent(const Locked& locked, Block& block,
                    Position position) noexcept REQUIRES(pager_lock);
  // The block's bytes are those of `fresh`, wherever they are; that has none.
  void takeOver(const Locked& locked, Block& block, Block& fresh)
      REQUIRES(pager_lock);

  // Room of more bytes in one piece is made before the kernel starts. SIZE_MAX
  // until the first block leaves HBM: before that it does not matter what lies
  // where. Any thread.
  std::size_t largeRoomBytes() const noexcept {
    return large_room_bytes_.load(std::memory_order_relaxed);
  }

  // ---- inside HBM ----------------------------------------------------------
  // Moves the extent's block into `target` / down to `offset`, in the hole
  // before it. False: it was pinned just now, or the runtime failed.
  bool relocate(const Locked& locked, Extent& extent, Extent& target,
                Shortage& shortage) REQUIRES(pager_lock);
  bool slide(const Locked& locked, Extent& extent, std::size_t offset,
             Shortage& shortage) REQUIRES(pager_lock);

  // ---- on the host ---------------------------------------------------------
  HostPlaces& host() noexcept { return host_; }
  // A host thread has written the host copy, or the new `place`.
  void writtenOnHost(const Locked& locked, Block& block,
                     const HostPool::Place& place) noexcept
      REQUIRES(pager_lock);
  // Evicting becomes Host once the copy has passed.
  void settle(const Locked& locked, Block& block) noexcept REQUIRES(pager_lock);
  // The bytes are needed no more, wherever they are.
  void giveUpPlaces(const Locked& locked, Block& block, bool host_copy) noexcept
      REQUIRES(pager_lock);

  // At the latest when the block leaves HBM or dies: was its fetch of use?
  [[gnu::always_inline]] void countPrefetch(Block& block) noexcept {
    if (block.prefetched_tick == 0) return;
    if (block.last_use_tick.load(std::memory_order_relaxed) >=
        block.prefetched_tick) {
      core_.counters.prefetch_hits.fetch_add(1, std::memory_order_relaxed);
    }
    block.prefetched_tick = 0;
  }
  Transfers& transfers() noexcept { return transfers_; }

 private:
  void blocksLeave(const Locked& locked) noexcept REQUIRES(pager_lock);
  void vacate(const Locked& locked, Block& block, Position copied)
      REQUIRES(pager_lock);
  void freeExtent(const Locked& locked, Block& block, const Fence& uses)
      REQUIRES(pager_lock);
  static bool takeForMove(Block& block, std::uint64_t& word) noexcept;
  void movedTo(const Locked& locked, Block& block, Extent& extent,
               Position moved) REQUIRES(pager_lock);

  PagerCore& core_;
  std::atomic<std::size_t> large_room_bytes_{SIZE_MAX};
  HostPlaces host_;
  Transfers transfers_;
  std::vector<CopyOut> outs_ GUARDED_BY(pager_lock); // the open batch
  // Scratch, to spare the heap.
  std::vector<runtime::Copy> copies_ GUARDED_BY(pager_lock);
};

} // namespace chameleon::memory
