#include "tests/cpp/memory/recompute/rerun_checker.h"

#include <algorithm>
#include <cstdint>
#include <vector>

namespace chameleon::memory {
namespace {

using profiler::Cycle;
using profiler::Operand;

std::uint64_t mixed(std::uint64_t hash, std::uint64_t more) {
  return (hash ^ more) * 0x9E3779B97F4A7C15ULL + (hash >> 29);
}

class Walk {
 public:
  Walk(const Cycle& cycle, const Plan& plan)
      : cycle_(cycle), plan_(plan), values_(cycle.values()) {
    for (std::size_t i = 0; i < values_.size(); ++i) values_[i].bits = i + 1;
  }

  std::string run() {
    for (int step = 0; step < 2; ++step) {
      for (std::uint32_t op = 0; op < cycle_.ops(); ++op) runOp(op);
    }
    return problem_;
  }

 private:
  struct Used { // an operand of a recorded op
    ValueIndex value;
    std::uint32_t flags;
    std::uint64_t version;
  };
  struct Record {
    std::uint32_t op;
    std::vector<Used> operands;
  };
  struct Value {
    std::uint64_t bits = 0; // what the program finds there
    std::uint64_t version = 0;
    bool dropped = false;
    std::vector<std::size_t> written_by; // records since it began
    bool all_recorded = false;           // its writers since it began
  };

  void fail(const std::string& text, std::uint32_t op) {
    if (problem_.empty()) problem_ = text + " at op " + std::to_string(op);
  }

  // What the op writes to each operand, from all it finds.
  std::uint64_t result(std::uint32_t op, const std::vector<std::uint64_t>& in,
                       ValueIndex value) const {
    std::uint64_t hash = mixed(op, 1);
    for (const std::uint64_t bits : in) hash = mixed(hash, bits);
    return mixed(hash, value);
  }

  // Written by an op that creates and may run again: its results do not depend
  // on it.
  bool isSideEffect(std::uint32_t op, Operand operand) const {
    const auto operands = cycle_.operandsOf(op);
    const bool creates =
        std::any_of(operands.begin(), operands.end(),
                    [](Operand each) { return each.creates(); });
    const bool persists = std::none_of(
        cycle_.operands.begin(), cycle_.operands.end(), [&](Operand each) {
          return each.creates() && each.value() == operand.value();
        });
    return creates && persists && operand.dirties() &&
           cycle_.may_rerun[op] != 0;
  }

  void runOp(std::uint32_t op) {
    for (const Action action : plan_.actionsBefore(op)) {
      if (action.kind() != Action::Kind::kDrop) continue;
      Value& value = values_[action.value()];
      if (value.dropped) fail("dropped again", op);
      if (!value.all_recorded) fail("dropped without records", op);
      value.dropped = true;
    }
    for (const Operand operand : cycle_.operandsOf(op)) {
      if (!operand.creates()) restore(operand.value(), op, 0);
    }
    const bool recorded =
        std::binary_search(plan_.recorded.begin(), plan_.recorded.end(), op);
    std::vector<std::uint64_t> in;
    Record record{op, {}};
    for (const Operand operand : cycle_.operandsOf(op)) {
      Value& value = values_[operand.value()];
      if (operand.creates())
        value = Value{0, value.version + 1, false, {}, true};
      record.operands.push_back(
          {operand.value(), operand.flags(), value.version});
      if (operand.needsBytes() && !isSideEffect(op, operand)) {
        in.push_back(value.bits);
      }
    }
    records_.push_back(std::move(record));
    for (const Operand operand : cycle_.operandsOf(op)) {
      if (!operand.dirties()) continue;
      Value& value = values_[operand.value()];
      value.bits = result(op, in, operand.value());
      ++value.version;
      value.written_by.push_back(records_.size() - 1);
      value.all_recorded = value.all_recorded && recorded;
    }
  }

  // The bytes are made anew; `bits` is what they have to be.
  void restore(ValueIndex which, std::uint32_t op, int depth) {
    Value& value = values_[which];
    if (!value.dropped) return;
    if (depth > 200) return fail("a circle of drops", op);
    std::uint64_t bits = 0;
    for (const std::size_t index : std::vector(value.written_by)) {
      const Record& record = records_[index];
      std::vector<std::uint64_t> in;
      for (const Used& used : record.operands) {
        if ((used.flags & (Operand::kCreates | Operand::kOverwrites)) != 0 ||
            isSideEffect(record.op, Operand(used.value, used.flags))) {
          continue;
        }
        if (used.value == which) {
          in.push_back(bits);
          continue;
        }
        restore(used.value, op, depth + 1);
        if (values_[used.value].version != used.version) {
          // Written since: by the same ops that made this value?
          fail("value " + std::to_string(used.value) +
                   " was written since it was read",
               op);
        }
        in.push_back(values_[used.value].bits);
      }
      bits = result(record.op, in, which);
    }
    if (bits != value.bits) fail("other bits", op);
    value.dropped = false;
  }

  const Cycle& cycle_;
  const Plan& plan_;
  std::vector<Value> values_;
  std::vector<Record> records_;
  std::string problem_;
};

} // namespace

std::string check_reruns(const Cycle& cycle, const Plan& plan) {
  return Walk(cycle, plan).run();
}

} // namespace chameleon::memory
