// What is asked of HBM, and why it could not be had.
//
// Thread safety: plain values; they belong to the thread that asks.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/runtime/result.h"
#include "memory/locked.h"
#include "memory/space/extent.h"

namespace chameleon::profiler {
struct OpTicket;
}

namespace chameleon::memory {

// Why there was no room. What is empty did not happen.
struct Shortage {
  bool host_full = false; // a dirty victim had no place on the host
  runtime::Error failure; // the runtime reported an error
};

struct RoomRequest {
  std::size_t bytes; // a multiple of ExtentMap::kAlignment
  End end;
  ExtentUse use;
  StreamIndex stream; // whoever writes there first
  // As Policy::Need has it: for bytes that are fetched ahead of an op.
  std::uint64_t needed_at = 0;
  // It is a result of that op: it lies where it is planned, if that is free.
  // Null: anywhere.
  const profiler::OpTicket* planned_for = nullptr;
};

// What is asked when nothing can leave for the host, and what is told of room
// that was taken. Behind it is recomputation, of which whoever looks for room
// knows nothing.
class LastResort {
 public:
  LastResort() = default;
  LastResort(const LastResort&) = delete;
  LastResort& operator=(const LastResort&) = delete;
  virtual ~LastResort() = default;
  // True: there is more room than before, in HBM or on the host.
  virtual bool giveUpForHost(const Locked& locked, std::size_t bytes)
      REQUIRES(pager_lock) = 0;
  virtual void noteHostUse(const Locked& locked) REQUIRES(pager_lock) = 0;
};

} // namespace chameleon::memory
