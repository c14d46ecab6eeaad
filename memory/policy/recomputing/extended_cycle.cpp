#include "memory/policy/recomputing/extended_cycle.h"

#include <algorithm>

#include "backend/runtime/check.h"

namespace chameleon::memory {
namespace {

using profiler::Cycle;

class Extension {
 public:
  Extension(const Cycle& cycle, const RerunGraph& graph,
            const std::vector<std::uint8_t>& dropped, ExtendedCycle& result)
      : program_(cycle),
        graph_(graph),
        dropped_(dropped),
        result_(result),
        out_(result.cycle),
        again_(cycle.values(), kNone),
        last_use_(cycle.values(), kNone),
        ran_again_(graph.nodes.size()) {
    out_.value_bytes = cycle.value_bytes;
  }

  void run() {
    const auto ops = static_cast<std::uint32_t>(program_.ops());
    std::vector<std::uint32_t> at(ops); // of the program's ops
    for (std::uint32_t op = 0; op < ops; ++op) {
      for (const profiler::Operand operand : program_.operandsOf(op)) {
        if (isGone(operand.value(), op)) make(operand.value(), op);
      }
      at[op] = static_cast<std::uint32_t>(out_.ops());
      add(op, op);
      for (const profiler::Operand operand : program_.operandsOf(op)) {
        const ValueIndex value = operand.value();
        const bool second =
            dropped_[value] != 0 && op > graph_.values[value].last_before;
        addOperand(second ? again_[value] : value, operand.flags());
      }
    }
    free(at);
    for (NodeIndex node = 0; node < graph_.nodes.size(); ++node) {
      if (ran_again_[node] == 0) continue;
      const auto node_ops = graph_.opsOf(node);
      result_.recorded.insert(result_.recorded.end(), node_ops.begin(),
                              node_ops.end());
    }
    std::sort(result_.recorded.begin(), result_.recorded.end());
    for (ValueIndex value = 0; value < again_.size(); ++value) {
      if (again_[value] == kNone || dropped_[value] == 0) continue;
      result_.drops.emplace_back(graph_.values[value].last_before + 1, value);
    }
    std::sort(result_.drops.begin(), result_.drops.end());
  }

 private:
  bool isGone(ValueIndex value, std::uint32_t op) const {
    return dropped_[value] != 0 && again_[value] == kNone &&
           op > graph_.values[value].last_before;
  }

  void add(std::uint32_t op, std::uint32_t before) {
    out_.addOp(program_.duration_ns[op], program_.workspace_bytes[op]);
    result_.program_op.push_back(before);
  }

  void addOperand(ValueIndex value, std::uint32_t flags) {
    out_.addOperand(value, flags);
    last_use_[value] = static_cast<std::uint32_t>(out_.ops() - 1);
  }

  // The value, before the program's op, and what it needs first.
  void make(ValueIndex value, std::uint32_t before) {
    waiting_.assign(1, graph_.values[value].node);
    while (!waiting_.empty()) {
      const NodeIndex node = waiting_.back();
      NodeIndex first = kNone;
      for (const ValueIndex input : graph_.inputsOf(node)) {
        if (isGone(input, before)) first = graph_.values[input].node;
      }
      if (first != kNone) {
        CHAMELEON_CHECK(waiting_.size() < graph_.nodes.size(),
                        "a node needs what is made from it");
        waiting_.push_back(first);
        continue;
      }
      waiting_.pop_back();
      if (ran_again_[node] == 0) runAgain(node, before);
    }
  }

  void runAgain(NodeIndex node, std::uint32_t before) {
    ran_again_[node] = 1;
    for (const ValueIndex value : graph_.outputsOf(node)) {
      again_[value] = out_.addValue(program_.value_bytes[value]);
      last_use_.push_back(kNone);
      result_.again.push_back(value);
    }
    for (const std::uint32_t op : graph_.opsOf(node)) {
      add(op, before);
      for (const profiler::Operand operand : program_.operandsOf(op)) {
        const ValueIndex value = operand.value();
        if (graph_.isSideEffect(operand)) continue;
        const bool second =
            graph_.values[value].node == node || (dropped_[value] != 0);
        addOperand(second ? again_[value] : value, operand.flags());
      }
    }
  }

  // `at`: where the program's ops are.
  void free(const std::vector<std::uint32_t>& at) {
    std::vector<std::vector<ValueIndex>> dead(out_.ops());
    const auto die = [&](ValueIndex value, std::uint32_t op) {
      dead[op].push_back(value);
    };
    for (ValueIndex value = 0; value < program_.values(); ++value) {
      const RerunGraph::Value& life = graph_.values[value];
      const std::uint32_t freed = life.freed == kNone ? kNone : at[life.freed];
      const ValueIndex second = again_[value];
      if (dropped_[value] != 0) {
        die(value, at[life.last_before]);
        if (second == kNone || freed == kNone) continue;
        die(second, std::max(freed, last_use_[second]));
        continue;
      }
      if (second != kNone) die(second, last_use_[second]);
      if (freed == kNone) continue;
      const bool wraps = life.freed < life.created;
      die(value, wraps ? freed : std::max(freed, last_use_[value]));
    }
    for (std::size_t op = 0; op < out_.ops(); ++op) {
      out_.freed.insert(out_.freed.end(), dead[op].begin(), dead[op].end());
      out_.freed_end[op] = static_cast<std::uint32_t>(out_.freed.size());
    }
  }

  const Cycle& program_;
  const RerunGraph& graph_;
  const std::vector<std::uint8_t>& dropped_;
  ExtendedCycle& result_;
  Cycle& out_;
  std::vector<ValueIndex> again_;       // per value: its second life
  std::vector<std::uint32_t> last_use_; // per value of the result
  std::vector<std::uint8_t> ran_again_; // per node
  std::vector<NodeIndex> waiting_;
};

} // namespace

ExtendedCycle extend_cycle(const Cycle& cycle, const RerunGraph& graph,
                           const std::vector<std::uint8_t>& dropped) {
  ExtendedCycle extended;
  Extension(cycle, graph, dropped, extended).run();
  return extended;
}

Plan program_plan(const ExtendedCycle& extended, const Plan& plan) {
  Plan own;
  own.budget_bytes = plan.budget_bytes;
  own.modelled = plan.modelled;
  own.recorded = extended.recorded;
  auto drop = extended.drops.begin();
  std::vector<Action> later; // of values that ops run again still use
  std::vector<std::uint32_t> used_for(extended.cycle.values(), kNone);
  for (std::size_t op = 0; op < extended.program_op.size();) {
    const std::uint32_t program_op = extended.program_op[op];
    for (; drop != extended.drops.end() && drop->first == program_op; ++drop) {
      own.actions.emplace_back(Action::Kind::kDrop, drop->second);
    }
    for (const Action& action : later) own.actions.push_back(action);
    later.clear();
    for (; op < extended.program_op.size() &&
           extended.program_op[op] == program_op;
         ++op) {
      bool put_off = false; // a batch that lost its first copy is none
      for (const Action& action : plan.actionsBefore(op)) {
        const bool still_used = used_for[action.value()] == program_op;
        const bool joined = action.joined() && !still_used && !put_off;
        put_off = still_used;
        (still_used ? later : own.actions)
            .emplace_back(action.kind(), extended.programValue(action.value()),
                          joined);
      }
      for (const profiler::Operand operand : extended.cycle.operandsOf(op)) {
        used_for[operand.value()] = program_op;
      }
    }
    own.action_end.push_back(static_cast<std::uint32_t>(own.actions.size()));
  }
  // After the last op is before the first.
  own.actions.insert(own.actions.begin(), later.begin(), later.end());
  for (std::uint32_t& end : own.action_end) {
    end += static_cast<std::uint32_t>(later.size());
  }
  return own;
}

} // namespace chameleon::memory
