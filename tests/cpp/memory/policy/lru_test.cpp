#include <algorithm>
#include <gtest/gtest.h>
#include <iterator>
#include <memory>
#include <random>
#include <set>
#include <vector>

#include "memory/policy/make_policy.h"

namespace chameleon::memory {
namespace {

bool any(const Block&) { return true; }
bool unpinned(const Block& block) { return block.pins() == 0; }

std::unique_ptr<Policy> made(std::string_view name) {
  static profiler::Profiler profiler;
  static const profiler::Durations durations;
  static NextActions next_actions;
  auto policy = make_policy(
      name, {profiler, durations, next_actions, {durations, {}}, 1 << 20});
  return policy.ok() ? std::move(*policy) : nullptr;
}

class LruTest : public ::testing::Test {
 protected:
  LruTest() : policy(made("lru")) {
    for (std::uint64_t i = 0; i < 100; ++i) {
      blocks.push_back(std::make_unique<Block>());
      blocks.back()->identity = i + 1;
    }
  }
  void use(std::size_t i, std::uint64_t tick) {
    blocks[i]->last_use_tick = tick;
  }

  std::unique_ptr<Policy> policy;
  std::vector<std::unique_ptr<Block>> blocks;
};

TEST_F(LruTest, Names) {
  EXPECT_EQ(policy->name(), "lru");
  for (std::string_view name : policy_names()) {
    ASSERT_NE(made(name), nullptr);
    EXPECT_EQ(made(name)->name(), name);
  }
  EXPECT_EQ(made("LRU"), nullptr);
  EXPECT_EQ(made(""), nullptr);
}

TEST_F(LruTest, NothingKnown) {
  EXPECT_EQ(policy->victim(any), nullptr);
  policy->left(*blocks[0]); // ignored
  EXPECT_EQ(policy->size(), 0u);
}

TEST_F(LruTest, UsesAfterEnteringCount) {
  for (std::size_t i = 0; i < 4; ++i) {
    use(i, i + 1);
    policy->entered(*blocks[i]);
  }
  use(0, 10);
  use(2, 9);
  for (std::size_t expected : {1u, 3u, 2u, 0u}) {
    EXPECT_EQ(policy->victim(any), blocks[expected].get());
  }
  EXPECT_EQ(policy->victim(any), nullptr);
}

TEST_F(LruTest, OneTickGoesInOrderOfCreation) {
  for (std::size_t i : {3u, 0u, 2u, 1u}) {
    use(i, 5);
    policy->entered(*blocks[i]);
  }
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(policy->victim(any), blocks[i].get());
  }
}

TEST_F(LruTest, UnusableBlocksStayKnown) {
  for (std::size_t i = 0; i < 3; ++i) {
    use(i, i);
    policy->entered(*blocks[i]);
  }
  blocks[0]->word = 1; // pinned
  blocks[2]->word = 1;
  EXPECT_EQ(policy->victim(unpinned), blocks[1].get());
  EXPECT_EQ(policy->victim(unpinned), nullptr);
  EXPECT_EQ(policy->size(), 2u);
  blocks[0]->word = 0;
  EXPECT_EQ(policy->victim(unpinned), blocks[0].get());
}

TEST_F(LruTest, TheNextVictimStaysKnown) {
  for (std::size_t i = 0; i < 3; ++i) {
    use(i, i);
    policy->entered(*blocks[i]);
  }
  blocks[0]->word = 1; // pinned
  EXPECT_EQ(policy->nextVictim(unpinned, {}), blocks[1].get());
  EXPECT_EQ(policy->nextVictim(unpinned, {}), blocks[1].get());
  EXPECT_EQ(policy->size(), 3u);
  EXPECT_EQ(policy->victim(unpinned), blocks[1].get());
  EXPECT_EQ(policy->nextVictim(unpinned, {}), blocks[2].get());
  EXPECT_EQ(policy->size(), 2u);
}

// What is not known is far away, and of that the longest unused goes first.
class FittingVictimTest : public LruTest {
 protected:
  FittingVictimTest() {
    policy = made("forecast");
    constexpr std::size_t kSizes[] = {400, 30, 100, 60, 50, 70};
    for (std::size_t i = 0; i < std::size(kSizes); ++i) {
      blocks[i]->rounded_bytes = kSizes[i] * 1024; // beyond what is "small"
      use(i, i);
      policy->entered(*blocks[i]);
    }
  }
  Block* victim(std::size_t kib) {
    return policy->victim(unpinned, {.piece_bytes = kib * 1024});
  }
};

TEST_F(FittingVictimTest, ForAPieceTheSmallestThatMakesIt) {
  EXPECT_EQ(policy->nextVictim(unpinned, {}), blocks[0].get());
  EXPECT_EQ(victim(51), blocks[3].get());
  EXPECT_EQ(victim(51), blocks[5].get());
  EXPECT_EQ(victim(51), blocks[2].get());
  EXPECT_EQ(victim(51), blocks[0].get()); // the only one
  EXPECT_EQ(policy->size(), 2u);
}

TEST_F(FittingVictimTest, TheFirstWhereNoneIsTooLarge) {
  EXPECT_EQ(victim(500), blocks[0].get());
  EXPECT_EQ(victim(50), blocks[1].get()); // of 30: more can move then
  EXPECT_EQ(policy->nextVictim(unpinned, {}), blocks[2].get());
}

TEST_F(FittingVictimTest, NoPinnedOne) {
  blocks[3]->word = 1;
  EXPECT_EQ(victim(51), blocks[5].get());
}

// Against a model that sorts, with uses, removals and victims in any order.
TEST_F(LruTest, AgreesWithAModel) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    std::mt19937_64 random(seed);
    policy = made("lru");
    std::set<std::size_t> known;
    std::uint64_t tick = 0;
    for (auto& block : blocks) {
      block->policy_slot = ~std::uint32_t{0};
      block->word = 0;
    }
    for (int step = 0; step < 2000; ++step) {
      const std::size_t i = random() % blocks.size();
      switch (random() % 5) {
        case 0:
          if (known.insert(i).second) {
            use(i, ++tick);
            policy->entered(*blocks[i]);
          }
          break;
        case 1:
          policy->left(*blocks[i]);
          known.erase(i);
          break;
        case 2:
          blocks[i]->word = random() % 2;
          break;
        case 3: {
          std::vector<std::size_t> order;
          for (std::size_t each : known) {
            if (unpinned(*blocks[each])) order.push_back(each);
          }
          const auto least = std::min_element(
              order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
                return blocks[a]->last_use_tick < blocks[b]->last_use_tick;
              });
          Block* const victim = policy->victim(unpinned);
          if (least == order.end()) {
            ASSERT_EQ(victim, nullptr);
          } else {
            ASSERT_EQ(victim, blocks[*least].get());
            known.erase(*least);
          }
          break;
        }
        default:
          use(i, ++tick);
          break;
      }
      ASSERT_EQ(policy->size(), known.size());
    }
  }
}

// A plan that is published while the op side settles when to ask next.
TEST(NextActions, AnAskMeanwhileIsNotLost) {
  const auto ticket = [](std::uint32_t position, std::uint32_t epoch) {
    profiler::OpTicket made{};
    made.position = position;
    made.epoch = epoch;
    return made;
  };
  NextActions next_actions;
  EXPECT_FALSE(next_actions.due(ticket(7, 1)));
  next_actions.ask();
  EXPECT_TRUE(next_actions.due(ticket(7, 1)));
  EXPECT_TRUE(next_actions.takeAsk());
  next_actions.ask();
  next_actions.askAt(1, 100);
  EXPECT_TRUE(next_actions.due(ticket(7, 1)));
  EXPECT_TRUE(next_actions.takeAsk());
  EXPECT_FALSE(next_actions.takeAsk());
  next_actions.askAt(1, 100);
  EXPECT_FALSE(next_actions.due(ticket(99, 1)));
  EXPECT_TRUE(next_actions.due(ticket(100, 1)));
  EXPECT_TRUE(next_actions.due(ticket(7, 2)));
}

} // namespace
} // namespace chameleon::memory
