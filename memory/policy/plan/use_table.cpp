#include "memory/policy/plan/use_table.h"

#include <utility>

#include "memory/policy/plan/range_sum.h"

namespace chameleon::memory {
namespace {

using profiler::Cycle;

constexpr std::int32_t kAtNoOp = -1;

// Where each value is created and after which op it is freed.
struct Lives {
  explicit Lives(const Cycle& cycle)
      : created(cycle.values(), kAtNoOp), freed(cycle.values(), kAtNoOp) {
    const auto ops = static_cast<std::int32_t>(cycle.ops());
    for (std::int32_t op = 0; op < ops; ++op) {
      for (const profiler::Operand operand : cycle.operandsOf(op)) {
        if (operand.creates()) created[operand.value()] = op;
      }
      for (const ValueIndex value : cycle.freedAfter(op)) freed[value] = op;
    }
    for (std::size_t value = 0; value < cycle.values(); ++value) {
      if (created[value] != kAtNoOp && freed[value] == kAtNoOp) {
        freed[value] = created[value] == 0 ? ops - 1 : created[value] - 1;
      }
    }
  }
  std::vector<std::int32_t> created;
  std::vector<std::int32_t> freed;
};

} // namespace

UseTable::UseTable(const Cycle& cycle, std::uint64_t keep_bytes)
    : ops(static_cast<std::int32_t>(cycle.ops())),
      values(cycle.values()),
      duration_ns(cycle.duration_ns) {
  const Lives lives(cycle);
  const auto moves = [&](ValueIndex v) {
    return cycle.value_bytes[v] > keep_bytes;
  };

  // Fixed bytes as differences between neighbouring ops.
  std::vector<std::int64_t> step(cycle.ops() + 1);
  std::int64_t small_persistent = 0;
  std::vector<std::uint8_t> used(cycle.values());
  for (const profiler::Operand operand : cycle.operands)
    used[operand.value()] = 1;
  for (ValueIndex v = 0; v < cycle.values(); ++v) {
    if (moves(v) || used[v] == 0) continue;
    const auto size = static_cast<std::int64_t>(cycle.value_bytes[v]);
    if (lives.created[v] == kAtNoOp) {
      small_persistent += size;
      continue;
    }
    step[static_cast<std::size_t>(lives.created[v])] += size;
    step[static_cast<std::size_t>(lives.freed[v]) + 1] -= size;
    if (lives.freed[v] < lives.created[v]) small_persistent += size;
  }
  fixed_bytes.resize(cycle.ops());
  workspace_bytes.resize(cycle.ops());
  std::int64_t small = small_persistent;
  for (std::size_t i = 0; i < cycle.ops(); ++i) {
    small += step[i];
    workspace_bytes[i] = static_cast<std::int64_t>(cycle.workspace_bytes[i]);
    fixed_bytes[i] = small + workspace_bytes[i];
  }

  // Uses, in program order; next and end as the walk comes by.
  std::vector<UseIndex> first(cycle.values(), kNone);
  std::vector<UseIndex> last(cycle.values(), kNone);
  operand_bytes = fixed_bytes;
  for (std::int32_t at = 0; at < ops; ++at) {
    for (const profiler::Operand operand : cycle.operandsOf(at)) {
      const ValueIndex v = operand.value();
      if (!moves(v)) continue;
      const auto use = static_cast<UseIndex>(value.size());
      value.push_back(v);
      op.push_back(at);
      next.push_back(kNone);
      end.push_back(0);
      bytes.push_back(static_cast<std::int64_t>(cycle.value_bytes[v]));
      creates.push_back(operand.creates() ? 1 : 0);
      needs.push_back(operand.needsBytes() ? 1 : 0);
      dirties.push_back(operand.dirties() ? 1 : 0);
      operand_bytes[static_cast<std::size_t>(at)] += bytes.back();
      // A creation begins another storage: nothing leads to it.
      if (last[v] != kNone && creates.back() == 0) {
        next[last[v]] = use;
        end[last[v]] = at;
      }
      if (first[v] == kNone) first[v] = use;
      last[v] = use;
    }
    use_end.push_back(static_cast<UseIndex>(value.size()));
  }
  // What goes on in the next repetition.
  std::vector<UseIndex> final_use(cycle.values(), kNone);
  for (ValueIndex v = 0; v < cycle.values(); ++v) {
    if (first[v] == kNone) continue;
    if (creates[first[v]] == 0) {
      next[last[v]] = first[v];
      end[last[v]] = op[first[v]] + ops;
    }
  }
  for (UseIndex use = 0; use < uses(); ++use) {
    if (next[use] != kNone) continue;
    const std::int32_t freed = lives.freed[value[use]];
    end[use] = freed + 1 + (freed < op[use] ? ops : 0);
    final_use[value[use]] = use;
  }
  dying_end.assign(cycle.ops(), 0);
  for (ValueIndex v = 0; v < cycle.values(); ++v) {
    if (final_use[v] == kNone) continue;
    ++dying_end[static_cast<std::size_t>(lives.freed[v])];
  }
  std::uint32_t total = 0;
  for (std::uint32_t& count : dying_end) total += std::exchange(count, total);
  dying.resize(total);
  for (ValueIndex v = 0; v < cycle.values(); ++v) {
    if (final_use[v] == kNone) continue;
    dying[dying_end[static_cast<std::size_t>(lives.freed[v])]++] = final_use[v];
  }

  live_bytes = fixed_bytes;
  RangeSum live(ops);
  for (UseIndex use = 0; use < uses(); ++use) {
    live.add(op[use], end[use], bytes[use]);
  }
  live.addTo(live_bytes);
}

} // namespace chameleon::memory
