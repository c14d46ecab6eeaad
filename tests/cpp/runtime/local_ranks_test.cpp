#include "backend/runtime/local_ranks.h"

#include <cstdlib>
#include <gtest/gtest.h>
#include <string>

namespace chameleon::runtime {
namespace {

std::string failure(const char* world_size, const char* rank) {
  const auto ranks = parse_local_ranks(world_size, rank, "");
  return ranks.ok() ? "" : ranks.error().message();
}

TEST(LocalRanks, WithoutALauncherThereIsOneProcess) {
  for (const char* rank : {"", "0", "3", "x"}) { // a script's own
    const LocalRanks ranks = parse_local_ranks("", rank, "0").value();
    EXPECT_EQ(ranks.count, 1);
    EXPECT_EQ(ranks.rank, 0);
    EXPECT_FALSE(ranks.sees_one_card);
  }
}

TEST(LocalRanks, AsTheLauncherSays) {
  LocalRanks ranks = parse_local_ranks("8", "7", "").value();
  EXPECT_EQ(ranks.count, 8);
  EXPECT_EQ(ranks.rank, 7);
  EXPECT_FALSE(ranks.sees_one_card);
  ranks = parse_local_ranks(" 2 ", "", "").value();
  EXPECT_EQ(ranks.count, 2);
  EXPECT_EQ(ranks.rank, 0);
}

TEST(LocalRanks, WhatMakesNoSense) {
  const std::string end =
      ", as torchrun sets it; where no launcher started this process, unset "
      "LOCAL_WORLD_SIZE";
  for (const std::string text :
       {"two", "0", "-1", "1.5", "2x", "99999999999", "0x2", "+2"}) {
    EXPECT_EQ(failure(text.c_str(), "0"),
              "environment variable LOCAL_WORLD_SIZE = \"" + text +
                  "\": must be a whole number, 1 or more" + end);
  }
  for (const std::string text : {"first", "-1", "2", "0.5"}) {
    EXPECT_EQ(failure("2", text.c_str()),
              "environment variable LOCAL_RANK = \"" + text +
                  "\": must be a whole number from 0 to 1, with "
                  "LOCAL_WORLD_SIZE = 2" +
                  end);
  }
}

TEST(LocalRanks, TheEnvironmentIsRead) {
  setenv("LOCAL_WORLD_SIZE", "4", 1);
  setenv("LOCAL_RANK", "3", 1);
  setenv("CUDA_VISIBLE_DEVICES", "3", 1);
  const LocalRanks ranks = read_local_ranks().value();
  unsetenv("LOCAL_WORLD_SIZE");
  unsetenv("LOCAL_RANK");
  unsetenv("CUDA_VISIBLE_DEVICES");
  EXPECT_EQ(ranks.count, 4);
  EXPECT_EQ(ranks.rank, 3);
  EXPECT_TRUE(ranks.sees_one_card);
  EXPECT_EQ(read_local_ranks().value().count, 1);
}

TEST(LocalRanks, RanksOnACard) {
  struct Case {
    int ranks, cards, on_a_card;
  };
  for (const auto& [count, cards, on_a_card] :
       {Case{1, 1, 1}, Case{1, 8, 1}, Case{8, 8, 1}, Case{2, 8, 1},
        Case{2, 1, 2}, Case{4, 2, 2}, Case{5, 2, 3}, Case{3, 2, 2}}) {
    EXPECT_EQ(ranks_on_a_card({0, count}, cards), on_a_card)
        << count << " ranks, " << cards << " cards";
  }
}

TEST(LocalRanks, AProcessThatIsShownOneCardHasIt) {
  const LocalRanks one = parse_local_ranks("8", "5", "GPU-5ab1").value();
  EXPECT_EQ(ranks_on_a_card(one, 1), 1);
  const LocalRanks two = parse_local_ranks("8", "5", "0,1").value();
  EXPECT_EQ(ranks_on_a_card(two, 2), 4);
  EXPECT_EQ(ranks_on_a_card(two, 1), 8); // the other one does not work
}

} // namespace
} // namespace chameleon::runtime
