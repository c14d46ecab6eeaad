// What no plan fetches comes back a little ahead of its next use, while a known
// sequence is followed: victims that no plan chose; what a plan takes to be
// there and is not, where the sequence was entered from another one; and at its
// end what the next one begins with, if that is another.
//
// How far ahead: as many ops as blocks are put in order for (VictimOrder), so
// that a victim does not come back at once. Like a file's readahead it opens as
// the path goes on as foreseen: a run that finds a new place at every op does
// not fetch for all of them. For the same reason what a path needs is looked up
// piece by piece.
//
// Thread safety: as Policy says.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "memory/policy/followed_path.h"
#include "memory/policy/path_plan.h"
#include "memory/policy/policy.h"
#include "profiler/forecast.h"

namespace chameleon::memory {

class Readahead {
 public:
  // REQUIRES: `profiler` outlives it.
  explicit Readahead(const profiler::Profiler& profiler)
      : profiler_(profiler), forecast_(profiler) {}

  // ---- where the run is ----------------------------------------------------
  // It is not known where.
  void lose() noexcept { tail_ = profiler::kNone; }
  // A round of `path` begins, or goes on, at `position`.
  void enter(const FollowedPath& path, std::uint32_t position) noexcept;
  // The whole path was looked along in the round before.
  void knowAll(const FollowedPath& path) noexcept { looked_to_ = path.ops; }
  // What was to come back is forgotten, and the path is looked along from
  // `position` on. `is_foreseen`: the path went on as it was to.
  void restart(std::uint32_t position, bool is_foreseen) noexcept;

  // ---- what comes back -----------------------------------------------------
  // A victim that no plan chose. True: it comes back, so nextPosition() may be
  // another. REQUIRES: a path is followed.
  bool expect(Block& block);
  // Adds what is due before the op at `position`. `plan`: the one that is
  // followed; null: none.
  void advance(const FollowedPath& path, const PathPlan* plan,
               std::uint32_t position, std::vector<PlannedAction>& list);
  // The position before which advance() has something to do; kNone: none.
  std::uint32_t nextPosition(const FollowedPath& path) const noexcept;

 private:
  // What it begins with at a place that was not foreseen, in ops.
  static constexpr std::uint32_t kLeastAhead = 8;
  // By so many ops it grows with each op that comes as foreseen.
  static constexpr std::uint32_t kOpening = 4;
  // lookAlong() looks so many times as far ahead at a time.
  static constexpr std::uint32_t kLookedAhead = 4;

  // What is to come back before the op of this number.
  struct Return {
    std::uint64_t next_use;
    Block* block;
    std::uint64_t identity;
    bool operator<(const Return& other) const noexcept { // the nearest on top
      return next_use > other.next_use;
    }
  };
  std::uint32_t distance(const FollowedPath& path) const noexcept; // in ops
  void lookAlong(const FollowedPath& path, const PathPlan* plan,
                 std::uint32_t position);
  void lookInto(profiler::PathId path, const PathPlan* plan,
                std::uint32_t begin, std::uint32_t end, std::uint64_t at_begin);
  void findFetches(const PathPlan& plan, std::uint32_t begin,
                   std::uint32_t end);
  void bringBack(const FollowedPath& path, std::vector<PlannedAction>& list);
  void push(const Return& due);

  const profiler::Profiler& profiler_;
  profiler::Forecast forecast_;
  std::vector<Return> returns_; // a heap; of the path followed
  // Where the path after this one is looked into; kNone: it was, or is not.
  std::uint32_t tail_ = profiler::kNone;
  std::uint32_t looked_to_ = 0;  // by lookAlong()
  std::uint64_t arrived_at_ = 0; // opCount() at the last unforeseen place
  // Scratch, to spare the heap.
  std::vector<profiler::Forecast::Need> needs_;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> fetches_; // value, op
};

} // namespace chameleon::memory
