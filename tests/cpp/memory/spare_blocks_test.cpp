// Spare blocks by themselves: counts, displacement, limits, threads.
#include "memory/spare_blocks.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <thread>
#include <vector>

namespace chameleon::memory {
namespace {

constexpr std::size_t kNoLimit = SIZE_MAX;

class SpareBlocksTest : public ::testing::Test {
 protected:
  Block& block(std::size_t rounded_bytes) {
    owned_.push_back(std::make_unique<Block>());
    owned_.back()->rounded_bytes = rounded_bytes;
    return *owned_.back();
  }
  static std::vector<Block*> chain(Block* first) {
    std::vector<Block*> blocks;
    for (; first != nullptr; first = first->next_released) {
      blocks.push_back(first);
    }
    return blocks;
  }
  // Two sizes that share a place.
  std::pair<std::size_t, std::size_t> colliding() {
    for (std::size_t size = 1024;; size += 512) {
      EXPECT_EQ(spares.put(block(512), kNoLimit), nullptr);
      const bool displaced = spares.put(block(size), kNoLimit) != nullptr;
      spares.takeAll();
      if (displaced) return {512, size};
    }
  }

  SpareBlocks spares;

 private:
  std::vector<std::unique_ptr<Block>> owned_;
};

TEST_F(SpareBlocksTest, TheLastOneOfASizeGoesFirst) {
  Block& first = block(512);
  Block& second = block(512);
  Block& other = block(1024);
  for (Block* each : {&first, &second, &other}) {
    EXPECT_EQ(spares.put(*each, kNoLimit), nullptr);
    spares.check();
  }
  EXPECT_EQ(spares.bytes(), 2048u);
  EXPECT_EQ(spares.take(1536), nullptr);
  EXPECT_EQ(spares.take(512), &second);
  EXPECT_EQ(spares.take(512), &first);
  EXPECT_EQ(spares.take(512), nullptr);
  EXPECT_EQ(spares.bytes(), 1024u);
  EXPECT_EQ(spares.take(1024), &other);
  EXPECT_EQ(spares.bytes(), 0u);
  spares.check();
}

TEST_F(SpareBlocksTest, TheLimitHoldsToTheByte) {
  EXPECT_EQ(spares.put(block(1024), 1536), nullptr);
  Block& refused = block(1024);
  EXPECT_EQ(spares.put(refused, 1536), &refused);
  EXPECT_EQ(refused.next_released, nullptr);
  EXPECT_EQ(spares.put(block(512), 1536), nullptr);
  EXPECT_EQ(spares.put(refused, 0), &refused);
  EXPECT_EQ(spares.bytes(), 1536u);
  spares.check();
}

TEST_F(SpareBlocksTest, SoManyOfOneSizeAndNoMore) {
  for (std::uint32_t i = 0; i < SpareBlocks::kMaxPerSize; ++i) {
    EXPECT_EQ(spares.put(block(512), kNoLimit), nullptr);
  }
  Block& refused = block(512);
  EXPECT_EQ(spares.put(refused, kNoLimit), &refused);
  spares.check();
  EXPECT_EQ(chain(spares.takeAll()).size(), SpareBlocks::kMaxPerSize);
  EXPECT_EQ(spares.bytes(), 0u);
  EXPECT_EQ(spares.put(refused, kNoLimit), nullptr);
  spares.check();
}

TEST_F(SpareBlocksTest, ANewSizeDisplacesAnother) {
  const auto [old_size, new_size] = colliding();
  Block& first = block(old_size);
  Block& second = block(old_size);
  Block& third = block(new_size);
  EXPECT_EQ(spares.put(first, kNoLimit), nullptr);
  EXPECT_EQ(spares.put(second, kNoLimit), nullptr);
  EXPECT_EQ(chain(spares.put(third, kNoLimit)),
            (std::vector<Block*>{&second, &first}));
  EXPECT_EQ(spares.bytes(), new_size);
  spares.check();
  EXPECT_EQ(spares.take(old_size), nullptr);
  EXPECT_EQ(spares.take(new_size), &third);
  // A place that is empty displaces nothing.
  EXPECT_EQ(spares.put(first, kNoLimit), nullptr);
  spares.check();
}

TEST_F(SpareBlocksTest, AgreesWithAModel) {
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    std::mt19937_64 random(seed);
    std::map<std::size_t, std::vector<Block*>> model; // by size
    std::vector<Block*> outside;
    for (int i = 0; i < 200; ++i) {
      outside.push_back(&block(512 * (1 + random() % 24)));
    }
    const std::size_t limit = 512 * (100 + random() % 2000);
    std::size_t bytes = 0;
    for (int step = 0; step < 2000; ++step) {
      const std::size_t size = 512 * (1 + random() % 24);
      if (random() % 64 == 0) {
        const std::vector<Block*> all = chain(spares.takeAll());
        std::set<Block*> expected;
        for (const auto& [_, blocks] : model) {
          expected.insert(blocks.begin(), blocks.end());
        }
        ASSERT_EQ(std::set<Block*>(all.begin(), all.end()), expected);
        ASSERT_EQ(all.size(), expected.size());
        outside.insert(outside.end(), all.begin(), all.end());
        model.clear();
        bytes = 0;
      } else if (random() % 2 == 0 && !outside.empty()) {
        Block* const given = outside.back();
        outside.pop_back();
        const std::vector<Block*> rejected = chain(spares.put(*given, limit));
        const bool refused = rejected.size() == 1 && rejected[0] == given;
        ASSERT_EQ(refused, bytes + given->rounded_bytes > limit ||
                               model[given->rounded_bytes].size() ==
                                   SpareBlocks::kMaxPerSize);
        outside.insert(outside.begin(), rejected.begin(), rejected.end());
        if (!refused) {
          if (!rejected.empty()) { // all of one other size
            std::vector<Block*>& displaced = model[rejected[0]->rounded_bytes];
            ASSERT_NE(rejected[0]->rounded_bytes, given->rounded_bytes);
            ASSERT_EQ(displaced.size(), rejected.size());
            bytes -= displaced.size() * rejected[0]->rounded_bytes;
            displaced.clear();
          }
          model[given->rounded_bytes].push_back(given);
          bytes += given->rounded_bytes;
        }
      } else {
        Block* const taken = spares.take(size);
        std::vector<Block*>& same = model[size];
        ASSERT_EQ(taken, same.empty() ? nullptr : same.back());
        if (taken != nullptr) {
          same.pop_back();
          outside.push_back(taken);
          bytes -= size;
        }
      }
      ASSERT_EQ(spares.bytes(), bytes);
      spares.check();
    }
    spares.takeAll();
  }
}

// Every block is in one place at a time, whoever comes and goes.
TEST_F(SpareBlocksTest, Threads) {
  constexpr int kThreads = 4;
  std::vector<std::vector<Block*>> owned(kThreads);
  for (std::vector<Block*>& blocks : owned) {
    for (int i = 0; i < 64; ++i) blocks.push_back(&block(512 * (1 + i % 4)));
  }
  std::vector<std::thread> threads;
  for (int id = 0; id < kThreads; ++id) {
    threads.emplace_back([&, id] {
      std::vector<Block*>& mine = owned[id];
      const auto own = [&](Block* first) {
        for (Block* each : chain(first)) mine.push_back(each);
      };
      std::mt19937_64 random(static_cast<std::uint64_t>(id));
      for (int i = 0; i < 20000; ++i) {
        if (random() % 2 == 0 && !mine.empty()) {
          Block* const given = mine.back();
          mine.pop_back();
          own(spares.put(*given, kNoLimit));
        } else if (id == 0 && random() % 16 == 0) {
          own(spares.takeAll());
        } else if (Block* taken = spares.take(512 * (1 + random() % 4))) {
          mine.push_back(taken);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  spares.check();
  std::set<Block*> all;
  std::size_t count = 0;
  owned.push_back(chain(spares.takeAll()));
  for (const std::vector<Block*>& blocks : owned) {
    all.insert(blocks.begin(), blocks.end());
    count += blocks.size();
  }
  EXPECT_EQ(count, 64u * kThreads);
  EXPECT_EQ(all.size(), count);
}

} // namespace
} // namespace chameleon::memory
