// How often the run was not as expected, and where it last left it.
//
// Thread safety: as ProfilerCore has it.
#pragma once

#include <cstdint>

#include "profiler/divergence.h"
#include "profiler/profiler_core.h"

namespace chameleon::profiler {

class DivergenceLog {
 public:
  // REQUIRES: `core` outlives it.
  explicit DivergenceLog(const ProfilerCore& core) : core_(core) {}

  // The op observed last was not the expected one. Counts a miss and, if a path
  // is followed, a divergence. kOperand: it was the expected op, on another
  // block, and the cursor is already past it.
  void missed(std::uint32_t op, Token token, DivergenceKind kind);
  // The run is not as the path has it at `position`; the caller adds what was
  // seen. REQUIRES: a path is followed.
  Divergence& diverged(DivergenceKind kind, std::uint32_t position);

  std::uint64_t misses() const noexcept { return misses_; }
  std::uint64_t divergences() const noexcept { return divergences_; }
  const Divergence& last() const noexcept { return last_; }

 private:
  const ProfilerCore& core_;
  std::uint64_t misses_ = 0;
  std::uint64_t divergences_ = 0;
  Divergence last_;
};

} // namespace chameleon::profiler
