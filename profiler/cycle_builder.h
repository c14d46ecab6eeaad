// Turns a recorded path into a Cycle, for whoever plans on another thread, and
// keeps what the cycle's numbers stand for.
//
// The path is taken to follow itself. What one round leaves to the next (a
// gradient that is freed at the beginning of the next step) becomes one
// transient whose life goes across the end of the cycle.
//
// Thread safety: any thread. The profiler's lock is taken for a few hundred
// values at a time, never for the whole path: the op side does not wait for an
// export of any length.
#pragma once

#include <cstdint>
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
    std::uint32_t output = 0;
    BlockSlot slot = kNoSlot; // persistent: the block it is bound to
    std::uint64_t identity = 0;
  };
  std::vector<Value> values;
  // Per value of the path (Forecast::valueOf): the value of the cycle.
  std::vector<ValueIndex> value_of;
  std::vector<std::uint32_t> op_names; // per op, see OpNames
};

class CycleBuilder {
 public:
  CycleBuilder(Profiler& profiler, const Durations& durations)
      : profiler_(profiler), durations_(durations) {}

  // Nothing: the path is not (any more) in the history. Gives the path its
  // times, too.
  std::optional<CycleMap> build(PathId path);

 private:
  // The part of a value that changes while the run goes on.
  struct Binding {
    std::uint64_t identity;
    BlockSlot slot;
    std::uint32_t free_op;
    PathId source_path;
    std::uint32_t source_value;
    std::uint32_t successor;
  };
  void copyBindings(const OpPath& path);
  void addValues(const OpPath& path, CycleMap& map) const;
  void addOps(const OpPath& path, CycleMap& map) const;
  std::vector<std::vector<ValueIndex>> deaths(const OpPath& path,
                                              const CycleMap& map) const;
  std::int64_t duration(const OpPath& path, std::uint32_t op) const;

  Profiler& profiler_;
  const Durations& durations_;
  std::vector<Binding> bindings_;
  std::vector<std::uint64_t> workspaces_;
  std::vector<std::int64_t> known_ns_; // per op, or empty
};

} // namespace chameleon::profiler
