#include "memory/policy/recomputing/rerun_graph.h"

#include <algorithm>
#include <utility>

namespace chameleon::memory {
namespace {

using profiler::Cycle;

// A node while it is not known yet whether it can be run again.
struct PossibleNode {
  std::uint32_t pass = 0;
  std::uint32_t latest = kNone; // kNone: nobody will want it
  bool possible = true;
  std::vector<std::uint32_t> ops;
  std::vector<ValueIndex> outputs;
};

class Analysis {
 public:
  Analysis(const Cycle& cycle, RerunGraph& graph)
      : cycle_(cycle),
        graph_(graph),
        made_by_(cycle.values(), kNone),
        next_write_(cycle.operands.size(), kNone),
        consumers_(cycle.values()),
        carried_(cycle.values()) {}

  void run() {
    graph_.values.resize(cycle_.values());
    findLives();
    for (std::uint32_t pass = 0; pass < graph_.passes.size(); ++pass) {
      findNodes(pass);
    }
    findConsumers();
    breakCircles();
    // Consumers come after what they consume.
    for (std::size_t i = candidates_.size(); i-- > 0;) judge(candidates_[i]);
    for (const PossibleNode& candidate : candidates_) keep(candidate);
  }

 private:
  void findLives() {
    const auto ops = static_cast<std::uint32_t>(cycle_.ops());
    for (std::uint32_t op = 0; op < ops; ++op) {
      for (const profiler::Operand operand : cycle_.operandsOf(op)) {
        if (operand.creates()) graph_.values[operand.value()].created = op;
      }
      for (const ValueIndex value : cycle_.freedAfter(op)) {
        graph_.values[value].freed = op;
      }
    }
    // Of each operand, who writes the value next in this step.
    std::vector<std::uint32_t> writer(cycle_.values(), kNone);
    for (std::uint32_t op = ops; op-- > 0;) {
      for (std::uint32_t i = cycle_.operand_end[op]; i-- > firstOperand(op);) {
        const profiler::Operand operand = cycle_.operands[i];
        next_write_[i] = writer[operand.value()];
        if (operand.dirties()) writer[operand.value()] = op;
      }
    }
    for (std::uint32_t op = 0; op < ops; ++op) {
      for (const profiler::Operand operand : cycle_.operandsOf(op)) {
        const std::uint32_t created = graph_.values[operand.value()].created;
        if (created != kNone && op < created) carried_[operand.value()] = 1;
      }
    }
    for (const Pass& pass : graph_.passes) {
      for (std::uint32_t op = pass.begin; op < ops; ++op) {
        for (const profiler::Operand operand : cycle_.operandsOf(op)) {
          use(operand.value(), op, pass);
        }
      }
    }
  }

  void use(ValueIndex value, std::uint32_t op, const Pass& pass) {
    RerunGraph::Value& life = graph_.values[value];
    if (life.created == kNone || life.created < pass.begin ||
        life.created >= pass.at || op < life.created) {
      return;
    }
    if (op < pass.at) {
      life.last_before = op;
    } else if (life.first_after == kNone) {
      life.first_after = op;
    }
  }

  std::uint32_t firstOperand(std::uint32_t op) const {
    return op == 0 ? 0 : cycle_.operand_end[op - 1];
  }

  void findNodes(std::uint32_t pass) {
    const Pass& range = graph_.passes[pass];
    for (std::uint32_t op = range.begin; op < range.at; ++op) {
      const std::span<const profiler::Operand> operands = cycle_.operandsOf(op);
      const bool creates = std::any_of(
          operands.begin(), operands.end(),
          [](profiler::Operand operand) { return operand.creates(); });
      if (creates) {
        candidates_.emplace_back();
        candidates_.back().pass = pass;
      }
      const auto fresh = static_cast<std::uint32_t>(candidates_.size() - 1);
      for (const profiler::Operand operand : operands) {
        if (!operand.creates()) continue;
        made_by_[operand.value()] = fresh;
        candidates_[fresh].outputs.push_back(operand.value());
      }
      // The node that this op is of: that of all it writes.
      std::uint32_t node = creates ? fresh : kNone;
      bool mixed = false;
      std::uint32_t own = 0;
      for (const profiler::Operand operand : operands) {
        const std::uint32_t owner = ownerIn(pass, operand.value());
        if (operand.dirties() && !(creates && graph_.isSideEffect(operand))) {
          if (node == kNone) node = owner;
          mixed = mixed || owner == kNone || owner != node;
        }
        if (owner != kNone && owner == node) ++own;
      }
      if (node == kNone) continue;
      candidates_[node].ops.push_back(op);
      mixed = mixed || (!creates && own > 1);
      // What is written here cannot be made again by running one node.
      if (!mixed && cycle_.may_rerun[op] != 0) continue;
      for (const profiler::Operand operand : operands) {
        const std::uint32_t owner = ownerIn(pass, operand.value());
        if (operand.dirties() && owner != kNone) {
          candidates_[owner].possible = false;
        }
      }
    }
  }

  // What made the value before the pass's boundary, on its way there.
  std::uint32_t ownerIn(std::uint32_t pass, ValueIndex value) const {
    const std::uint32_t owner = made_by_[value];
    return owner == kNone || candidates_[owner].pass != pass ? kNone : owner;
  }

  void findConsumers() {
    for (std::uint32_t i = 0; i < candidates_.size(); ++i) {
      for (const std::uint32_t op : candidates_[i].ops) {
        for (const profiler::Operand operand : cycle_.operandsOf(op)) {
          if (made_by_[operand.value()] != i) {
            consumers_[operand.value()].push_back(i);
          }
        }
      }
    }
  }

  // Those that use an output of it, once for each use.
  template <typename Each>
  void forConsumers(const PossibleNode& candidate, const Each& each) const {
    for (const ValueIndex value : candidate.outputs) {
      std::ranges::for_each(consumers_[value], each);
    }
  }

  // An op may finish a result in place with what was made from another result
  // of the same op: neither of the two nodes could run again first. Goes
  // through the nodes as they could run. Where none can, the first one left
  // waits for a later one, in a circle or behind one, and is given up.
  void breakCircles() {
    std::vector<std::size_t> missing(candidates_.size()); // inputs
    for (const PossibleNode& candidate : candidates_) {
      forConsumers(candidate, [&](std::uint32_t i) { ++missing[i]; });
    }
    std::vector<std::uint8_t> is_done(candidates_.size());
    std::vector<std::uint32_t> ready;
    const auto go = [&] {
      while (!ready.empty()) {
        const std::uint32_t node = ready.back();
        ready.pop_back();
        if (std::exchange(is_done[node], 1) != 0) continue;
        forConsumers(candidates_[node], [&](std::uint32_t i) {
          if (--missing[i] == 0) ready.push_back(i);
        });
      }
    };
    for (std::uint32_t i = 0; i < candidates_.size(); ++i) {
      if (missing[i] == 0) ready.push_back(i);
    }
    go();
    for (std::uint32_t i = 0; i < candidates_.size(); ++i) {
      if (is_done[i] != 0) continue;
      candidates_[i].possible = false;
      ready.push_back(i);
      go();
    }
  }

  void judge(PossibleNode& candidate) {
    const auto node =
        static_cast<std::uint32_t>(&candidate - candidates_.data());
    for (const ValueIndex value : candidate.outputs) {
      const RerunGraph::Value& life = graph_.values[value];
      // It is needed in the next step.
      if (carried_[value] != 0 ||
          (life.freed != kNone && life.freed < life.created)) {
        candidate.possible = false;
      }
      want(candidate, life.first_after);
      for (const std::uint32_t consumer : consumers_[value]) {
        if (candidates_[consumer].possible) {
          want(candidate, candidates_[consumer].latest);
        }
      }
    }
    if (candidate.latest == kNone) candidate.possible = false;
    for (const std::uint32_t op : candidate.ops) {
      for (std::uint32_t i = firstOperand(op); i < cycle_.operand_end[op];
           ++i) {
        const ValueIndex value = cycle_.operands[i].value();
        if (made_by_[value] == node || !candidate.possible ||
            graph_.isSideEffect(cycle_.operands[i])) {
          continue;
        }
        const RerunGraph::Value& life = graph_.values[value];
        const bool of_last_step = life.created != kNone && life.created > op;
        if (of_last_step ||
            (next_write_[i] != kNone && next_write_[i] < candidate.latest)) {
          candidate.possible = false;
        }
      }
    }
  }

  static void want(PossibleNode& candidate, std::uint32_t at) {
    if (at == kNone) return;
    candidate.latest =
        candidate.latest == kNone ? at : std::max(candidate.latest, at);
  }

  void keep(const PossibleNode& candidate) {
    if (!candidate.possible) return;
    const auto node =
        static_cast<std::uint32_t>(&candidate - candidates_.data());
    RerunGraph::Node kept{
        candidate.ops.front(), candidate.pass, candidate.latest, 0, 0, 0, 0};
    const std::size_t first = graph_.node_inputs.size();
    for (const std::uint32_t op : candidate.ops) {
      kept.duration_ns += cycle_.duration_ns[op];
      graph_.node_ops.push_back(op);
      for (const profiler::Operand operand : cycle_.operandsOf(op)) {
        if (made_by_[operand.value()] != node &&
            !graph_.isSideEffect(operand)) {
          graph_.node_inputs.push_back(operand.value());
        }
      }
    }
    const auto begin =
        graph_.node_inputs.begin() + static_cast<std::ptrdiff_t>(first);
    std::sort(begin, graph_.node_inputs.end());
    graph_.node_inputs.erase(std::unique(begin, graph_.node_inputs.end()),
                             graph_.node_inputs.end());
    for (const ValueIndex value : candidate.outputs) {
      graph_.node_outputs.push_back(value);
      graph_.values[value].node = static_cast<NodeIndex>(graph_.nodes.size());
    }
    kept.op_end = static_cast<std::uint32_t>(graph_.node_ops.size());
    kept.input_end = static_cast<std::uint32_t>(graph_.node_inputs.size());
    kept.output_end = static_cast<std::uint32_t>(graph_.node_outputs.size());
    graph_.nodes.push_back(kept);
  }

  const Cycle& cycle_;
  RerunGraph& graph_;
  std::vector<PossibleNode> candidates_;  // by their first ops
  std::vector<std::uint32_t> made_by_;    // per value; kNone: by no candidate
  std::vector<std::uint32_t> next_write_; // per operand of the cycle
  std::vector<std::vector<std::uint32_t>> consumers_; // per value
  std::vector<std::uint8_t> carried_; // per value: over the step's end
};

} // namespace

RerunGraph::RerunGraph(const Cycle& cycle)
    : passes(find_pass_boundaries(cycle)) {
  if (cycle.may_rerun.empty()) passes.clear();
  Analysis(cycle, *this).run();
}

} // namespace chameleon::memory
