#include "random_cycles.h"

#include <algorithm>
#include <vector>

#include "memory/policy/use_table.h"

namespace chameleon::memory {

using profiler::Cycle;
using profiler::Operand;

Cycle random_cycle(std::mt19937_64& random, const CycleShape& shape) {
  const auto below = [&](int limit) {
    return static_cast<int>(random() % static_cast<std::uint64_t>(limit));
  };
  // A transient lives for `length` ops from `from` on, round the end.
  struct Life {
    bool persistent;
    bool leaks;
    int from;
    int length;
  };
  std::vector<Life> lives;
  Cycle cycle;
  for (int i = 0; i < shape.values; ++i) {
    cycle.addValue(random() % shape.largest_bytes + 1);
    lives.push_back({below(3) == 0, below(20) == 0, below(shape.ops),
                     below(shape.ops - 1) + 1});
  }
  for (int op = 0; op < shape.ops; ++op) {
    cycle.addOp(below(2000), random() % (shape.largest_bytes / 2 + 1));
    std::vector<ValueIndex> living;
    for (int i = 0; i < shape.values; ++i) {
      const Life& life = lives[static_cast<std::size_t>(i)];
      const int age = (op - life.from + shape.ops) % shape.ops;
      const auto value = static_cast<ValueIndex>(i);
      if (!life.persistent && age == 0) {
        cycle.addOperand(value, Operand::kCreates);
      } else if (life.persistent || age < life.length || life.leaks) {
        living.push_back(value);
      }
    }
    std::shuffle(living.begin(), living.end(), random);
    const auto count =
        static_cast<std::size_t>(below(shape.operands_per_op + 1));
    for (std::size_t i = 0; i < std::min(count, living.size()); ++i) {
      constexpr std::uint32_t kFlags[] = {Operand::kReads, Operand::kReads,
                                          Operand::kReads | Operand::kWrites,
                                          Operand::kOverwrites, 0};
      cycle.addOperand(living[i], kFlags[below(5)]);
    }
    for (int i = 0; i < shape.values; ++i) {
      const Life& life = lives[static_cast<std::size_t>(i)];
      const int age = (op - life.from + shape.ops) % shape.ops;
      if (!life.persistent && !life.leaks && age + 1 == life.length) {
        cycle.addFree(static_cast<ValueIndex>(i));
      }
    }
  }
  return cycle;
}

Needs needs_of(const Cycle& cycle, std::uint64_t keep_bytes) {
  const UseTable table(cycle, keep_bytes);
  return {static_cast<std::uint64_t>(*std::max_element(
              table.operand_bytes.begin(), table.operand_bytes.end())),
          static_cast<std::uint64_t>(table.peakBytes())};
}

} // namespace chameleon::memory
