// Resident blocks with a host copy, in the order in which they got it.
//
// Thread safety: none; the pager's lock guards it. Invariant: a block is in it
// exactly while it is Resident with Block::kHostCopyBit (or about to be).
#pragma once

#include <cstddef>

#include "memory/block.h"

namespace chameleon::memory {

class HostCopyList {
 public:
  void push(Block& block) noexcept {
    bytes_ += block.rounded_bytes;
    block.older_copy = newest_;
    block.newer_copy = nullptr;
    (newest_ != nullptr ? newest_->newer_copy : oldest_) = &block;
    newest_ = &block;
  }
  void remove(Block& block) noexcept {
    bytes_ -= block.rounded_bytes;
    (block.older_copy != nullptr ? block.older_copy->newer_copy : oldest_) =
        block.newer_copy;
    (block.newer_copy != nullptr ? block.newer_copy->older_copy : newest_) =
        block.older_copy;
    block.older_copy = nullptr;
    block.newer_copy = nullptr;
  }
  Block* oldest() const noexcept { return oldest_; }
  Block* newest() const noexcept { return newest_; }
  std::size_t bytes() const noexcept { return bytes_; }

 private:
  Block* oldest_ = nullptr;
  Block* newest_ = nullptr;
  std::size_t bytes_ = 0; // of the blocks, rounded
};

} // namespace chameleon::memory
