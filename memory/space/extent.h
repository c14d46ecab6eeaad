// A piece of a linear range of bytes: free, or in somebody's use. The tiles of
// an ExtentMap; plain data.
//
// Thread safety: none; the owner of the map locks.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "memory/streams/fence.h"

namespace chameleon::memory {

struct Block;

// Why an extent is not free.
enum class ExtentUse : std::uint8_t {
  kFree,
  kBlock,   // holds (or is about to hold) the bytes of `block`
  kInCall,  // allocated inside a running op call, not (yet) a block's
  kForeign, // outlived its call without becoming a block's: never moved
  kClosed,  // outside the current budget: holds nothing
};

// Only ExtentMap writes to an extent, except for `block` (whoever owns the
// extent in use), `fence` (see there) and `use` among the three kinds in use.
struct Extent {
  static constexpr std::size_t kAlignment = 512; // of offset and size

  std::size_t offset = 0;
  std::size_t bytes = 0;      // rounded to kAlignment
  Extent* previous = nullptr; // neighbours in address order
  Extent* next = nullptr;
  // kBlock: whose; else null. In the host pool null, too, for bytes that are
  // not yet a block's, or not any more.
  Block* block = nullptr;
  // Earlier work that still touches the bytes: a stream waits for it before
  // its work writes there. Who has made a stream wait may clear the fence, if
  // the extent is freed with a later position of that same stream.
  Fence fence;
  std::array<Extent*, 2> links{}; // private to the FreeIndex
  std::uint32_t owner = 0;        // as given to the ExtentMap
  ExtentUse use = ExtentUse::kFree;
};
// Two of these belong to a storage (device and host): its metadata counts.
static_assert(sizeof(Extent) <= 96);

enum class End : std::uint8_t { kBottom, kTop };

} // namespace chameleon::memory
