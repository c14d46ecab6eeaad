// What the arena and the host pool do with fences beyond keeping them.
//
// Thread safety: as Timelines.
#pragma once

#include "backend/runtime/result.h"
#include "memory/extent_map.h"
#include "memory/timeline.h"

namespace chameleon::memory {

// The host waits until all of `fence` has passed.
inline runtime::Error synchronize(Timelines& timelines, const Fence& fence) {
  for (const Position& position : fence.slots()) {
    if (position.none()) break;
    if (auto error = timelines.synchronize(position)) return error;
  }
  return {};
}

// Joins fences on `timelines`, which must outlive the map that uses it.
inline FenceJoiner fence_joiner(Timelines& timelines) {
  const auto join = [](void* context, Fence& into, const Fence& from) {
    auto& lines = *static_cast<Timelines*>(context);
    // Streams that cannot be joined leave the host to wait. Where that fails
    // too the device is lost, and every later call on it says so.
    if (lines.add(into, from)) (void)synchronize(lines, from).ok();
  };
  return {join, &timelines};
}

} // namespace chameleon::memory
