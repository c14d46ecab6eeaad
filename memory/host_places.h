// Where blocks' bytes are on the host: places in the host pool, and which clean
// copies make way for others. What state a block is in is Residency's matter.
//
// Thread safety: methods with a Locked need the pager's lock. The host waits
// for device work only where bytes move: for the copies of these bytes, and for
// those that use the place where they go.
#pragma once

#include <cstddef>

#include "memory/host_copy_list.h"
#include "memory/pager_core.h"
#include "memory/room_request.h"

namespace chameleon::memory {

class HostPlaces {
 public:
  // REQUIRES: `core` outlives it.
  explicit HostPlaces(PagerCore& core) : core_(core) {}

  // Room on the host; clean copies of resident blocks make way for it, the
  // oldest first, then other blocks' bytes move. Without an extent: there is
  // none.
  HostPool::Place place(const Locked& locked, std::size_t bytes,
                        Shortage& shortage) REQUIRES(pager_lock);
  // The same without moving, so without a host wait for other blocks' copies.
  HostPool::Place hole(const Locked& locked, std::size_t bytes)
      REQUIRES(pager_lock);
  bool freeOldestCopy(const Locked& locked) noexcept REQUIRES(pager_lock);
  // Bytes on the host that may be moved: a block's, and no host thread is at
  // them.
  static bool movable(const Extent& extent) noexcept;
  // Moves all that can be moved on the host as far down as it goes. False: it
  // failed, as above; what has moved stays so.
  bool packDown(const Locked& locked) REQUIRES(pager_lock);
  // The host copy of a Resident block is no longer needed or no longer right.
  // A copy to it that has begun still reads the block: whoever uses that next
  // waits for it too.
  void freeCopy(const Locked& locked, Block& block) noexcept
      REQUIRES(pager_lock);
  // The block's bytes on the host are, or will be, there.
  void put(const Locked& locked, Block& block, const HostPlace& place) noexcept
      REQUIRES(pager_lock);
  // The block knows nothing of its host copy any more: somebody else does, or
  // it is free.
  static void forget(const Locked& locked, Block& block) noexcept
      REQUIRES(pager_lock);
  // A copy out whose bytes nobody will read, if it has not begun. REQUIRES: no
  // copy in of them was submitted. False: it runs, or has run.
  bool cancelCopyOut(const Locked& locked, Position done,
                     const std::byte* destination, std::size_t bytes) noexcept
      REQUIRES(pager_lock);
  // The blocks that have a clean copy.
  HostCopyList& copies(const Locked& /*locked*/) noexcept REQUIRES(pager_lock) {
    return copies_;
  }

 private:
  // Makes one hole of `bytes` out of several, with the fewest bytes moved.
  // False: nothing that can be moved would make it, or moving failed (then
  // HostPool::lastError() says so).
  bool joinHoles(const Locked& locked, std::size_t bytes) REQUIRES(pager_lock);
  Extent* runWith(const Locked& locked, std::size_t bytes) REQUIRES(pager_lock);
  bool slide(const Locked& locked, Extent& extent) REQUIRES(pager_lock);

  PagerCore& core_;
  HostCopyList copies_ GUARDED_BY(pager_lock);
};

} // namespace chameleon::memory
