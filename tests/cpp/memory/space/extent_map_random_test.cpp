// ExtentMap under long random sequences of calls: against a model at every
// step, and how full it gets.
#include <algorithm>
#include <cstdint>
#include <gtest/gtest.h>
#include <iterator>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "memory/space/extent_map.h"

namespace chameleon::memory {
namespace {

constexpr std::size_t kUnit = ExtentMap::kAlignment;
constexpr std::size_t kKiB = std::size_t{1} << 10;
constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr ExtentUse kUse = ExtentUse::kBlock;

// The same map as a list of holes and a list of uses, searched from end to
// end.
class Model {
 public:
  explicit Model(std::size_t capacity) : limit_(capacity) {
    if (capacity > 0) holes_[0] = capacity;
  }

  // The size of the hole that must be taken, 0: none.
  std::size_t bestSize(std::size_t bytes) const {
    std::size_t best = 0;
    for (const auto& [offset, hole] : holes_) {
      if (hole >= bytes && (best == 0 || hole < best)) best = hole;
    }
    return best;
  }
  // Where an exact search would cut.
  std::size_t nearest(std::size_t bytes, End end) const {
    const std::size_t best = bestSize(bytes);
    std::size_t found = 0;
    for (const auto& [offset, hole] : holes_) {
      if (hole != best) continue;
      if (end == End::kBottom) return offset;
      found = offset + hole - bytes;
    }
    return found;
  }
  // Takes the bytes; returns the size of their hole, 0: they were not free.
  std::size_t take(std::size_t offset, std::size_t bytes, End end) {
    auto hole = holes_.upper_bound(offset);
    if (hole == holes_.begin()) return 0;
    --hole;
    const auto [begin, size] = *hole;
    const std::size_t expected =
        end == End::kBottom ? begin : begin + size - bytes;
    if (offset != expected || size < bytes) return 0;
    holes_.erase(hole);
    if (size > bytes) {
      holes_[end == End::kBottom ? begin + bytes : begin] = size - bytes;
    }
    used_[offset] = bytes;
    return size;
  }
  void give(std::size_t offset) {
    const auto found = used_.find(offset);
    add(offset, found->second);
    used_.erase(found);
  }
  void slideDown(std::size_t offset) {
    const auto found = used_.find(offset);
    const std::size_t bytes = found->second;
    auto hole = std::prev(holes_.lower_bound(offset));
    const std::size_t to = hole->first;
    const std::size_t gap = hole->second;
    holes_.erase(hole);
    used_.erase(found);
    used_[to] = bytes;
    add(to + bytes, gap);
  }
  bool setLimit(std::size_t limit) {
    if (!used_.empty() &&
        used_.rbegin()->first + used_.rbegin()->second > limit) {
      return false;
    }
    if (limit > limit_) {
      add(limit_, limit - limit_);
    } else if (limit < limit_) {
      auto hole = std::prev(holes_.end());
      hole->second = limit - hole->first;
      if (hole->second == 0) holes_.erase(hole);
    }
    limit_ = limit;
    return true;
  }
  bool equals(const ExtentMap& map) const {
    std::size_t holes = 0;
    std::size_t used = 0;
    std::size_t end = 0;
    std::size_t largest = 0;
    for (const Extent* e = map.first(); e != nullptr; e = e->next) {
      if (e->use == ExtentUse::kClosed) break;
      const auto& side = e->use == ExtentUse::kFree ? holes_ : used_;
      const auto found = side.find(e->offset);
      if (found == side.end() || found->second != e->bytes) return false;
      ++(e->use == ExtentUse::kFree ? holes : used);
      if (e->use == ExtentUse::kFree) largest = std::max(largest, e->bytes);
      end = e->offset + e->bytes;
    }
    return holes == holes_.size() && used == used_.size() && end == limit_ &&
           map.limit() == limit_ && map.largestFree() == largest;
  }

 private:
  void add(std::size_t offset, std::size_t bytes) {
    auto [at, inserted] = holes_.emplace(offset, bytes);
    if (const auto above = std::next(at);
        above != holes_.end() && offset + bytes == above->first) {
      at->second += above->second;
      holes_.erase(above);
    }
    if (at == holes_.begin()) return;
    if (const auto below = std::prev(at);
        below->first + below->second == offset) {
      below->second += at->second;
      holes_.erase(at);
    }
  }

  std::size_t limit_;
  std::map<std::size_t, std::size_t> holes_;
  std::map<std::size_t, std::size_t> used_;
};

struct RandomCase {
  std::uint64_t seed;
  std::size_t capacity;
  std::size_t max_bytes;
};

class ExtentMapRandom : public testing::TestWithParam<RandomCase> {};

TEST_P(ExtentMapRandom, AgreesWithTheModelAtEveryStep) {
  const auto [seed, capacity, max_bytes] = GetParam();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  ExtentMap map(capacity);
  Model model(capacity);
  std::vector<Extent*> live;
  const auto pick = [&](std::size_t n) {
    return static_cast<std::size_t>(random() % n);
  };
  std::size_t refused = 0;
  constexpr int kSteps = 50000;
  RecordProperty("random_operations", kSteps);
  for (int step = 0; step < kSteps; ++step) {
    const std::size_t action = pick(100);
    if (action < 48) {
      // Few distinct sizes now and then, so that equals occur.
      std::size_t bytes = 1 + pick(max_bytes);
      if (pick(2) == 0) bytes = (1 + pick(4)) * (max_bytes / 4);
      const End end = pick(2) == 0 ? End::kBottom : End::kTop;
      const std::size_t best = model.bestSize(ExtentMap::round(bytes));
      const std::size_t nearest = model.nearest(ExtentMap::round(bytes), end);
      Extent* extent = map.allocate(bytes, end, kUse);
      ASSERT_EQ(extent != nullptr, best != 0) << "step " << step;
      if (extent == nullptr) {
        ++refused;
      } else {
        ASSERT_EQ(model.take(extent->offset, extent->bytes, end), best)
            << "step " << step;
        if (best > FreeIndex::kSmallBytes) {
          ASSERT_EQ(extent->offset, nearest) << "step " << step;
        }
        live.push_back(extent);
      }
    } else if (action < 92) {
      if (live.empty()) continue;
      std::swap(live[pick(live.size())], live.back());
      model.give(live.back()->offset);
      map.free(live.back());
      live.pop_back();
    } else if (action < 97) {
      if (live.empty()) continue;
      Extent* extent = live[pick(live.size())];
      if (extent->previous == nullptr ||
          extent->previous->use != ExtentUse::kFree) {
        continue;
      }
      model.slideDown(extent->offset);
      map.slideDown(extent);
    } else {
      // Mostly open, so that the map fills up.
      const std::size_t limit =
          pick(3) == 0 ? pick(capacity / kUnit + 1) * kUnit : capacity;
      ASSERT_EQ(map.setLimit(limit), model.setLimit(limit)) << "step " << step;
    }
    map.check();
    ASSERT_TRUE(model.equals(map)) << "step " << step;
  }
  EXPECT_GT(refused, 0u); // the map was full at times
}

INSTANTIATE_TEST_SUITE_P(Sizes, ExtentMapRandom,
                         testing::Values(RandomCase{1, 64 * kUnit, 8 * kUnit},
                                         RandomCase{2, 200 * kUnit, 6 * kUnit},
                                         RandomCase{3, 4 * kMiB, 400 * kKiB},
                                         RandomCase{4, 16 * kMiB, 700 * kKiB},
                                         RandomCase{5, 3 * kMiB, 90 * kKiB}),
                         [](const auto& instance) {
                           return "seed" + std::to_string(instance.param.seed);
                         });

// ---- fragmentation ---------------------------------------------------------

// What a training step of a transformer asks for: many small ones (biases,
// norms, scalars), weights and activations of a few repeated shapes, some odd
// workspaces; the largest is 1 % of the whole.
std::size_t realistic_size(std::mt19937_64& random, std::size_t whole) {
  const std::size_t unit = whole / 1600;
  switch (random() % 8) {
    case 0:
      return 4 + random() % 64;
    case 1:
      return 4 * (256 << random() % 4);
    case 2:
      return unit;
    case 3:
      return 4 * unit;
    case 4:
      return 16 * unit;
    case 5:
      return 3 * unit + random() % unit;
    case 6:
      return 1 + random() % (4 * unit);
    default:
      return 2 * unit;
  }
}

// Slides everything down. Returns how many bytes had to move.
std::size_t compact(ExtentMap& map) {
  std::size_t moved = 0;
  for (Extent* extent = map.first(); extent != nullptr; extent = extent->next) {
    if (extent->use == ExtentUse::kFree || extent->previous == nullptr ||
        extent->previous->use != ExtentUse::kFree) {
      continue;
    }
    moved += extent->bytes;
    map.slideDown(extent);
  }
  return moved;
}

TEST(ExtentMapFragmentation, FillsUpUnderARealisticMix) {
  constexpr std::size_t kWhole = 512 * kMiB;
  ExtentMap map(kWhole);
  std::mt19937_64 random(11);
  std::vector<Extent*> live;
  double filled = 0;
  int blocked = 0; // enough was free, but no hole was large enough
  int full = 0;
  std::size_t moved = 0;
  for (int step = 0; step < 40000; ++step) {
    const std::size_t bytes = realistic_size(random, kWhole);
    Extent* extent = map.allocate(bytes, End::kBottom, kUse);
    if (extent == nullptr) {
      filled += static_cast<double>(map.usedBytes()) / kWhole;
      const bool enough = map.freeBytes() >= ExtentMap::round(bytes);
      ++(enough ? blocked : full);
      if (enough) {
        moved += compact(map);
        map.check();
        ASSERT_EQ(map.largestFree(), map.freeBytes());
        extent = map.allocate(bytes, End::kBottom, kUse);
        ASSERT_NE(extent, nullptr);
      } else {
        // Nothing but compaction's own limit is left: all but one request.
        EXPECT_GE(map.usedBytes(), kWhole / 100 * 98);
        for (int i = 0; i < 64; ++i) {
          std::swap(live[random() % live.size()], live.back());
          map.free(live.back());
          live.pop_back();
        }
        continue;
      }
    }
    live.push_back(extent);
    if (random() % 100 < 45) {
      std::swap(live[random() % live.size()], live.back());
      map.free(live.back());
      live.pop_back();
    }
  }
  map.check();
  ASSERT_GT(full, 0);
  const double mean = filled / (blocked + full);
  RecordProperty("mean_fill_when_refused", std::to_string(mean));
  RecordProperty("compactions", blocked);
  RecordProperty("moved_wholes", static_cast<int>(moved / kWhole));
  EXPECT_GE(mean, 0.95);
}

} // namespace
} // namespace chameleon::memory
