#include "memory/evacuation.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <random>
#include <vector>

namespace chameleon::memory {
namespace {

using Kind = Part::Kind;

Part hole(std::size_t bytes, std::size_t waits = 0) {
  return {Kind::kFree, bytes, waits};
}
Part block(std::size_t bytes) { return {Kind::kMovable, bytes, bytes}; }
Part fixed(std::size_t bytes) { return {Kind::kStays, bytes, 0}; }

// What is moved, and how much of it, if it is as it should be.
std::size_t costOf(const std::vector<Part>& parts, std::size_t bytes,
                   const Evacuation& evacuation) {
  std::size_t held = 0;
  std::vector<std::size_t> to_move;
  for (std::size_t i = evacuation.begin; i < evacuation.end; ++i) {
    EXPECT_NE(parts[i].kind, Kind::kStays);
    held += parts[i].bytes;
    if (parts[i].kind == Kind::kMovable) to_move.push_back(i);
  }
  EXPECT_GE(held, bytes);
  std::vector<std::size_t> left;
  for (const Part& part : parts) left.push_back(part.bytes);
  std::vector<std::size_t> moved;
  std::size_t cost = 0;
  for (const Evacuation::Move& move : evacuation.moves) {
    EXPECT_EQ(parts[move.hole].kind, Kind::kFree);
    EXPECT_TRUE(move.hole < evacuation.begin || move.hole >= evacuation.end);
    EXPECT_LE(parts[move.from].bytes, left[move.hole]);
    left[move.hole] -= parts[move.from].bytes;
    moved.push_back(move.from);
    cost += parts[move.from].cost;
  }
  std::sort(moved.begin(), moved.end());
  EXPECT_EQ(moved, to_move);
  return cost;
}

TEST(EvacuationTest, TakesTheCheapestPlace) {
  const std::vector<Part> parts = {hole(4),  block(8), hole(4),  fixed(1),
                                   hole(4),  block(2), hole(10), fixed(1),
                                   block(3), hole(5)};
  const auto found = find_evacuation(parts, 12);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->begin, 5U); // two bytes to move, of 12
  EXPECT_EQ(found->end, 7U);
  EXPECT_EQ(costOf(parts, 12, *found), 2U);
}

TEST(EvacuationTest, PassesByAPlaceWhoseBlocksFitNowhere) {
  // The cheapest place holds a block of 6, and outside there is room for 5 and
  // for 3: enough bytes, but in pieces.
  const std::vector<Part> parts = {hole(5),  fixed(1), block(6), hole(6),
                                   fixed(1), block(3), block(4), hole(5),
                                   fixed(1), hole(3)};
  const auto found = find_evacuation(parts, 12);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->begin, 5U);
  EXPECT_EQ(costOf(parts, 12, *found), 7U);
}

TEST(EvacuationTest, TheLargestFirstEachIntoTheSmallestHole) {
  const std::vector<Part> parts = {hole(9),  fixed(1), block(2),
                                   block(5), hole(3),  fixed(1),
                                   hole(5),  fixed(1), hole(2)};
  const auto found = find_evacuation(parts, 10);
  ASSERT_TRUE(found);
  ASSERT_EQ(found->moves.size(), 2U);
  EXPECT_EQ(found->moves[0].from, 3U);
  EXPECT_EQ(found->moves[0].hole, 6U);
  EXPECT_EQ(found->moves[1].from, 2U);
  EXPECT_EQ(found->moves[1].hole, 8U);
}

TEST(EvacuationTest, RatherIntoRoomThatNobodyHasToWaitFor) {
  const std::vector<Part> parts = {hole(4, 7), fixed(1), block(4), hole(4),
                                   fixed(1),   hole(6),  fixed(1), hole(5, 2)};
  const auto found = find_evacuation(parts, 8);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->moves[0].hole, 5U);
}

TEST(EvacuationTest, NothingWhereNoPlaceCanBeEmptied) {
  EXPECT_FALSE(find_evacuation({}, 1));
  const std::vector<Part> apart = {hole(4), fixed(1), hole(4)};
  EXPECT_FALSE(find_evacuation(apart, 5));
  const std::vector<Part> full = {hole(4), block(5), hole(4)};
  EXPECT_FALSE(find_evacuation(full, 9));
}

TEST(EvacuationTest, RandomPlacesCanBeEmptied) {
  std::mt19937 random(1);
  std::size_t succeeded = 0;
  for (int round = 0; round < 2000; ++round) {
    std::vector<Part> parts;
    std::size_t free_bytes = 0;
    for (std::size_t i = random() % 40; i > 0; --i) {
      const std::size_t bytes = 1 + random() % 16;
      switch (random() % 5) {
        case 0:
          parts.push_back(fixed(bytes));
          break;
        case 1:
        case 2:
          if (!parts.empty() && parts.back().kind == Kind::kFree) break;
          parts.push_back(hole(bytes, random() % 3));
          free_bytes += bytes;
          break;
        default:
          parts.push_back({Kind::kMovable, bytes, bytes * (1 + random() % 2)});
      }
    }
    const std::size_t bytes = 1 + random() % 32;
    const auto found = find_evacuation(parts, bytes);
    if (!found) continue;
    ++succeeded;
    EXPECT_LE(bytes,
              free_bytes + 15); // what is in the place has gone elsewhere
    (void)costOf(parts, bytes, *found);
  }
  EXPECT_GT(succeeded, 500U);
}

} // namespace
} // namespace chameleon::memory
