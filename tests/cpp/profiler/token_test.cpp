#include "profiler/token.h"

#include <gtest/gtest.h>
#include <random>
#include <set>
#include <vector>

namespace chameleon::profiler {
namespace {

Token token_of(std::uint64_t op, const std::vector<std::uint64_t>& words) {
  TokenHasher hasher(op);
  for (const std::uint64_t word : words) hasher.add(word);
  return hasher.token();
}

TEST(Token, IsAConstantOfItsWords) {
  static_assert(TokenHasher(1).token() == TokenHasher(1).token());
  EXPECT_EQ(token_of(3, {1, 2}), token_of(3, {1, 2}));
  EXPECT_NE(token_of(3, {1, 2}), token_of(3, {2, 1}));
  EXPECT_NE(token_of(3, {1, 2}), token_of(4, {1, 2}));
  EXPECT_NE(token_of(3, {0}), token_of(3, {0, 0}));
  EXPECT_NE(token_of(3, {}), token_of(3, {0}));
}

TEST(Token, SmallNeighbouringShapesDoNotCollide) {
  std::set<Token> tokens;
  std::size_t count = 0;
  for (std::uint64_t op = 0; op < 20; ++op) {
    for (std::uint64_t a = 0; a < 20; ++a) {
      for (std::uint64_t b = 0; b < 20; ++b) {
        for (std::uint64_t c = 0; c < 8; ++c) {
          tokens.insert(token_of(op, {a, b, c << 56}));
          ++count;
        }
      }
    }
  }
  EXPECT_EQ(tokens.size(), count);
}

TEST(Token, EveryBitInChangesAboutHalfTheBitsOut) {
  std::mt19937_64 random(11);
  for (int word = 0; word < 3; ++word) {
    for (int bit = 0; bit < 64; ++bit) {
      int changed = 0;
      constexpr int kTries = 50;
      for (int i = 0; i < kTries; ++i) {
        std::vector<std::uint64_t> words{random(), random(), random()};
        const Token before = token_of(1, words);
        words[static_cast<std::size_t>(word)] ^= std::uint64_t{1} << bit;
        changed += __builtin_popcountll(before ^ token_of(1, words));
      }
      EXPECT_NEAR(changed, 32 * kTries, 8 * kTries) << word << " " << bit;
    }
  }
}

TEST(Token, QuickHalvesOfNeighbouringSizesDoNotCollide) {
  std::set<QuickToken> tokens;
  std::size_t count = 0;
  for (std::uint64_t op = 0; op < 20; ++op) {
    for (std::uint64_t a = 0; a < 30; ++a) {
      for (std::uint64_t b = 0; b < 30; ++b) {
        QuickHasher hasher(op);
        hasher.add(a);
        hasher.add(b);
        tokens.insert(hasher.token());
        ++count;
      }
    }
  }
  EXPECT_GE(tokens.size() + 1, count); // of 18,000 in 2^32
  const Token whole = whole_token(0x0123456789abcdef, 42);
  EXPECT_EQ(quick_half(whole), 42U);
  EXPECT_EQ(whole >> 32, 0x01234567U);
}

} // namespace
} // namespace chameleon::profiler
