// A block that is to be in HBM: a distinct operand of the call that begins, or
// what is fetched ahead of need.
//
// Thread safety: plain values; whoever uses them holds the pager's lock.
#pragma once

#include "memory/block.h"
#include "memory/space/extent.h"

namespace chameleon::memory {

struct WantedBlock {
  Block* block;
  bool write;
  bool missing;
  bool overwrite;           // wholly, unread, by every operand that it is
  Extent* extent = nullptr; // for a missing one, until it is the block's

  bool fetched() const noexcept {
    return missing && !overwrite && block->host.extent != nullptr;
  }
};

} // namespace chameleon::memory
