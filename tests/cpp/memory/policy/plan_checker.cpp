#include "tests/cpp/memory/policy/plan_checker.h"

#include <vector>

namespace chameleon::memory {
namespace {

using profiler::Cycle;
using profiler::Operand;

class Walk {
 public:
  Walk(const Cycle& cycle, const Plan& plan, std::uint64_t keep_bytes)
      : cycle_(cycle), plan_(plan), keep_bytes_(keep_bytes) {
    // What has no creation before its first use lives when the step begins.
    values_.resize(cycle.values());
    std::vector<bool> met(cycle.values());
    for (const Operand operand : cycle.operands) {
      if (met[operand.value()]) continue;
      met[operand.value()] = true;
      values_[operand.value()].alive = !operand.creates();
      values_[operand.value()].placed = !operand.creates();
    }
  }

  // The first step begins anywhere: it only finds the places at its end.
  std::string run() {
    strict_ = false;
    step();
    const std::vector<Value> start = values_;
    strict_ = true;
    for (int i = 0; i < 2 && problem_.empty(); ++i) {
      step();
      if (problem_.empty() && values_ != start)
        fail("the step does not close", 0);
    }
    return problem_;
  }

 private:
  struct Value {
    bool alive = false;
    bool placed = false;
    bool dirty = false; // since its last copy out

    friend bool operator==(const Value&, const Value&) = default;
  };

  void fail(const std::string& what, std::size_t op) {
    if (problem_.empty() && strict_) {
      problem_ = what + ", op " + std::to_string(op);
    }
  }

  std::uint64_t placedBytes() const {
    std::uint64_t bytes = 0;
    for (ValueIndex value = 0; value < values_.size(); ++value) {
      if (values_[value].placed) bytes += cycle_.value_bytes[value];
    }
    return bytes;
  }

  // What the value's next use wants, from op `op` on.
  bool nextUseNeedsBytes(ValueIndex value, std::size_t op) const {
    for (std::size_t i = 0; i < cycle_.ops(); ++i) {
      for (const Operand operand : cycle_.operandsOf((op + i) % cycle_.ops())) {
        if (operand.value() == value) return operand.needsBytes();
      }
    }
    return false;
  }

  void act(const Action& action, const Action* previous, std::size_t op) {
    Value& value = values_[action.value()];
    const std::string name = " value " + std::to_string(action.value());
    if (cycle_.value_bytes[action.value()] <= keep_bytes_) {
      fail("moves small" + name, op);
    }
    if (!value.alive) fail("moves dead" + name, op);
    switch (action.kind()) {
      case Action::Kind::kWriteBack:
        if (!value.placed) fail("writes back absent" + name, op);
        if (!value.dirty) fail("writes back clean" + name, op);
        value.dirty = false;
        break;
      case Action::Kind::kEvict:
        if (!value.placed) fail("releases absent" + name, op);
        if (value.dirty) fail("releases dirty" + name, op);
        value.placed = false;
        break;
      case Action::Kind::kFetch:
        if (value.placed) fail("fetches present" + name, op);
        if (!nextUseNeedsBytes(action.value(), op)) {
          fail("fetches what is overwritten or unused," + name, op);
        }
        value.placed = true;
        if (placedBytes() > plan_.budget_bytes)
          fail("no room to fetch" + name, op);
        break;
      case Action::Kind::kDrop:
        fail("drops" + name, op);
        break;
    }
    if (action.joined() &&
        (previous == nullptr || previous->kind() != action.kind() ||
         action.kind() == Action::Kind::kEvict)) {
      fail("joins nothing," + name, op);
    }
  }

  void step() {
    for (std::size_t op = 0; op < cycle_.ops(); ++op) {
      const Action* previous = nullptr;
      for (const Action& action : plan_.actionsBefore(op)) {
        act(action, previous, op);
        previous = &action;
      }
      for (const Operand operand : cycle_.operandsOf(op)) {
        Value& value = values_[operand.value()];
        const std::string name = " value " + std::to_string(operand.value());
        if (operand.creates()) {
          value = Value{}; // one never freed ends here
        } else if (!value.placed && operand.needsBytes()) {
          fail("misses" + name, op);
        }
        value.alive = true;
        value.placed = true;
      }
      if (placedBytes() + cycle_.workspace_bytes[op] > plan_.budget_bytes) {
        fail("no room for the op", op);
      }
      for (const Operand operand : cycle_.operandsOf(op)) {
        if (operand.dirties()) values_[operand.value()].dirty = true;
      }
      for (const ValueIndex value : cycle_.freedAfter(op)) {
        values_[value] = Value{};
      }
    }
  }

  const Cycle& cycle_;
  const Plan& plan_;
  std::uint64_t keep_bytes_;
  std::vector<Value> values_;
  bool strict_ = false;
  std::string problem_;
};

} // namespace

std::string check_plan(const profiler::Cycle& cycle, const Plan& plan,
                       std::uint64_t keep_bytes) {
  if (plan.ops() != cycle.ops()) return "another number of ops";
  return Walk(cycle, plan, keep_bytes).run();
}

} // namespace chameleon::memory
