#include "profiler/cycle_builder.h"

#include <algorithm>

namespace chameleon::profiler {
namespace {

constexpr std::size_t kChunk = 256; // values copied under one lock

// Two operands of one op that are one value.
std::uint32_t merged(std::uint32_t a, std::uint32_t b) {
  const std::uint32_t both = a | b;
  const bool needs = (a & (Operand::kCreates | Operand::kOverwrites)) == 0 ||
                     (b & (Operand::kCreates | Operand::kOverwrites)) == 0;
  return needs && (both & Operand::kCreates) == 0 ? both & ~Operand::kOverwrites
                                                  : both;
}

} // namespace

std::optional<CycleMap> CycleBuilder::build(PathId id) {
  std::shared_ptr<const OpPath> shared;
  {
    const Profiler::Guard guard(profiler_.lock_);
    shared = profiler_.history_.share(id);
  }
  if (shared == nullptr) return std::nullopt;
  const OpPath& path = *shared;
  copyBindings(path);
  CycleMap map;
  map.path = id;
  map.structure = path.structure();
  addValues(path, map);
  addOps(path, map);

  std::vector<std::uint32_t> elapsed;
  elapsed.reserve(path.size() + 1);
  std::int64_t time_ns = 0;
  elapsed.push_back(0);
  for (const std::int64_t duration_ns : map.cycle.duration_ns) {
    time_ns += duration_ns;
    elapsed.push_back(static_cast<std::uint32_t>(
        std::min<std::int64_t>(time_ns / OpPath::kElapsedUnit_ns, kNone)));
  }
  const Profiler::Guard guard(profiler_.lock_);
  if (OpPath* const live = profiler_.history_.find(id)) {
    live->setElapsed(std::move(elapsed));
  }
  return map;
}

void CycleBuilder::copyBindings(const OpPath& path) {
  const std::size_t values = path.values().size();
  bindings_.clear();
  bindings_.reserve(values);
  for (std::size_t v = 0; v < values;) {
    const Profiler::Guard guard(profiler_.lock_);
    for (const std::size_t end = std::min(v + kChunk, values); v < end; ++v) {
      const PathValue& value = path.values()[v];
      bindings_.push_back({value.identity, value.slot, value.free_op,
                           value.source_path, value.source_value,
                           value.successor});
    }
  }
  known_ns_.clear();
  if (path.size() > 0 && path.op(0).token == 0) { // from a trace, with times
    const Profiler::Guard guard(profiler_.lock_);
    for (std::uint32_t i = 0; i < path.size(); ++i) {
      known_ns_.push_back(path.elapsed_ns(i + 1) - path.elapsed_ns(i));
    }
  }
  workspaces_.clear();
  workspaces_.reserve(path.size());
  for (std::uint32_t i = 0; i < path.size();) {
    const Profiler::Guard guard(profiler_.lock_);
    for (const auto end = std::min<std::uint32_t>(i + kChunk, path.size());
         i < end; ++i) {
      workspaces_.push_back(path.workspace_bytes(i));
    }
  }
}

void CycleBuilder::addValues(const OpPath& path, CycleMap& map) const {
  const std::vector<PathValue>& values = path.values();
  map.value_of.assign(values.size(), kNone);
  // What the last round left is the value that this one makes again.
  const auto again = [&](std::uint32_t v) {
    const Binding& binding = bindings_[v];
    return values[v].carried() && binding.source_path == path.id() &&
           bindings_[binding.source_value].successor == v;
  };
  for (std::uint32_t v = 0; v < values.size(); ++v) {
    if (again(v)) continue;
    const PathValue& value = values[v];
    map.value_of[v] = map.cycle.addValue(value.bytes);
    const bool persistent = value.carried();
    map.values.push_back({value.birth_op, value.output,
                          persistent ? bindings_[v].slot : kNoSlot,
                          persistent ? bindings_[v].identity : 0});
  }
  for (std::uint32_t v = 0; v < values.size(); ++v) {
    if (map.value_of[v] == kNone) {
      map.value_of[v] = map.value_of[bindings_[v].source_value];
    }
  }
}

// Per op the values that die after it.
std::vector<std::vector<ValueIndex>> CycleBuilder::deaths(
    const OpPath& path, const CycleMap& map) const {
  const std::uint32_t ops = path.size();
  std::vector<std::vector<ValueIndex>> dead(ops);
  for (std::uint32_t v = 0; v < path.values().size(); ++v) {
    const PathValue& value = path.values()[v];
    if (value.carried()) continue;
    std::uint32_t last = path.usesOf(v).back().position();
    std::uint32_t free = bindings_[v].free_op;
    const std::uint32_t next = bindings_[v].successor;
    if (next != kNone) { // it lives on: positions count from this round's
      const std::uint32_t own = bindings_[next].free_op;
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

std::int64_t CycleBuilder::duration(const OpPath& path,
                                    std::uint32_t op) const {
  if (!known_ns_.empty()) return known_ns_[op];
  std::uint64_t bytes = 0;
  for (const Operand operand : path.operands(op)) {
    bytes += path.values()[operand.value()].bytes;
  }
  return durations_.op(path.op(op).token, bytes);
}

void CycleBuilder::addOps(const OpPath& path, CycleMap& map) const {
  const auto dead = deaths(path, map);
  std::vector<Operand> operands;
  for (std::uint32_t i = 0; i < path.size(); ++i) {
    map.cycle.addOp(duration(path, i), workspaces_[i]);
    map.op_names.push_back(path.op(i).op);
    operands.clear();
    // By value; those of one value in their order.
    for (const Operand operand : path.operands(i)) {
      const Operand own(map.value_of[operand.value()], operand.flags());
      operands.insert(std::upper_bound(operands.begin(), operands.end(), own,
                                       [](Operand a, Operand b) {
                                         return a.value() < b.value();
                                       }),
                      own);
    }
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
}

} // namespace chameleon::profiler
