#include "backend/runtime/cpu/work_order.h"

#include <gtest/gtest.h>
#include <random>
#include <vector>

namespace chameleon::runtime {
namespace {

TEST(WorkOrder, OwnLineIsInOrder) {
  WorkOrder order;
  EXPECT_TRUE(order.follows(1, {1, 99}));
  EXPECT_FALSE(order.follows(1, {2, 1}));
}

TEST(WorkOrder, WaitsAreTransitive) {
  WorkOrder order;
  order.wait({2, 5}, {3, 7}); // line 2, entry 5, waits for line 3's 7
  EXPECT_TRUE(order.follows(2, {3, 7}));
  EXPECT_FALSE(order.follows(2, {3, 8}));
  order.wait({1, 1}, {2, 4}); // before line 2 waited
  EXPECT_FALSE(order.follows(1, {3, 1}));
  order.wait({1, 2}, {2, 5});
  EXPECT_TRUE(order.follows(1, {3, 7}));
  EXPECT_FALSE(order.follows(3, {2, 1}));
}

TEST(WorkOrder, DoneKeepsWhatIsInForce) {
  WorkOrder order;
  order.wait({2, 1}, {3, 7});
  order.wait({2, 2}, {3, 8});
  order.done({2, 2});
  order.wait({1, 1}, {2, 6});
  EXPECT_TRUE(order.follows(1, {3, 8}));
}

// Against reachability in the graph of all entries.
TEST(WorkOrder, AgreesWithReachability) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  constexpr std::size_t kLines = 4;
  WorkOrder order;
  // before[line][n - 1][other]: how far into `other` entry n can look back.
  std::vector<std::vector<std::uint64_t>> before[kLines];
  for (int step = 0; step < 400; ++step) {
    const auto line = static_cast<LineIndex>(random() % kLines);
    std::vector<std::uint64_t> seen = before[line].empty()
                                          ? std::vector<std::uint64_t>(kLines)
                                          : before[line].back();
    const LinePosition at{line, before[line].size() + 1};
    const auto other = static_cast<LineIndex>(random() % kLines);
    if (other != line && !before[other].empty()) {
      const LinePosition waited{other, 1 + random() % before[other].size()};
      order.wait(at, waited);
      const auto& theirs = before[other][waited.count - 1];
      for (std::size_t i = 0; i < kLines; ++i) {
        seen[i] = std::max(seen[i], theirs[i]);
      }
    }
    seen[line] = at.count;
    before[line].push_back(seen);
    for (std::size_t i = 0; i < kLines; ++i) {
      if (i == line) continue;
      const auto index = static_cast<LineIndex>(i);
      ASSERT_FALSE(order.follows(line, {index, seen[i] + 1}));
      if (seen[i] > 0) {
        ASSERT_TRUE(order.follows(line, {index, seen[i]}));
      }
    }
  }
}

} // namespace
} // namespace chameleon::runtime
