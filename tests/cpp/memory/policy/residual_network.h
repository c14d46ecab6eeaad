// A training step with a residual stream, for tests of plans that drop.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "profiler/cycle.h"

namespace chameleon::memory {

// `layers` of a dear op (on a weight) and two cheap ones, with a residual
// stream; backward needs what all three made. An optimizer op at the end.
// `table_bytes` > 0: an op after the first makes what all dear ops read.
inline profiler::Cycle residual_network(int layers,
                                        std::uint64_t table_bytes = 0) {
  using profiler::Cycle;
  using profiler::Operand;
  using profiler::ValueIndex;
  constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
  constexpr std::uint32_t kUpdates = Operand::kReads | Operand::kWrites;
  Cycle cycle;
  std::vector<std::vector<ValueIndex>> made;
  std::vector<ValueIndex> weights;
  const auto op = [&](std::int64_t duration_ns) {
    cycle.addOp(duration_ns);
    cycle.may_rerun.push_back(1);
  };
  ValueIndex stream = cycle.addValue(8 * kMiB);
  op(1000);
  cycle.may_rerun.back() = 0; // the data
  cycle.addOperand(stream, Operand::kCreates);
  ValueIndex table = profiler::kNone;
  if (table_bytes > 0) {
    table = cycle.addValue(table_bytes);
    op(1000);
    cycle.addOperand(table, Operand::kCreates);
  }
  for (int layer = 0; layer < layers; ++layer) {
    weights.push_back(cycle.addValue(kMiB));
    std::vector<ValueIndex> values{stream};
    for (const std::int64_t duration_ns : {100000, 10000, 10000}) {
      op(duration_ns);
      const bool dear = duration_ns > 10000;
      cycle.addOperand(values.back(), Operand::kReads);
      if (dear) cycle.addOperand(weights.back(), Operand::kReads);
      if (dear && table != profiler::kNone) {
        cycle.addOperand(table, Operand::kReads);
      }
      values.push_back(cycle.addValue(16 * kMiB));
      cycle.addOperand(values.back(), Operand::kCreates);
    }
    op(10000);
    cycle.addOperand(stream, Operand::kReads);
    cycle.addOperand(values.back(), Operand::kReads);
    stream = cycle.addValue(8 * kMiB);
    cycle.addOperand(stream, Operand::kCreates);
    made.push_back(values);
  }
  op(10000);
  cycle.addOperand(stream, Operand::kReads);
  cycle.addFree(stream);
  for (int layer = layers; layer-- > 0;) {
    const std::vector<ValueIndex>& values =
        made[static_cast<std::size_t>(layer)];
    for (std::size_t i = values.size(); i-- > 0;) {
      op(30000);
      cycle.addOperand(values[i], Operand::kReads);
      cycle.addFree(values[i]);
    }
  }
  op(10000);
  for (const ValueIndex weight : weights) cycle.addOperand(weight, kUpdates);
  return cycle;
}

} // namespace chameleon::memory
