// Where results are planned to lie: nothing is in the way of anything, within
// little more than what is live.
#include "memory/policy/placement.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <map>
#include <random>

#include "tests/cpp/memory/policy/random_cycles.h"
#include "tests/cpp/memory/policy/residual_network.h"

namespace chameleon::memory {
namespace {

using profiler::Cycle;
using profiler::Operand;
using profiler::ValueIndex;
using Place = Placement::Place;

constexpr std::uint64_t kAmple = std::uint64_t{1} << 60;

bool overlap(const Place& a, const Place& b) {
  return a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes;
}

// Runs a round as the pager does, from where all is packed. Returns the most
// that was live of what it allocated.
std::uint64_t walk(const Cycle& cycle, const Placement& placement) {
  std::map<ValueIndex, Place> live;
  std::uint64_t live_bytes = 0;
  std::uint64_t most_bytes = 0;
  const auto expectFree = [&](const Place& place) {
    for (const auto& [value, other] : live) {
      EXPECT_FALSE(overlap(place, other)) << "of value " << value;
    }
    EXPECT_LE(place.offset + place.bytes, placement.span_bytes);
  };
  for (std::size_t i = 0; i < cycle.ops(); ++i) {
    const std::size_t op = (placement.packed_before + i) % cycle.ops();
    const auto places = placement.of(op);
    auto place = places.begin();
    for (const Operand operand : cycle.operandsOf(op)) {
      const std::uint64_t bytes = cycle.value_bytes[operand.value()];
      if (!operand.creates() || bytes == 0) continue;
      EXPECT_EQ(place->bytes, bytes);
      EXPECT_FALSE(place->is_workspace);
      live_bytes += bytes;
      if (const auto before = live.find(operand.value()); before != live.end())
        live_bytes -= before->second.bytes; // its life ended just now
      live.erase(operand.value());
      expectFree(*place);
      live.emplace(operand.value(), *place++);
    }
    const std::uint64_t workspace_bytes = cycle.workspace_bytes[op];
    if (workspace_bytes > 0) {
      EXPECT_TRUE(place->is_workspace);
      EXPECT_EQ(place->bytes, workspace_bytes);
      expectFree(*place++);
    }
    EXPECT_EQ(place, places.end());
    most_bytes = std::max(most_bytes, live_bytes + workspace_bytes);
    for (const ValueIndex value : cycle.freedAfter(op)) {
      const auto dead = live.find(value);
      if (dead == live.end()) continue; // it was packed
      live_bytes -= dead->second.bytes;
      live.erase(dead);
    }
  }
  return most_bytes;
}

TEST(Placement, NothingLiesInTheWay) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 400; ++i) {
    const Cycle cycle = i % 2 == 0 ? random_training(random)
                                   : random_cycle(random, CycleShape{});
    const auto placement = place_values(cycle, kAmple);
    ASSERT_TRUE(placement.has_value());
    const std::uint64_t most_bytes = walk(cycle, *placement);
    EXPECT_GE(placement->span_bytes, most_bytes);
    if (HasFailure()) FAIL() << "cycle " << i;
  }
}

TEST(Placement, ATrainingTakesWhatIsLive) {
  const Cycle cycle = residual_network(12);
  const auto placement = place_values(cycle, kAmple);
  ASSERT_TRUE(placement.has_value());
  EXPECT_EQ(walk(cycle, *placement), placement->span_bytes);
}

// Best fit has the third behind the first, in the way of the fourth.
TEST(Placement, KnowsWhatIsToCome) {
  Cycle cycle;
  const ValueIndex first = cycle.addValue(4096);
  const ValueIndex second = cycle.addValue(1024);
  const ValueIndex third = cycle.addValue(1024);
  const ValueIndex fourth = cycle.addValue(5120);
  for (const ValueIndex value : {first, second, third, fourth}) {
    cycle.addOp(1);
    cycle.addOperand(value, Operand::kCreates);
    if (value == second) cycle.addFree(first);
    if (value == third) cycle.addFree(second);
  }
  cycle.addFree(third);
  cycle.addFree(fourth);
  const auto placement = place_values(cycle, kAmple);
  ASSERT_TRUE(placement.has_value());
  EXPECT_EQ(walk(cycle, *placement), 6144U);
  EXPECT_EQ(placement->span_bytes, 6144U);
}

TEST(Placement, APackingIsWhereTheLeastIsLive) {
  Cycle cycle;
  const ValueIndex gradient = cycle.addValue(1024); // alive across the end
  const ValueIndex activation = cycle.addValue(2048);
  cycle.addOp(1);
  cycle.addFree(gradient);
  cycle.addOp(1);
  cycle.addOperand(activation, Operand::kCreates);
  cycle.addOp(1);
  cycle.addOperand(gradient, Operand::kCreates);
  cycle.addFree(activation);
  const auto placement = place_values(cycle, kAmple);
  ASSERT_TRUE(placement.has_value());
  EXPECT_EQ(placement->packed_before, 1U);
  EXPECT_EQ(placement->span_bytes, 3072U);
}

TEST(Placement, WhatIsPackedCounts) {
  Cycle cycle;
  const ValueIndex parameter = cycle.addValue(1 << 20);
  const ValueIndex result = cycle.addValue(1 << 10);
  cycle.addOp(1);
  cycle.addOperand(parameter, Operand::kReads);
  cycle.addOperand(result, Operand::kCreates);
  cycle.addFree(result);
  constexpr std::uint64_t kNeeded = (1 << 20) + (1 << 10);
  EXPECT_TRUE(place_values(cycle, kNeeded).has_value());
  // By less than a hundredth: a few places are not had then.
  EXPECT_TRUE(place_values(cycle, kNeeded - kNeeded / 200).has_value());
  EXPECT_FALSE(place_values(cycle, kNeeded - kNeeded / 50).has_value());
  EXPECT_FALSE(place_values(Cycle{}, kAmple).has_value());
}

} // namespace
} // namespace chameleon::memory
