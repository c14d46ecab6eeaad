#include "profiler/cycle_builder.h"

#include <algorithm>
#include <cstdlib>

#include "profiler/op_names.h"

namespace chameleon::profiler {
namespace {

using Binding = PathSnapshot::Binding;

// Two operands of one op that are one value.
std::uint32_t merged(std::uint32_t a, std::uint32_t b) {
  const std::uint32_t both = a | b;
  const bool needs = (a & (Operand::kCreates | Operand::kOverwrites)) == 0 ||
                     (b & (Operand::kCreates | Operand::kOverwrites)) == 0;
  return needs && (both & Operand::kCreates) == 0 ? both & ~Operand::kOverwrites
                                                  : both;
}

void add_values(const PathSnapshot& snapshot, CycleMap& map) {
  const OpPath& path = *snapshot.path;
  const std::vector<Binding>& bindings = snapshot.bindings;
  const std::vector<PathValue>& values = path.values();
  map.value_of.assign(values.size(), kNone);
  // What the last round left is the value that this one makes again.
  const auto again = [&](std::uint32_t v) {
    const Binding& binding = bindings[v];
    return values[v].carried() && binding.source_path == path.id() &&
           bindings[binding.source_value].successor == v;
  };
  for (std::uint32_t v = 0; v < values.size(); ++v) {
    if (again(v)) continue;
    const PathValue& value = values[v];
    map.value_of[v] = map.cycle.addValue(value.bytes);
    if (bindings[v].persists) {
      map.values.push_back({kNone, 0, bindings[v].slot, bindings[v].identity});
    } else {
      map.values.push_back({value.birth_op, value.output, kNoSlot, 0});
    }
  }
  for (std::uint32_t v = 0; v < values.size(); ++v) {
    if (map.value_of[v] == kNone) {
      map.value_of[v] = map.value_of[bindings[v].source_value];
    }
  }
}

// Per op the values that die after it.
std::vector<std::vector<ValueIndex>> deaths(const PathSnapshot& snapshot,
                                            const CycleMap& map) {
  const OpPath& path = *snapshot.path;
  const std::vector<Binding>& bindings = snapshot.bindings;
  const std::uint32_t ops = path.size();
  std::vector<std::vector<ValueIndex>> dead(ops);
  for (std::uint32_t v = 0; v < path.values().size(); ++v) {
    const PathValue& value = path.values()[v];
    if (value.carried() || bindings[v].persists) continue;
    std::uint32_t last = path.usesOf(v).back().position();
    std::uint32_t free = bindings[v].free_op;
    const std::uint32_t next = bindings[v].successor;
    if (next != kNone) { // it lives on: positions count from this round's
      const std::uint32_t own = bindings[next].free_op;
      if (own != kNone) free = own + ops;
      last = path.usesOf(next).back().position() + ops;
    }
    if (free == kNone) continue; // just before it is made again
    free = std::max(free, last);
    if (free < ops) {
      dead[free].push_back(map.value_of[v]);
    } else if (free - ops < value.birth_op) {
      dead[free - ops].push_back(map.value_of[v]);
    }
  }
  return dead;
}

// By value; those of one value in their order.
std::vector<Operand> sorted_operands(const PathSnapshot& snapshot,
                                     std::uint32_t op, const CycleMap& map) {
  std::vector<Operand> operands;
  for (const Operand operand : snapshot.path->operands(op)) {
    std::uint32_t flags = operand.flags();
    if (snapshot.bindings[operand.value()].persists) {
      flags &= ~Operand::kCreates;
    }
    const Operand own(map.value_of[operand.value()], flags);
    operands.insert(std::upper_bound(operands.begin(), operands.end(), own,
                                     [](Operand a, Operand b) {
                                       return a.value() < b.value();
                                     }),
                    own);
  }
  return operands;
}

// As they were set.
std::vector<std::int64_t> durations_of(const OpPath& path) {
  std::vector<std::int64_t> durations_ns;
  durations_ns.reserve(path.size());
  for (std::uint32_t i = 0; i < path.size(); ++i) {
    durations_ns.push_back(path.elapsed_ns(i + 1) - path.elapsed_ns(i));
  }
  return durations_ns;
}

} // namespace

std::optional<PathSnapshot> CycleBuilder::take(PathId id) const {
  return copyOf([&] { return profiler_.core().history.share(id); });
}

// `find` is asked for the path under the profiler's lock.
template <typename Find>
std::optional<PathSnapshot> CycleBuilder::copyOf(const Find& find) const {
  PathSnapshot snapshot;
  {
    const ProfilerCore::Guard guard(profiler_.core().lock);
    snapshot.path = find();
    if (snapshot.path == nullptr) return std::nullopt;
    copyWhatChanges(snapshot);
  }
  if (!snapshot.durations_ns.empty()) return snapshot;
  const OpPath& path = *snapshot.path;
  snapshot.durations_ns.reserve(path.size());
  for (std::uint32_t i = 0; i < path.size(); ++i) {
    snapshot.durations_ns.push_back(duration(path, i));
  }
  return snapshot;
}

// REQUIRES the profiler's lock.
void CycleBuilder::copyWhatChanges(PathSnapshot& snapshot) const {
  const OpPath& path = *snapshot.path;
  snapshot.bindings.reserve(path.values().size());
  for (const PathValue& value : path.values()) {
    snapshot.bindings.push_back(
        {value.identity, value.slot, value.free_op, value.source_path,
         value.source_value, value.successor,
         value.carried() || profiler_.core().matcher.outlives(value)});
  }
  snapshot.workspaces.reserve(path.size());
  for (std::uint32_t i = 0; i < path.size(); ++i) {
    snapshot.workspaces.push_back(path.workspace_bytes(i));
  }
  // A trace's path knows no tokens, but its times.
  if (path.size() > 0 && path.op(0).token == 0) {
    snapshot.durations_ns = durations_of(path);
  }
}

CycleMap CycleBuilder::cycle(const PathSnapshot& snapshot) {
  const OpPath& path = *snapshot.path;
  CycleMap map;
  map.path = path.id();
  map.structure = path.structure();
  add_values(snapshot, map);
  const auto dead = deaths(snapshot, map);
  for (std::uint32_t i = 0; i < path.size(); ++i) {
    map.cycle.addOp(snapshot.durations_ns[i], snapshot.workspaces[i]);
    map.op_names.push_back(path.op(i).op);
    map.cycle.may_rerun.push_back(op_names().mayRerun(path.op(i).op) ? 1 : 0);
    const std::vector<Operand> operands = sorted_operands(snapshot, i, map);
    for (std::size_t k = 0; k < operands.size();) {
      const ValueIndex value = operands[k].value();
      std::uint32_t flags = operands[k].flags();
      for (++k; k < operands.size() && operands[k].value() == value; ++k) {
        flags = merged(flags, operands[k].flags());
      }
      map.cycle.addOperand(value, flags);
    }
    for (const ValueIndex value : dead[i]) map.cycle.addFree(value);
  }
  return map;
}

std::int64_t CycleBuilder::duration(const OpPath& path,
                                    std::uint32_t op) const {
  std::uint64_t bytes = 0;
  for (const Operand operand : path.operands(op)) {
    bytes += path.values()[operand.value()].bytes;
  }
  return durations_.op(path.op(op).token, bytes);
}

PathTimes times_of(const CycleMap& map) {
  return {map.path, map.cycle.duration_ns};
}

void CycleBuilder::setTimes(const PathTimes& times) {
  const ProfilerCore::Guard guard(profiler_.core().lock);
  if (OpPath* const live = profiler_.core().history.find(times.path)) {
    live->setDurations(times.duration_ns);
  }
}

double CycleBuilder::timesOff(PathId id) const {
  std::shared_ptr<const OpPath> path;
  std::vector<std::int64_t> set_ns;
  {
    const ProfilerCore::Guard guard(profiler_.core().lock);
    path = profiler_.core().history.share(id);
    if (path == nullptr || path->size() == 0 || path->op(0).token == 0) {
      return 0;
    }
    set_ns = durations_of(*path);
  }
  std::int64_t off_ns = 0;
  std::int64_t all_ns = 0;
  for (std::uint32_t i = 0; i < path->size(); ++i) {
    off_ns += std::abs(duration(*path, i) - set_ns[i]);
    all_ns += set_ns[i];
  }
  return all_ns == 0
             ? 0
             : static_cast<double>(off_ns) / static_cast<double>(all_ns);
}

std::optional<CycleMap> CycleBuilder::build(PathId id) {
  const std::optional<PathSnapshot> snapshot = take(id);
  if (!snapshot) return std::nullopt;
  CycleMap map = cycle(*snapshot);
  setTimes(times_of(map));
  return map;
}

std::optional<CycleMap> CycleBuilder::buildLast() const {
  const std::optional<PathSnapshot> snapshot =
      copyOf([&] { return profiler_.rounds().lastRound(); });
  if (!snapshot) return std::nullopt;
  return cycle(*snapshot);
}

} // namespace chameleon::profiler
