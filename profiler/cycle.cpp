#include "profiler/cycle.h"

#include "backend/runtime/check.h"

namespace chameleon::profiler {
namespace {

constexpr std::size_t kNever = ~std::size_t{0};

std::string at(ValueIndex value, const char* what, std::size_t op) {
  return "value " + std::to_string(value) + ' ' + what + " at op " +
         std::to_string(op);
}

// Where each value is created and freed; and what can be said without knowing
// who lives when.
struct Lives {
  explicit Lives(const Cycle& cycle)
      : created(cycle.values(), kNever), freed(cycle.values(), kNever) {
    std::vector<std::size_t> used(cycle.values(), kNever);
    for (std::size_t op = 0; op < cycle.ops(); ++op) {
      if (cycle.duration_ns[op] < 0) {
        note("op " + std::to_string(op) + " takes less than no time");
      }
      for (const Operand operand : cycle.operandsOf(op)) {
        const ValueIndex value = operand.value();
        if (value >= cycle.values()) {
          note(at(value, "does not exist", op));
          return;
        }
        if (used[value] == op) note(at(value, "occurs twice", op));
        used[value] = op;
        if (!operand.creates()) continue;
        if (created[value] != kNever) note(at(value, "is created again", op));
        created[value] = op;
      }
      for (const ValueIndex value : cycle.freedAfter(op)) {
        if (value >= cycle.values()) {
          note(at(value, "does not exist", op));
          return;
        }
        if (freed[value] != kNever) note(at(value, "is freed again", op));
        freed[value] = op;
      }
    }
    for (ValueIndex value = 0; value < cycle.values(); ++value) {
      if (freed[value] != kNever && created[value] == kNever) {
        note(at(value, "is freed but never created", freed[value]));
      }
    }
  }

  void note(const std::string& text) {
    if (problem.empty()) problem = text;
  }
  bool isAlive(ValueIndex value, std::size_t op) const {
    if (created[value] == kNever || freed[value] == kNever) return true;
    return freed[value] < created[value]
               ? op <= freed[value] || op >= created[value]
               : op >= created[value] && op <= freed[value];
  }

  std::vector<std::size_t> created;
  std::vector<std::size_t> freed;
  std::string problem; // the first
};

} // namespace

ValueIndex Cycle::addValue(std::uint64_t bytes) {
  CHAMELEON_CHECK(values() < kMaxValues, "too many values in a cycle");
  value_bytes.push_back(bytes);
  return static_cast<ValueIndex>(values() - 1);
}

void Cycle::addOp(std::int64_t duration, std::uint64_t workspace) {
  duration_ns.push_back(duration);
  workspace_bytes.push_back(workspace);
  operand_end.push_back(static_cast<std::uint32_t>(operands.size()));
  freed_end.push_back(static_cast<std::uint32_t>(freed.size()));
}

void Cycle::addOperand(ValueIndex value, std::uint32_t flags) {
  operands.emplace_back(value, flags);
  ++operand_end.back();
}

void Cycle::addFree(ValueIndex value) {
  freed.push_back(value);
  ++freed_end.back();
}

std::string Cycle::problem() const {
  if (workspace_bytes.size() != ops() || operand_end.size() != ops() ||
      freed_end.size() != ops()) {
    return "arrays per op differ in length";
  }
  Lives lives(*this);
  for (std::size_t op = 0; op < ops() && lives.problem.empty(); ++op) {
    for (const Operand operand : operandsOf(op)) {
      if (lives.isAlive(operand.value(), op)) continue;
      lives.note(at(operand.value(), "is used while it is dead", op));
    }
  }
  return lives.problem;
}

} // namespace chameleon::profiler
