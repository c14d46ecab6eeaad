// What becomes of the bytes that a step has to retain under a plan: kept in
// HBM, moved to the host and back, or dropped and made again.
//
// A step *retains* what persists, what lives over its end, and what it makes
// before a pass boundary and needs after it (pass_boundaries.h): whatever the
// plan, the three add up to the same. What is moved besides (inputs that are
// held for ops that run again, or what waits within forward) counts as moved,
// too.
//
// Thread safety: plain values.
#pragma once

#include <cstdint>
#include <vector>

namespace chameleon::memory {

struct ByteShares {
  std::uint64_t kept_bytes = 0;
  std::uint64_t moved_bytes = 0;
  std::uint64_t rerun_bytes = 0;
  std::uint32_t rerun_ops = 0;

  friend bool operator==(const ByteShares&, const ByteShares&) = default;
};

struct PlanShares {
  ByteShares all;
  // What is made in the ops [first_op, end_op) before a boundary: layers, as
  // far as the data flow shows them (segments.h). What persists is in none.
  struct Layer {
    std::uint32_t first_op;
    std::uint32_t end_op;
    ByteShares shares;
  };
  std::vector<Layer> layers;
};

} // namespace chameleon::memory
