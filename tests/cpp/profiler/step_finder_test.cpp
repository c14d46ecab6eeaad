#include "profiler/step_finder.h"

#include <gtest/gtest.h>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace chameleon::profiler {
namespace {

// One letter a round.
void feed(StepFinder& finder, const std::string& rounds) {
  for (const char c : rounds) {
    finder.roundEnded(static_cast<PathId>(c), 100);
  }
}
char next_of(const std::string& rounds) {
  StepFinder finder;
  feed(finder, rounds);
  return static_cast<char>(finder.next());
}
std::string group_of(const std::string& rounds) {
  StepFinder finder;
  feed(finder, rounds);
  std::string group;
  for (const PathId path : finder.group()) group += static_cast<char>(path);
  return group;
}

TEST(StepFinder, KnowsNothingAtFirst) {
  StepFinder finder;
  EXPECT_EQ(finder.next(), 0U);
  EXPECT_TRUE(finder.group().empty());
}

TEST(StepFinder, WhatNeverChangedGoesOn) {
  EXPECT_EQ(next_of("a"), 'a');
  EXPECT_EQ(next_of(std::string(1000, 'a')), 'a');
}

TEST(StepFinder, CountsRounds) {
  EXPECT_EQ(next_of("aaabbaaa"), 'b');
  EXPECT_EQ(next_of("aaabbaa"), 'a');
  EXPECT_EQ(next_of("aaabbaaab"), 'b');
  EXPECT_EQ(next_of("aaabbaaabb"), 'a');
  // Longer than ever: it goes on.
  EXPECT_EQ(next_of("aaabbaaaa"), 'a');
}

TEST(StepFinder, AShortRoundThatGoesOnAndOnIsUnrolled) {
  for (const std::uint32_t ops : {1U, 3U, StepFinder::kShortRound - 1}) {
    StepFinder finder;
    std::uint64_t seen = 0;
    while (seen + ops < StepFinder::kSteadyOps) {
      finder.roundEnded(7, ops);
      seen += ops;
      ASSERT_TRUE(finder.group().empty()) << ops << " " << seen;
    }
    finder.roundEnded(7, ops);
    const std::vector<PathId> group = finder.group();
    EXPECT_EQ(std::set<PathId>(group.begin(), group.end()),
              (std::set<PathId>{7}));
    EXPECT_GE(group.size() * ops, StepFinder::kUnrolledOps);
    EXPECT_LT((group.size() - 1) * ops, StepFinder::kUnrolledOps);
  }
  StepFinder finder; // long enough as it is
  for (int i = 0; i < 1000; ++i) finder.roundEnded(7, StepFinder::kShortRound);
  EXPECT_TRUE(finder.group().empty());
}

TEST(StepFinder, TheLongestContextDecides) {
  EXPECT_EQ(next_of("xabcyabdxab"), 'c');
  EXPECT_EQ(next_of("xabcyabdyab"), 'd');
}

TEST(StepFinder, TheMajorityDecidesAmongEqualContexts) {
  EXPECT_EQ(next_of("abacabab"
                    "ab"
                    "a"),
            'b');
}

TEST(StepFinder, OneRareRoundDoesNotChangeTheLoop) {
  EXPECT_EQ(next_of("aaaaaaaasaaaa"), 'a');
}

TEST(StepFinder, NextAfterIsNextOnceTheRoundHasEnded) {
  std::mt19937 random(17);
  StepFinder finder;
  for (int i = 0; i < 120; ++i) {
    const auto path = static_cast<PathId>(1 + random() % 3);
    const PathId after = finder.nextAfter(path);
    finder.roundEnded(path, 10);
    ASSERT_EQ(finder.next(), after) << i;
  }
}

TEST(StepFinder, FindsGroupsAtTheirSecondEnd) {
  EXPECT_EQ(group_of("aaaa"), "");
  EXPECT_EQ(group_of("aaab"), "");
  EXPECT_EQ(group_of("aaabaaa"), "");
  EXPECT_EQ(group_of("aaabaaab"), "aaab");
  EXPECT_EQ(group_of("xaaabaaab"), "aaab");
  EXPECT_EQ(group_of("aabaaab"), "");
  EXPECT_EQ(group_of("aaabbaaabb"), "aaabb");
  EXPECT_EQ(group_of("abcabc"), "abc");
}

TEST(StepFinder, GroupsAreBounded) {
  StepFinder finder;
  for (int i = 0; i < 2; ++i) {
    finder.roundEnded(1, StepFinder::kMaxGroupOps);
    finder.roundEnded(2, 100);
  }
  EXPECT_TRUE(finder.group().empty());
}

TEST(StepFinder, AGroupTakesThePlaceOfItsRounds) {
  StepFinder finder;
  feed(finder, "aabaab");
  finder.grouped(7, 300);
  EXPECT_EQ(finder.next(), 7U);
  EXPECT_TRUE(finder.group().empty());
}

TEST(StepFinder, LearnsAnyShortCycleWithinTwoRounds) {
  std::mt19937 random(19);
  for (int run = 0; run < 100; ++run) {
    std::string cycle;
    const auto length = 2 + random() % 20;
    for (unsigned i = 0; i < length; ++i) {
      cycle += static_cast<char>('a' + random() % 4);
    }
    StepFinder finder;
    feed(finder, cycle + cycle + cycle);
    std::string expected;
    for (int i = 0; i < 40; ++i) {
      const char c = cycle[static_cast<std::size_t>(i) % cycle.size()];
      // (Where the cycle's ends are alike, its first run was cut short.)
      if (cycle.front() != cycle.back()) {
        ASSERT_EQ(static_cast<char>(finder.next()), c) << cycle << " " << i;
      }
      feed(finder, std::string(1, c));
    }
  }
}

TEST(StepFinder, WhatEndedSoonIsAPartOfWhatRepeats) {
  EXPECT_EQ(group_of("abcbc"), "bc"); // it may go on
  EXPECT_EQ(group_of("abcbcbcd"
                     "abcbc"),
            "");
  EXPECT_EQ(group_of("abcbcbcd"
                     "abcbcbcd"),
            "abcbcbcd");
  std::string often = "a";
  for (std::size_t i = 0; i < StepFinder::kLongRepetition; ++i) often += "bc";
  EXPECT_EQ(group_of(often + "dabcbc"), "bc");
}

} // namespace
} // namespace chameleon::profiler
