// What can be made again, on hand-made steps.
#include "memory/policy/recomputing/rerun_graph.h"

#include <cstdint>
#include <gtest/gtest.h>
#include <vector>

#include "memory/policy/recomputing/pass_boundaries.h"

namespace chameleon::memory {
namespace {

using profiler::Cycle;
using profiler::Operand;
constexpr std::uint32_t kReads = Operand::kReads;
constexpr std::uint32_t kUpdates = Operand::kReads | Operand::kWrites;
constexpr std::uint32_t kCreates = Operand::kCreates;

class Step {
 public:
  ValueIndex value(std::uint64_t bytes = 100) { return cycle.addValue(bytes); }
  struct Use {
    ValueIndex value;
    std::uint32_t flags;
  };
  void op(const std::vector<Use>& uses, const std::vector<ValueIndex>& frees,
          bool may_rerun = true) {
    cycle.addOp(10);
    cycle.may_rerun.push_back(may_rerun ? 1 : 0);
    for (const Use& use : uses) cycle.addOperand(use.value, use.flags);
    for (const ValueIndex value : frees) cycle.addFree(value);
  }
  Cycle cycle;
};

// weight -> a -> b -> c, and backward: c, b, a; `between` comes after forward.
struct Chain : Step {
  template <typename Between>
  explicit Chain(Between between, bool b_may_rerun = true) {
    weight = value();
    a = value();
    b = value();
    c = value();
    op({{weight, kReads}, {a, kCreates}}, {});
    op({{a, kReads}, {b, kCreates}}, {}, b_may_rerun);
    op({{b, kReads}, {c, kCreates}}, {});
    between(*this);
    op({{c, kReads}}, {c});
    op({{b, kReads}}, {b});
    op({{a, kReads}}, {a});
    op({{weight, kUpdates}}, {});
  }
  ValueIndex weight, a, b, c;
};

TEST(Turns, OneForwardAndBackward) {
  const Chain chain([](Step&) {});
  ASSERT_EQ(chain.cycle.problem(), "");
  const std::vector<Pass> passes = find_pass_boundaries(chain.cycle);
  ASSERT_EQ(passes.size(), 1U);
  EXPECT_EQ(passes[0].begin, 0U);
  EXPECT_EQ(passes[0].at, 3U);
  EXPECT_EQ(passes[0].end, 7U);
}

TEST(Turns, EachMicroBatchHasItsOwn) {
  Step step;
  for (int batch = 0; batch < 3; ++batch) {
    std::vector<ValueIndex> made;
    for (int layer = 0; layer < 4; ++layer) {
      made.push_back(step.value());
      step.op({{made.back(), kCreates}}, {});
    }
    for (; !made.empty(); made.pop_back()) {
      step.op({{made.back(), kReads}}, {made.back()});
    }
  }
  const std::vector<Pass> passes = find_pass_boundaries(step.cycle);
  ASSERT_EQ(passes.size(), 3U);
  for (std::uint32_t i = 0; i < 3; ++i) {
    EXPECT_EQ(passes[i].at, 8 * i + 4) << i;
    EXPECT_EQ(passes[i].begin, i > 0 ? passes[i - 1].end : 0) << i;
  }
  EXPECT_EQ(passes[2].end, 24U);
}

TEST(Turns, NoneWhereNothingWaits) {
  EXPECT_TRUE(find_pass_boundaries(Cycle()).empty());
  Step step;
  const ValueIndex weight = step.value();
  step.op({{weight, kUpdates}}, {});
  EXPECT_TRUE(find_pass_boundaries(step.cycle).empty());
}

TEST(RerunGraph, AChain) {
  const Chain chain([](Step&) {});
  const RerunGraph graph(chain.cycle);
  ASSERT_EQ(graph.nodes.size(), 3U);
  EXPECT_EQ(graph.values[chain.weight].node, kNone);
  for (const ValueIndex value : {chain.a, chain.b, chain.c}) {
    const NodeIndex node = graph.values[value].node;
    ASSERT_NE(node, kNone);
    EXPECT_EQ(graph.outputsOf(node).size(), 1U);
    EXPECT_EQ(graph.outputsOf(node)[0], value);
    EXPECT_EQ(graph.inputsOf(node)[0], value - 1);
    EXPECT_EQ(graph.nodes[node].duration_ns, 10);
  }
  EXPECT_EQ(graph.values[chain.a].last_before, 1U);
  EXPECT_EQ(graph.values[chain.a].first_after, 5U);
  EXPECT_EQ(graph.nodes[graph.values[chain.b].node].latest, 4U);
  // The program frees it with op 4.
  EXPECT_TRUE(graph.livesAt(chain.b, 4));
  EXPECT_FALSE(graph.livesAt(chain.b, 5));
  EXPECT_TRUE(graph.livesAt(chain.weight, 6));
}

TEST(RerunGraph, NothingWithoutLeave) {
  Chain chain([](Step&) {}, false);
  const RerunGraph graph(chain.cycle);
  EXPECT_EQ(graph.values[chain.b].node, kNone);
  EXPECT_NE(graph.values[chain.c].node, kNone);
  chain.cycle.may_rerun.clear();
  EXPECT_TRUE(RerunGraph(chain.cycle).nodes.empty());
}

// The weight is written before the values made from it are needed; b and c do
// not read it.
TEST(RerunGraph, AnOverwrittenInputIsGone) {
  const Chain chain([](Step& step) { step.op({{0, kUpdates}}, {}); });
  const RerunGraph graph(chain.cycle);
  EXPECT_EQ(graph.values[chain.a].node, kNone);
  EXPECT_NE(graph.values[chain.b].node, kNone);
}

TEST(RerunGraph, WritersInPlaceAreOfTheNode) {
  Step step;
  const ValueIndex x = step.value();
  const ValueIndex y = step.value();
  const ValueIndex z = step.value();
  step.op({{x, kCreates}}, {}, false);
  step.op({{x, kReads}, {y, kCreates}}, {});
  step.op({{y, kUpdates}}, {});
  step.op({{y, kReads}, {z, kCreates}}, {});
  step.op({{z, kReads}}, {z});
  step.op({{x, kReads}, {y, kReads}}, {x, y});
  const RerunGraph graph(step.cycle);
  const NodeIndex node = graph.values[y].node;
  ASSERT_NE(node, kNone);
  ASSERT_EQ(graph.opsOf(node).size(), 2U);
  EXPECT_EQ(graph.opsOf(node)[0], 1U);
  EXPECT_EQ(graph.opsOf(node)[1], 2U);
  EXPECT_EQ(graph.nodes[node].duration_ns, 20);
}

// z was made from what y was before it was finished.
TEST(RerunGraph, AnEarlierVersionIsGone) {
  Step step;
  const ValueIndex y = step.value();
  const ValueIndex z = step.value();
  step.op({{y, kCreates}}, {});
  step.op({{y, kReads}, {z, kCreates}}, {});
  step.op({{y, kUpdates}}, {});
  step.op({}, {});
  step.op({{z, kReads}}, {z});
  step.op({{y, kReads}}, {y});
  const RerunGraph graph(step.cycle);
  EXPECT_EQ(graph.values[z].node, kNone);
  EXPECT_NE(graph.values[y].node, kNone);
}

// z is finished with w, which is made from y.
struct FinishedWithW : Step {
  explicit FinishedWithW(bool by_one_op) {
    y = value();
    z = value();
    w = value();
    if (by_one_op) {
      op({{y, kCreates}, {z, kCreates}}, {});
    } else {
      op({{y, kCreates}}, {});
      op({{z, kCreates}}, {});
    }
    op({{y, kReads}, {w, kCreates}}, {});
    op({{z, kUpdates}, {w, kReads}}, {});
    op({}, {});
    op({{w, kReads}}, {w});
    op({{z, kReads}}, {z});
    op({{y, kReads}}, {y});
  }
  ValueIndex y, z, w;
};

// Where one op makes y and z, neither that node nor w's could run again first.
TEST(RerunGraph, NoNodeNeedsWhatIsMadeFromIt) {
  const FinishedWithW step(/*by_one_op=*/true);
  const RerunGraph graph(step.cycle);
  EXPECT_EQ(graph.values[step.y].node, kNone);
  EXPECT_EQ(graph.values[step.z].node, kNone);
  EXPECT_NE(graph.values[step.w].node, kNone);
}

// Else w is needed first, and can be.
TEST(RerunGraph, WhatANodeIsFinishedWithMayComeLater) {
  const FinishedWithW step(/*by_one_op=*/false);
  const RerunGraph graph(step.cycle);
  EXPECT_NE(graph.values[step.y].node, kNone);
  EXPECT_NE(graph.values[step.z].node, kNone);
  EXPECT_NE(graph.values[step.w].node, kNone);
}

TEST(RerunGraph, OpsThatWriteMoreAreNotRunAgain) {
  Step step;
  const ValueIndex statistics = step.value();
  const ValueIndex y = step.value();
  const ValueIndex z = step.value();
  step.op({{y, kCreates}}, {});
  step.op({{y, kUpdates}, {statistics, kUpdates}}, {});
  step.op({{z, kCreates}, {y, kUpdates}}, {});
  step.op({}, {});
  step.op({{z, kReads}}, {z});
  step.op({{y, kReads}}, {y});
  const RerunGraph graph(step.cycle);
  EXPECT_EQ(graph.values[y].node, kNone);
  EXPECT_EQ(graph.values[z].node, kNone);
}

// Batch norm: the running statistics are no input, and another one's update of
// them does not matter.
TEST(RerunGraph, SideEffectsOfWhatCreatesDoNotMatter) {
  Step step;
  const ValueIndex statistics = step.value();
  const ValueIndex x = step.value();
  const ValueIndex y = step.value();
  step.op({{x, kCreates}}, {}, false);
  step.op({{x, kReads}, {y, kCreates}, {statistics, kUpdates}}, {});
  step.op({{statistics, kUpdates}}, {});
  step.op({}, {});
  step.op({{y, kReads}}, {y});
  step.op({{x, kReads}}, {x});
  const RerunGraph graph(step.cycle);
  const NodeIndex node = graph.values[y].node;
  ASSERT_NE(node, kNone);
  ASSERT_EQ(graph.inputsOf(node).size(), 1U);
  EXPECT_EQ(graph.inputsOf(node)[0], x);
}

} // namespace
} // namespace chameleon::memory
