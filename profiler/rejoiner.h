// Finds the place in the history where the run goes on, when an op was not the
// expected one, and cuts the recording where that says that a round ended.
//
// Tests: adaptation_test.cpp.
//
// Thread safety: as ProfilerCore has it.
#pragma once

#include <cstdint>

#include "profiler/profiler_core.h"
#include "profiler/rounds.h"

namespace chameleon::profiler {

class Rejoiner {
 public:
  // REQUIRES: both outlive it.
  Rejoiner(ProfilerCore& core, Rounds& rounds) : core_(core), rounds_(rounds) {}

  // The place of the op recorded last. Where there is none the run is nowhere,
  // but for a few ops, which may have come between.
  void findPlace();
  // Another path goes on as the run does.
  void continueAt(const ContextMatch& match);
  // A round that comes to the beginning of a known path has ended there. A few
  // ops must agree first.
  void cutIfCertain();

 private:
  void cutAt(std::uint32_t begin);
  void closeLoop(const ContextMatch& match);
  OpPath& splitRecording(std::uint32_t position);
  void splitAt(std::uint32_t position, const ContextMatch& match);

  ProfilerCore& core_;
  Rounds& rounds_;
};

} // namespace chameleon::profiler
