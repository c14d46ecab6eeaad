#include "memory/policy/recomputing/pass_boundaries.h"

#include <algorithm>
#include <cstddef>

#include "memory/policy/plan/range_sum.h"

namespace chameleon::memory {
namespace {

using profiler::Cycle;
using profiler::ValueIndex;

// A peak is high from this part of the highest on, and over below that.
constexpr std::int64_t kHighShare = 2;
constexpr std::int64_t kLowShare = 4;

// Per position, the bytes whose longest gap lies across it: the value was used
// before op i, and will be at it or later.
std::vector<std::int64_t> waiting_bytes(const Cycle& cycle) {
  struct Gap {
    std::int32_t used_at = -1;
    std::int32_t from = 0; // of the longest
    std::int32_t to = 0;
  };
  std::vector<Gap> gaps(cycle.values());
  const auto ops = static_cast<std::int32_t>(cycle.ops());
  for (std::int32_t op = 0; op < ops; ++op) {
    for (const profiler::Operand operand : cycle.operandsOf(op)) {
      Gap& gap = gaps[operand.value()];
      // Only what the step itself made waits in it.
      if (operand.creates()) gap = {};
      if (!operand.creates() && gap.used_at < 0) continue;
      if (gap.used_at >= 0 && op - gap.used_at > gap.to - gap.from) {
        gap.from = gap.used_at;
        gap.to = op;
      }
      gap.used_at = op;
    }
  }
  RangeSum sum(ops);
  for (ValueIndex value = 0; value < cycle.values(); ++value) {
    const Gap& gap = gaps[value];
    if (gap.to == gap.from) continue;
    sum.add(gap.from + 1, gap.to + 1,
            static_cast<std::int64_t>(cycle.value_bytes[value]));
  }
  std::vector<std::int64_t> waiting(cycle.ops());
  sum.addTo(waiting);
  return waiting;
}

} // namespace

std::vector<Pass> find_pass_boundaries(const Cycle& cycle) {
  std::vector<Pass> passes;
  const std::vector<std::int64_t> waiting = waiting_bytes(cycle);
  const auto highest = std::max_element(waiting.begin(), waiting.end());
  if (highest == waiting.end() || *highest <= 0) return passes;
  const auto ops = static_cast<std::uint32_t>(cycle.ops());
  bool high = false;
  std::uint32_t peak = 0;
  std::uint32_t valley = 0; // the lowest place since the last peak was over
  for (std::uint32_t op = 0; op < ops; ++op) {
    const std::int64_t now = waiting[op];
    if (high) {
      if (now > waiting[peak]) peak = op;
      if (now * kLowShare >= *highest) continue;
      high = false;
      passes.back().at = peak;
      valley = op;
    } else if (now * kHighShare >= *highest) {
      high = true;
      peak = op;
      if (!passes.empty()) passes.back().end = valley;
      passes.push_back({passes.empty() ? 0 : valley, op, ops});
    } else if (now < waiting[valley]) {
      valley = op;
    }
  }
  if (high) passes.back().at = peak;
  return passes;
}

} // namespace chameleon::memory
