// Free bytes that lie in pieces become one hole, by moves inside HBM, where
// that is cheaper than to have blocks leave. Decides what moves where;
// Residency moves it.
//
// Tests: begin_attempt_test.cpp, evacuation_test.cpp, room_finder_test.cpp.
//
// Thread safety: needs the pager's lock.
#pragma once

#include <cstddef>
#include <span>

#include "memory/pager_core.h"
#include "memory/residency.h"
#include "memory/room/evacuation.h"
#include "memory/room_request.h"

namespace chameleon::memory {

class Compaction {
 public:
  // REQUIRES: both outlive it.
  Compaction(PagerCore& core, Residency& residency)
      : core_(core), residency_(residency) {}

  // Makes one hole of `bytes` by moves, while that is cheaper than to have the
  // next victim leave; `needed_at` as Policy::Need has it. True: look again.
  bool compactIfCheaper(const Locked& locked, std::size_t bytes,
                        StreamIndex stream, std::uint64_t needed_at,
                        Shortage& shortage) REQUIRES(pager_lock);
  // The same by moves that cost less than `limit_bytes`. True: look again.
  bool compactBelow(const Locked& locked, std::size_t bytes,
                    std::size_t limit_bytes, StreamIndex stream,
                    Shortage& shortage) REQUIRES(pager_lock);
  // Moves everything that can be moved as far down as it goes.
  void packDown(const Locked& locked, Shortage& shortage) REQUIRES(pager_lock);

 private:
  Part partOf(const Locked& locked, const Extent& extent,
              StreamIndex stream) noexcept REQUIRES(pager_lock);
  std::size_t costOfMove(const Locked& locked, const Block& block,
                         StreamIndex stream) noexcept REQUIRES(pager_lock);
  bool evacuate(const Locked& locked, std::span<Extent* const> extents,
                const Evacuation& evacuation, Shortage& shortage)
      REQUIRES(pager_lock);

  PagerCore& core_;
  Residency& residency_;
};

} // namespace chameleon::memory
