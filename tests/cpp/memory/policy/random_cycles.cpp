#include "tests/cpp/memory/policy/random_cycles.h"

#include <algorithm>
#include <vector>

#include "memory/policy/plan/use_table.h"

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

namespace {

class Training {
 public:
  explicit Training(std::mt19937_64& random) : random_(random) {}

  Cycle make() {
    for (std::size_t n = 1 + below(6); n > 0; --n) weights_.push_back(value());
    for (std::size_t n = 4 + below(40); n > 0; --n) forward();
    backward();
    Cycle cycle;
    for (const std::uint64_t bytes : bytes_) cycle.addValue(bytes);
    std::vector<std::size_t> last(bytes_.size(), ops_.size());
    for (std::size_t op = 0; op < ops_.size(); ++op) {
      for (const Operand use : ops_[op]) last[use.value()] = op;
    }
    for (std::size_t op = 0; op < ops_.size(); ++op) {
      cycle.addOp(static_cast<std::int64_t>(below(3000)),
                  below(4) == 0 ? below(500) : 0);
      for (const Operand use : ops_[op]) {
        cycle.addOperand(use.value(), use.flags());
      }
      for (ValueIndex v = 0; v < bytes_.size(); ++v) {
        if (v >= weights_.size() && last[v] == op) cycle.addFree(v);
      }
    }
    return cycle;
  }

 private:
  std::size_t below(std::size_t limit) { return random_() % limit; }
  ValueIndex value() {
    bytes_.push_back(1 + below(1000));
    return static_cast<ValueIndex>(bytes_.size() - 1);
  }
  // Of the last op; once each.
  void use(ValueIndex value, std::uint32_t flags) {
    for (const Operand other : ops_.back()) {
      if (other.value() == value) return;
    }
    ops_.back().emplace_back(value, flags);
  }
  ValueIndex recent(std::size_t among) {
    return made_[made_.size() - 1 - below(std::min(made_.size(), among))];
  }
  ValueIndex any() {
    const bool weight = made_.empty() || below(4) == 0;
    return weight ? weights_[below(weights_.size())]
                  : recent(below(3) > 0 ? 4 : made_.size());
  }

  void forward() {
    ops_.emplace_back();
    const std::size_t made = made_.size();
    if (made == 0 || below(8) < 5) {
      const std::size_t outputs = below(6) == 0 ? 2 : 1;
      std::vector<ValueIndex> fresh;
      for (std::size_t i = 0; i < outputs; ++i) {
        fresh.push_back(value());
        use(fresh.back(), Operand::kCreates);
      }
      for (std::size_t n = 1 + below(3); n > 0; --n)
        use(any(), Operand::kReads);
      made_.insert(made_.end(), fresh.begin(), fresh.end());
    } else {
      use(recent(6), below(4) > 0 ? Operand::kReads | Operand::kWrites
                                  : Operand::kOverwrites);
      for (std::size_t n = below(3); n > 0; --n) use(any(), Operand::kReads);
    }
  }

  void backward() {
    ValueIndex grad = value();
    ops_.push_back({Operand(grad, Operand::kCreates)});
    for (std::size_t i = made_.size(); i-- > 0;) {
      if (below(4) == 0) continue;
      const ValueIndex next = value();
      ops_.push_back({Operand(next, Operand::kCreates)});
      use(grad, Operand::kReads);
      use(made_[i], Operand::kReads);
      if (below(3) == 0) use(made_[below(i + 1)], Operand::kReads);
      grad = next;
    }
  }

  std::mt19937_64& random_;
  std::vector<std::uint64_t> bytes_;
  std::vector<ValueIndex> weights_; // the first values
  std::vector<ValueIndex> made_;    // by forward ops
  std::vector<std::vector<Operand>> ops_;
};

} // namespace

Cycle random_training(std::mt19937_64& random) {
  return Training(random).make();
}

Needs needs_of(const Cycle& cycle, std::uint64_t keep_bytes) {
  const UseTable table(cycle, keep_bytes);
  return {static_cast<std::uint64_t>(*std::max_element(
              table.operand_bytes.begin(), table.operand_bytes.end())),
          static_cast<std::uint64_t>(table.peakBytes())};
}

} // namespace chameleon::memory
