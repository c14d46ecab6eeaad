// Minimum cuts against all cuts there are.
#include "memory/policy/recomputing/min_cut.h"

#include <algorithm>
#include <cstdint>
#include <gtest/gtest.h>
#include <random>
#include <vector>

namespace chameleon::memory {
namespace {

struct Edge {
  MinCut::Vertex from;
  MinCut::Vertex to;
  MinCut::Price price;
};

// `sides`: a bit per vertex, set on the source's side.
MinCut::Price price_of(const std::vector<Edge>& edges, std::uint32_t sides) {
  MinCut::Price price = 0;
  for (const Edge& edge : edges) {
    if ((sides >> edge.from & 1) != 0 && (sides >> edge.to & 1) == 0) {
      price += edge.price;
    }
  }
  return price;
}

TEST(MinCut, IsTheCheapestOfAllCutsAndTheSmallestOfThose) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    std::mt19937_64 random(seed);
    const std::uint32_t vertices = 2 + random() % 7;
    MinCut cut;
    for (std::uint32_t v = 2; v < vertices; ++v) cut.addVertex();
    std::vector<Edge> edges;
    for (std::uint64_t n = random() % 20; n > 0; --n) {
      const Edge edge{static_cast<MinCut::Vertex>(random() % vertices),
                      static_cast<MinCut::Vertex>(random() % vertices),
                      static_cast<MinCut::Price>(random() % 6)};
      if (edge.from == edge.to) continue;
      edges.push_back(edge);
      cut.addEdge(edge.from, edge.to, edge.price);
    }
    const MinCut::Price found = cut.solve();
    std::uint32_t sides = 0;
    for (std::uint32_t v = 0; v < vertices; ++v) {
      if (cut.onSourceSide(v)) sides |= 1U << v;
    }
    ASSERT_EQ(sides & 3, 1U) << "seed " << seed;
    EXPECT_EQ(price_of(edges, sides), found) << "seed " << seed;
    for (std::uint32_t other = 0; other < 1U << vertices; ++other) {
      if ((other & 3) != 1) continue;
      ASSERT_GE(price_of(edges, other), found) << "seed " << seed;
      if (price_of(edges, other) == found) {
        EXPECT_EQ(sides & ~other, 0U) << "seed " << seed;
      }
    }
  }
}

TEST(MinCut, ALongChainNeedsNoStack) {
  MinCut cut;
  MinCut::Vertex last = MinCut::kSource;
  for (int i = 0; i < 200000; ++i) {
    const MinCut::Vertex next = cut.addVertex();
    cut.addEdge(last, next, i == 100000 ? 3 : MinCut::kNever);
    last = next;
  }
  cut.addEdge(last, MinCut::kSink, 5);
  EXPECT_EQ(cut.solve(), 3);
  EXPECT_TRUE(cut.onSourceSide(2));
  EXPECT_FALSE(cut.onSourceSide(last));
}

TEST(MinCut, WhatMustNotBeCutSaysSo) {
  MinCut cut;
  cut.addEdge(MinCut::kSource, MinCut::kSink, MinCut::kNever);
  EXPECT_GE(cut.solve(), MinCut::kNever);
}

} // namespace
} // namespace chameleon::memory
