// What of a cycle can be made again, from what, and until when: the data flow
// that the joint planner chooses from.
//
// A *node* is what is run again as a whole: an op that creates values, and the
// ops after it that finish them in place (batch norm, then relu_), in order.
// They are all its outputs' writers before the pass boundary. A node can be run
// again if all of its ops may be, they write nothing but its own outputs (after
// the first one each only one, and reads no other), and the inputs hold what
// they held: nobody writes an input between the op that read it and the last
// place at which the node may be wanted. Nor does a node need, in the end, what
// is made from its own outputs. What persists may be written by the op that
// creates: as it may be run again, that is a side effect (batch norm's running
// statistics), which its results do not depend on and a re-run does not have.
//
// That place follows from the rule that a dropped value is made again just
// before the first op after the boundary that needs it, together with what its
// making needs: a node is wanted at the latest where one of its outputs, or of
// the outputs of nodes made from them, is first needed.
//
// Cost: O(operands). Thread safety: immutable.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "memory/policy/recomputing/pass_boundaries.h"
#include "profiler/cycle.h"

namespace chameleon::memory {

using profiler::kNone;
using profiler::ValueIndex;
using NodeIndex = std::uint32_t;

struct RerunGraph {
  explicit RerunGraph(const profiler::Cycle& cycle);

  struct Value {
    std::uint32_t created = kNone; // kNone: persistent
    std::uint32_t freed = kNone;   // kNone: lives until it is made again
    NodeIndex node = kNone;        // that makes it again; kNone: none can
    // Of a value that is made before a boundary: its last use before it, and
    // its first one at it or later, if the program has one.
    std::uint32_t last_before = kNone;
    std::uint32_t first_after = kNone;
  };
  struct Node {
    std::uint32_t created; // the first of its ops
    std::uint32_t pass;
    std::uint32_t latest;     // the op before which it is wanted at the latest
    std::int64_t duration_ns; // of all its ops
    std::uint32_t op_end;     // into node_ops, and so on
    std::uint32_t input_end;
    std::uint32_t output_end;
  };

  std::vector<Pass> passes;
  std::vector<Value> values;
  std::vector<Node> nodes; // that can be run again, by their first ops
  std::vector<std::uint32_t> node_ops;
  std::vector<ValueIndex> node_inputs; // each once
  std::vector<ValueIndex> node_outputs;

  std::span<const std::uint32_t> opsOf(NodeIndex node) const noexcept {
    return slice(node_ops, &Node::op_end, node);
  }
  std::span<const ValueIndex> inputsOf(NodeIndex node) const noexcept {
    return slice(node_inputs, &Node::input_end, node);
  }
  std::span<const ValueIndex> outputsOf(NodeIndex node) const noexcept {
    return slice(node_outputs, &Node::output_end, node);
  }
  // The operand of an op of a node is a side effect, and no input.
  bool isSideEffect(profiler::Operand operand) const noexcept {
    return operand.dirties() && values[operand.value()].created == kNone;
  }
  // The program has it at `op` without being asked to keep it.
  bool livesAt(ValueIndex value, std::uint32_t op) const noexcept {
    const Value& life = values[value];
    return life.freed == kNone || life.created == kNone ||
           life.freed < life.created || life.freed >= op;
  }

 private:
  std::span<const std::uint32_t> slice(const std::vector<std::uint32_t>& all,
                                       std::uint32_t Node::* end,
                                       NodeIndex node) const noexcept {
    const std::uint32_t from = node == 0 ? 0 : nodes[node - 1].*end;
    return {all.data() + from, nodes[node].*end - from};
  }
};

} // namespace chameleon::memory
