// What the arena and the host pool do with fences beyond keeping them.
//
// Thread safety: as StreamPositions.
#pragma once

#include "backend/runtime/result.h"
#include "memory/space/extent_map.h"
#include "memory/streams/stream_positions.h"

namespace chameleon::memory {

// The host waits until all of `fence` has passed.
inline runtime::Error synchronize(StreamPositions& streams,
                                  const Fence& fence) {
  for (const Position& position : fence.slots()) {
    if (position.none()) break;
    if (auto error = streams.synchronize(position)) return error;
  }
  return {};
}

// Joins fences on `streams`, which must outlive the map that uses it.
inline FenceJoiner fence_joiner(StreamPositions& streams) {
  const auto join = [](void* context, Fence& into, const Fence& from) {
    auto& lines = *static_cast<StreamPositions*>(context);
    // Streams that cannot be joined leave the host to wait. Where that fails
    // too the device is lost, and every later call on it says so.
    if (lines.add(into, from)) (void)synchronize(lines, from).ok();
  };
  return {join, &streams};
}

} // namespace chameleon::memory
