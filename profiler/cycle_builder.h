// Turns a recorded path into a Cycle, for whoever plans on another thread, and
// keeps what the cycle's numbers stand for.
//
// The path is taken to follow itself. What one round leaves to the next (a
// gradient that is freed at the beginning of the next step) becomes one
// transient whose life goes across the end of the cycle.
//
// In two parts, so that nobody waits for anybody: take() copies what changes
// from op to op, and looks up how long ops take, on the thread that runs the
// ops; cycle() does the work, on any thread, without any lock.
//
// Tests: cycle_test.cpp, forecast_test.cpp.
//
// Thread safety: any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "profiler/cycle.h"
#include "profiler/durations.h"
#include "profiler/profiler.h"

namespace chameleon::profiler {

// A cycle's op i is the path's op i.
struct CycleMap {
  PathId path = 0;
  std::uint64_t structure = 0; // equal: the same sequence (OpPath::structure)
  Cycle cycle;
  // Per value of the cycle, what it is.
  struct Value {
    std::uint32_t birth_op = kNone; // kNone: persistent
    std::uint32_t output = 0;       // as PathValue's
    BlockSlot slot = kNoSlot;       // persistent: the block it is bound to
    std::uint64_t identity = 0;
  };
  std::vector<Value> values;
  // Per value of the path (Forecast::valueOf): the value of the cycle.
  std::vector<ValueIndex> value_of;
  std::vector<std::uint32_t> op_names; // per op, see OpNames
};

// A path at one moment. Its records never change, and are shared.
struct PathSnapshot {
  // The part of a value that changes while the run goes on.
  struct Binding {
    std::uint64_t identity;
    BlockSlot slot;
    std::uint32_t free_op;
    PathId source_path;
    std::uint32_t source_value;
    std::uint32_t successor;
    bool persists; // also what only seemed an external input
  };
  std::shared_ptr<const OpPath> path;
  std::vector<Binding> bindings;          // per value
  std::vector<std::uint64_t> workspaces;  // per op, bytes
  std::vector<std::int64_t> durations_ns; // per op
};

// How long a path's ops take, as it wants to know it.
struct PathTimes {
  PathId path;
  std::vector<std::int64_t> duration_ns; // OpPath::setDurations()
};
PathTimes times_of(const CycleMap& map);

class CycleBuilder {
 public:
  CycleBuilder(Profiler& profiler, const Durations& durations)
      : profiler_(profiler), durations_(durations) {}

  // Nothing: the path is not (any more) in the history.
  std::optional<PathSnapshot> take(PathId path) const;
  static CycleMap cycle(const PathSnapshot& snapshot);
  void setTimes(const PathTimes& times);
  // How far off they are by what is known now: what ops take longer or less,
  // as a share of the whole. 0: not known.
  double timesOff(PathId path) const;

  // All of this at once.
  std::optional<CycleMap> build(PathId path);
  // The step that ended last, with the sizes that it had; its path may have
  // others (variant_rounds.h). Nothing: no step has ended.
  std::optional<CycleMap> buildLast() const;

 private:
  template <typename Find>
  std::optional<PathSnapshot> copyOf(const Find& find) const;
  void copyWhatChanges(PathSnapshot& snapshot) const;
  std::int64_t duration(const OpPath& path, std::uint32_t op) const;

  Profiler& profiler_;
  const Durations& durations_;
};

} // namespace chameleon::profiler
