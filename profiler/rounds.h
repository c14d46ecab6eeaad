// Where rounds begin and end, and what becomes of their recordings: the known
// path that is the same, or a new one. Groups of rounds that repeat are
// recorded as one path; steps are counted here.
//
// Tests: adaptation_test.cpp, profiler_test.cpp.
//
// Thread safety: as ProfilerCore has it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "profiler/divergence_log.h"
#include "profiler/profiler_core.h"
#include "profiler/step_finder.h"
#include "profiler/step_markers.h"

namespace chameleon::profiler {

class Rounds {
 public:
  // REQUIRES: both outlive it.
  Rounds(ProfilerCore& core, DivergenceLog& divergences)
      : core_(core), divergences_(divergences) {}

  // ---- where rounds end ----------------------------------------------------
  // The program says that a step ends here.
  void step();
  bool marked() const noexcept { return markers_.used(); }
  // Rounds end where the ops say so; else at markers alone.
  bool automatic() const noexcept { return !markers_.decide(core_.opCount()); }
  // The round ends before the next op.
  void end();
  // A round begins with the op of that number.
  void begin(std::uint64_t first_op);
  // The round began with the op that was observed so many ops ago.
  void setBeganAgo(std::uint64_t ops) noexcept {
    begin_ = core_.opCount() - ops;
  }
  // A round of that path has ended, which had so many ops.
  void ended(const OpPath& path, std::uint32_t ops);

  // ---- the end of a known path ---------------------------------------------
  // What was followed to its end was only the beginning of a known longer path.
  bool beginsLonger(Token token) const;
  // Past a path's end: what usually follows begins, and is followed from here.
  bool beginsNext(Token token, std::size_t uses);
  // The path that comes after this one, or null.
  OpPath* next() const;

  // ---- recordings ----------------------------------------------------------
  // Begins a recording with the ops before `position` of the path followed: the
  // round so far. (While a path is followed from its beginning nothing is
  // recorded.)
  void startRecording(std::uint32_t position);
  void startRecording() { startRecording(core_.matcher.position()); }
  void record(std::uint32_t op, Token token, std::span<const Use> uses);
  // A finished sequence: the known path that is the same, or a new one. Blocks
  // born in it were born there.
  OpPath& close(OpPath path);
  // Blocks that were born at recorded ops from `begin` on, and are bound to the
  // values of `path` by now, were born on that path.
  void moveBirths(const OpPath& recording, std::uint32_t begin,
                  const OpPath& path);

  // ---- groups --------------------------------------------------------------
  bool inGroup() const noexcept { return !group_.empty(); }
  // The group's recording is given up; the rounds in it are known anyway.
  void stopGroup() noexcept;
  // The run leaves a path that is a group: as if it had walked its rounds one
  // by one.
  void leaveGroup();

  // ---- what ended ----------------------------------------------------------
  bool watchesDeaths() const noexcept { return watches_deaths_; }
  // The last op before the death is number died_at - 1.
  void recordDeath(const LiveBlock& block, std::uint64_t died_at) noexcept;
  PathId lastPathId() const noexcept { return previous_path_; } // 0: none
  // The round that ended last, with the sizes that it had; null: none has.
  std::shared_ptr<const OpPath> lastRound() const;
  std::size_t memoryBytes() const noexcept {
    return last_variant_ ? last_variant_->memoryBytes() : 0;
  }

 private:
  bool endGroup();
  bool endVariant();

  ProfilerCore& core_;
  DivergenceLog& divergences_;
  mutable StepFinder finder_; // keeps its last answer
  StepMarkers markers_;
  std::uint64_t begin_ = 0; // opCount() before the round's first op
  bool watches_deaths_ = true;
  PathId previous_path_ = 0; // of the round before, followed or recorded
  std::uint32_t previous_ops_ = 0;
  // A group of rounds that is being recorded as one path.
  std::vector<PathId> group_;
  std::vector<OpPath::Round> group_rounds_; // that are done
  // The last round that ended, if it was a shape variant; not finished.
  std::optional<OpPath> last_variant_;
};

} // namespace chameleon::profiler
