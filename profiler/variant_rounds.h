// Rounds that are a known path but for sizes: another length of text, tokens
// shared anew among experts. Op by op they are variants of it, so what is known
// of the path says what comes next all the same, and a plan for it can be
// followed. The round is recorded meanwhile, and forgotten if it was a variant
// to its end, unless these sizes came before: then they are a path of their own
// from now on (Rounds::end()).
//
// Tests: adaptation_test.cpp.
//
// Thread safety: as ProfilerCore has it.
#pragma once

#include <cstdint>
#include <span>

#include "profiler/divergence_log.h"
#include "profiler/profiler_core.h"
#include "profiler/rejoiner.h"
#include "profiler/rounds.h"

namespace chameleon::profiler {

class VariantRounds {
 public:
  // REQUIRES: all outlive it.
  VariantRounds(ProfilerCore& core, DivergenceLog& divergences, Rounds& rounds,
                Rejoiner& rejoiner)
      : core_(core),
        divergences_(divergences),
        rounds_(rounds),
        rejoiner_(rejoiner) {}

  // The op goes on as a variant of the expected one. `is_counted`: it
  // was counted as a miss already. False: it is no variant; at most a group of
  // rounds was left.
  bool goOn(std::uint32_t op, Token token, std::span<const Use> uses,
            bool is_counted = false);
  // Its result, of another size. False: too far from the path's, or not
  // expected at all.
  bool goOnAtResult(std::uint32_t position, std::uint32_t output,
                    BlockSlot slot);
  // What it made, beside what the path has there.
  void weighResult(std::uint32_t position, std::uint32_t output,
                   BlockSlot slot) noexcept;

 private:
  void weighExternalInputs(std::span<const Use> uses) noexcept;

  ProfilerCore& core_;
  DivergenceLog& divergences_;
  Rounds& rounds_;
  Rejoiner& rejoiner_;
};

} // namespace chameleon::profiler
