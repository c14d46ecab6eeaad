// The sequence that the run is in, and its place in the run, for policies.
//
// Thread safety: a plain value.
#pragma once

#include <cstdint>

#include "profiler/op_path.h"

namespace chameleon::memory {

// The sequence that the run is in. Empty: it is not known where the run is.
struct FollowedPath {
  profiler::PathId id = 0;
  std::uint32_t ops = 0;
  std::uint64_t begin = 0; // number of the op at position 0
};

} // namespace chameleon::memory
