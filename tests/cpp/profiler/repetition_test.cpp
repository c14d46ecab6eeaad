// Repetition against its definition, on recordings that are made at random.
#include "profiler/repetition.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <random>
#include <vector>

namespace chameleon::profiler {
namespace {

using Random = std::mt19937;

std::uint32_t below(Random& random, std::uint32_t bound) {
  return static_cast<std::uint32_t>(random() % bound);
}

PathValue value_of(std::uint32_t birth_op) {
  PathValue value;
  value.bytes = 4096;
  value.birth_op = birth_op;
  return value;
}

// Loops of a few ops, whose operands are carried values and results of ops not
// long ago; now and then an op is another one.
class Recorded {
 public:
  explicit Recorded(std::uint32_t seed) : random_(seed) {
    path_.clear(seed + 1);
    for (std::uint32_t i = 0; i < 4; ++i) path_.addValue(value_of(kNone));
    period_ = 1 + below(random_, 12);
    every_ = 1U << below(random_, 8);
    breaks_ = 40U << 2 * below(random_, 3);
  }

  const OpPath& path() const { return path_; }

  void add() {
    const std::uint32_t at = path_.size();
    if (below(random_, breaks_) == 0) ++phase_;
    const std::uint32_t kind = (at + phase_) % period_;
    path_.addOp(kind, kind + (below(random_, breaks_) == 0 ? 100 : 0));
    if (below(random_, every_) == 0) {
      path_.addUse(kind % 4, Operand::kReads);
    } else if (at > 2) {
      const std::uint32_t other = below(random_, breaks_) == 0 ? 1 : 0;
      path_.addUse(results_[at - 1 - (kind + other) % 3], Operand::kReads);
    }
    results_.push_back(path_.addValue(value_of(at)));
    path_.addResult(results_.back());
  }

 private:
  Random random_;
  OpPath path_;
  std::uint32_t period_;
  std::uint32_t every_;  // so many ops one is on a carried value
  std::uint32_t breaks_; // so many ops one is another one than in a loop
  std::uint32_t phase_ = 0;
  std::vector<std::uint32_t> results_;
};

// Each pair of operands is one value, or was born equally long ago; what is
// carried is what the round before makes later on.
bool is_equal(const OpPath& path, std::uint32_t earlier, std::uint32_t later,
              bool& shares) {
  const auto here = path.uses(earlier);
  const auto there = path.uses(later);
  if (path.op(earlier).token != path.op(later).token ||
      here.size() != there.size()) {
    return false;
  }
  for (std::size_t i = 0; i < here.size(); ++i) {
    const PathValue& a = path.values()[here[i].value()];
    const PathValue& b = path.values()[there[i].value()];
    const bool same = here[i].value() == there[i].value();
    shares = shares || same;
    if (same) continue;
    if (b.carried()) return false;
    if (a.carried() ? b.birth_op >= earlier
                    : earlier - a.birth_op != later - b.birth_op) {
      return false;
    }
  }
  return true;
}

Repetition::Place by_definition(const OpPath& path, std::uint32_t longer_than) {
  const std::uint32_t last = path.size() - 1;
  for (std::uint32_t i = last; i-- > 0;) {
    std::uint32_t length = 0;
    bool shares = false;
    while (length <= i && length < Repetition::kLimit &&
           is_equal(path, i - length, last - length, shares)) {
      ++length;
    }
    if (length >= Repetition::kCertain && length > longer_than && shares) {
      return {i, length};
    }
  }
  return {};
}

TEST(Repetition, IsWhatItsDefinitionSays) {
  std::uint32_t found = 0;
  std::uint32_t not_found = 0;
  for (std::uint32_t seed = 0; seed < 100; ++seed) {
    Recorded recorded(seed);
    Random random(seed);
    Repetition repetition;
    for (int op = 0; op < 250; ++op) {
      recorded.add();
      if (below(random, 40) == 0) continue; // nobody asks at this one
      const std::uint32_t longer_than =
          below(random, 2) == 0 ? 0 : below(random, 80);
      const Repetition::Place place =
          repetition.find(recorded.path(), longer_than);
      const Repetition::Place wanted =
          by_definition(recorded.path(), longer_than);
      ASSERT_EQ(place.length, wanted.length) << seed << ", op " << op;
      ASSERT_EQ(place.position, wanted.position) << seed << ", op " << op;
      ++(place.length > 0 ? found : not_found);
    }
  }
  EXPECT_GT(found, 2000U);
  EXPECT_GT(not_found, 2000U);
}

TEST(Repetition, OfAnotherRecordingIsAnother) {
  Repetition repetition;
  Recorded first(7);
  Recorded second(8);
  for (int op = 0; op < 250; ++op) {
    first.add();
    second.add();
    for (const OpPath* path : {&first.path(), &second.path()}) {
      const Repetition::Place place = repetition.find(*path, 0);
      EXPECT_EQ(place.length, by_definition(*path, 0).length);
    }
  }
}

} // namespace
} // namespace chameleon::profiler
