// Finds room in HBM: the ladder of what is tried for an extent, short of
// waiting for other calls.
//
//   1. where it is planned; what is free as it is
//   2. spare blocks given back
//   3. moves, where enough is free
//   4. evictions, as the policy says
//   5. where the host is full: what the LastResort gives up
//   6. moves at any price, but not for what is fetched ahead
//
// Thread safety: needs the pager's lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "memory/block_table.h"
#include "memory/figures/meter.h"
#include "memory/pager_core.h"
#include "memory/residency.h"
#include "memory/room/compaction.h"
#include "memory/room_request.h"
#include "memory/wanted_block.h"

namespace chameleon::memory {

class RoomFinder {
 public:
  // REQUIRES: all outlive it.
  RoomFinder(PagerCore& core, const Meter& meter, Residency& residency,
             BlockTable& table, Compaction& compaction, LastResort& last_resort)
      : core_(core),
        meter_(meter),
        residency_(residency),
        table_(table),
        compaction_(compaction),
        last_resort_(last_resort) {}

  // An extent, whatever it takes. Null: see `shortage`.
  Extent* place(const Locked& locked, const RoomRequest& request,
                Shortage& shortage) REQUIRES(pager_lock);
  // The same for a block's bytes, which `writer` writes first: the extent is
  // the block's, until it arrives there or is given back. False: see
  // `shortage`.
  bool placeBlock(const Locked& locked, WantedBlock& wanted, StreamIndex writer,
                  Shortage& shortage, std::uint64_t needed_at = 0,
                  const profiler::OpTicket* planned_for = nullptr)
      REQUIRES(pager_lock);
  void giveBack(const Locked& locked, const WantedBlock& wanted) noexcept
      REQUIRES(pager_lock);
  // Each place that is planned for what the op allocates is free.
  bool hasPlaces(const Locked& locked, const profiler::OpTicket& op) noexcept
      REQUIRES(pager_lock);
  // Makes a hole of `bytes`, and does not take it. False: see `shortage`.
  bool makeFree(const Locked& locked, std::size_t bytes, StreamIndex stream,
                Shortage& shortage) REQUIRES(pager_lock);
  // Gives back spare blocks, or else evicts what the policy would miss least:
  // `bytes` or more, perhaps less with need.piece_bytes; small blocks that
  // follow each other share a batch. Or else, where the host is full, asks the
  // LastResort. True: there is more room, look again. False: nothing could go;
  // `shortage` says why, unless pins alone are the reason.
  bool evictNext(const Locked& locked, Shortage& shortage,
                 std::size_t bytes = 1, const Policy::Need& need = {})
      REQUIRES(pager_lock);

  // The most bytes in a row that eviction could free, as far as `enough`. With
  // `moving`, blocks that cannot be evicted but moved do not end a row.
  std::size_t largestRun(const Locked& locked, bool moving,
                         std::size_t enough) const noexcept
      REQUIRES(pager_lock);
  // What running calls and users hold in HBM.
  std::size_t pinnedBytes(const Locked& locked) const noexcept
      REQUIRES(pager_lock);

 private:
  Extent* allocatePlanned(const Locked& locked, const RoomRequest& request)
      REQUIRES(pager_lock);
  Extent* allocateFree(const Locked& locked, const RoomRequest& request)
      REQUIRES(pager_lock);
  // It was taken.
  Extent* counted(const Locked& locked, Extent* extent) REQUIRES(pager_lock);
  // Rungs 3 to 6, until one of them helps. True: look again.
  bool climb(const Locked& locked, std::size_t bytes, StreamIndex stream,
             std::uint64_t needed_at, Shortage& shortage) REQUIRES(pager_lock);

  PagerCore& core_;
  const Meter& meter_;
  Residency& residency_;
  BlockTable& table_;
  Compaction& compaction_;
  LastResort& last_resort_;
  // Scratch of evictNext(), to spare the heap.
  std::vector<Block*> set_aside_ GUARDED_BY(pager_lock);
};

} // namespace chameleon::memory
