#include "profiler/cycle.h"

#include <gtest/gtest.h>

namespace chameleon::profiler {
namespace {

// Persistent 0; transient 1 of one op; transient 2 across the end of the step.
Cycle example() {
  Cycle cycle;
  for (const std::uint64_t bytes : {10, 20, 30}) cycle.addValue(bytes);
  cycle.addOp(100, 5);
  cycle.addOperand(0, Operand::kReads);
  cycle.addOperand(1, Operand::kCreates);
  cycle.addFree(2);
  cycle.addOp(200);
  cycle.addOperand(1, Operand::kReads);
  cycle.addOperand(2, Operand::kCreates);
  cycle.addFree(1);
  return cycle;
}

TEST(Cycle, HoldsWhatWasAdded) {
  const Cycle cycle = example();
  EXPECT_EQ(cycle.problem(), "");
  EXPECT_EQ(cycle.ops(), 2U);
  EXPECT_EQ(cycle.values(), 3U);
  ASSERT_EQ(cycle.operandsOf(1).size(), 2U);
  EXPECT_EQ(cycle.operandsOf(1)[1], Operand(2, Operand::kCreates));
  ASSERT_EQ(cycle.freedAfter(0).size(), 1U);
  EXPECT_EQ(cycle.freedAfter(0)[0], 2U);
  EXPECT_EQ(cycle.workspace_bytes[0], 5U);
}

TEST(Cycle, OperandsSayWhatTheyNeed) {
  EXPECT_TRUE(Operand(7, Operand::kReads).needsBytes());
  EXPECT_FALSE(Operand(7, Operand::kReads).dirties());
  EXPECT_TRUE(Operand(7, 0).needsBytes());
  EXPECT_TRUE(Operand(7, Operand::kWrites).needsBytes());
  EXPECT_TRUE(Operand(7, Operand::kWrites).dirties());
  EXPECT_FALSE(Operand(7, Operand::kOverwrites).needsBytes());
  EXPECT_TRUE(Operand(7, Operand::kOverwrites).dirties());
  EXPECT_FALSE(Operand(7, Operand::kCreates).needsBytes());
  const Operand last(Cycle::kMaxValues - 1, 15);
  EXPECT_EQ(last.value(), Cycle::kMaxValues - 1);
  EXPECT_EQ(last.flags(), 15U);
}

TEST(Cycle, EveryProblemHasItsSentence) {
  Cycle cycle = example();
  cycle.addOperand(3, Operand::kReads);
  EXPECT_EQ(cycle.problem(), "value 3 does not exist at op 1");
  cycle = example();
  cycle.addOperand(1, Operand::kReads);
  EXPECT_EQ(cycle.problem(), "value 1 occurs twice at op 1");
  cycle = example();
  cycle.addOp(1);
  cycle.addOperand(2, Operand::kCreates);
  EXPECT_EQ(cycle.problem(), "value 2 is created again at op 2");
  cycle = example();
  cycle.addOp(1);
  cycle.addOperand(1, Operand::kReads);
  EXPECT_EQ(cycle.problem(), "value 1 is used while it is dead at op 2");
  cycle = example();
  cycle.addFree(0);
  EXPECT_EQ(cycle.problem(), "value 0 is freed but never created at op 1");
  cycle = example();
  cycle.addOp(1);
  cycle.addFree(1);
  EXPECT_EQ(cycle.problem(), "value 1 is freed again at op 2");
  cycle = example();
  cycle.addOp(-1);
  EXPECT_EQ(cycle.problem(), "op 2 takes less than no time");
  cycle = example();
  cycle.workspace_bytes.pop_back();
  EXPECT_EQ(cycle.problem(), "arrays per op differ in length");
}

TEST(Cycle, ATransientMayNeverBeFreed) {
  Cycle cycle;
  cycle.addValue(1);
  cycle.addOp(1);
  cycle.addOperand(0, Operand::kReads); // of the step before
  cycle.addOp(1);
  cycle.addOperand(0, Operand::kCreates);
  EXPECT_EQ(cycle.problem(), "");
}

} // namespace
} // namespace chameleon::profiler
