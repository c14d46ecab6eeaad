// What the profiler says about itself: how much it holds, what it follows, and
// where the run last left what was expected. Plain data, for users.
//
// Tests: divergence_log_test.cpp.
//
// Thread safety: plain values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "profiler/divergence.h"
#include "profiler/op_path.h"

namespace chameleon::profiler {

enum class Matching : std::uint8_t {
  kUnknown,   // nothing like it was seen: recording
  kFollowing, // a path from its beginning, perhaps in other sizes
  kRejoined,  // a path from its middle on; recording what this one is
};

struct ProfilerState {
  // What is held now.
  std::size_t paths = 0;
  std::uint64_t recorded_ops = 0;
  std::size_t memory_bytes = 0;
  std::size_t live_block_bytes = 0; // of these
  std::size_t limit_bytes = 0;
  std::uint64_t dropped_paths = 0;
  // What is being matched.
  Matching matching = Matching::kUnknown;
  PathId path = 0;
  std::uint32_t position = 0;
  std::uint32_t path_ops = 0;
  std::size_t path_bytes = 0;
  bool marked = false; // step() decides where steps end
  // Counters.
  std::uint64_t ops = 0;
  std::uint64_t steps = 0;
  std::uint64_t forecast_hits = 0;   // the expected ops, or shape variants
  std::uint64_t forecast_misses = 0; // all others
  std::uint64_t divergences = 0;
  std::uint64_t lock_waits = 0;
  Divergence last_divergence;
};

inline std::string_view to_string(Matching matching) noexcept {
  switch (matching) {
    case Matching::kUnknown:
      return "unknown";
    case Matching::kFollowing:
      return "following";
    case Matching::kRejoined:
      return "rejoined";
  }
  return "";
}

} // namespace chameleon::profiler
