// Copies between blocks and ordinary host memory, without a fault where the
// bytes are on the host.
//
// Tests: pager_test.cpp.
//
// Thread safety: any thread; takes the pager's lock where it needs it. A host
// thread at a host copy counts as a call: who needs the copy to go waits for it
// as for any other.
#pragma once

#include <cstddef>

#include "memory/block_table.h"
#include "memory/call/call_pins.h"
#include "memory/mirror/mirror.h"
#include "memory/pager_core.h"
#include "memory/recompute/recomputer.h"
#include "memory/residency.h"

namespace chameleon::memory {

class HostAccess {
 public:
  // REQUIRES: all outlive it.
  HostAccess(PagerCore& core, Residency& residency, BlockTable& table,
             Mirror& mirror, Recomputer& recomputer, CallPins& pins)
      : core_(core),
        residency_(residency),
        table_(table),
        mirror_(mirror),
        recomputer_(recomputer),
        pins_(pins) {}

  // See Pager.
  runtime::Error read(Block& block, std::size_t offset, std::byte* destination,
                      std::size_t bytes, runtime::Stream stream);
  runtime::Error write(Block& block, std::size_t offset,
                       const std::byte* source, std::size_t bytes,
                       runtime::Stream stream);

 private:
  runtime::Error readDevice(Block& block, std::size_t offset,
                            std::byte* destination, std::size_t bytes,
                            runtime::Stream stream);
  runtime::Error writeDevice(Block& block, std::size_t offset,
                             const std::byte* source, std::size_t bytes,
                             runtime::Stream stream);

  PagerCore& core_;
  Residency& residency_;
  BlockTable& table_;
  Mirror& mirror_;
  Recomputer& recomputer_;
  CallPins& pins_;
};

} // namespace chameleon::memory
