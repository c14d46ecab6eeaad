// One host slab in a range of its own, for tests that need no more.
#pragma once

#include <cstddef>

#include "backend/runtime/device_runtime.h"

namespace chameleon::support {

// REQUIRES: whole pages.
inline runtime::Result<std::byte*> allocate_slab(
    runtime::DeviceRuntime& runtime, std::size_t bytes) {
  runtime::Result<std::byte*> range = runtime.reserveAddresses(bytes);
  if (!range.ok()) return range;
  if (runtime::Error error = runtime.allocateHost(*range, bytes)) {
    runtime.unreserve(*range, bytes);
    return error;
  }
  return range;
}

inline void free_slab(runtime::DeviceRuntime& runtime, std::byte* slab,
                      std::size_t bytes) {
  runtime.freeHost(slab, bytes);
  runtime.unreserve(slab, bytes);
}

} // namespace chameleon::support
