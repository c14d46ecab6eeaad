// Kernels that write, and allocate and free in turn: what they needed once they
// can have again, however HBM is cut up, and if all that is left is exactly
// that.
#include <algorithm>
#include <gtest/gtest.h>
#include <random>
#include <string>
#include <vector>

#include "memory/first_fit.h"
#include "tests/cpp/memory/pager_fixture.h"

namespace chameleon::memory {
namespace {

constexpr std::size_t kUnit = ExtentMap::kAlignment;

// What a kernel allocates (bytes > 0; `kept`: returns it) and frees, by the
// number of the allocation.
struct Step {
  std::size_t bytes;
  std::size_t number;
  bool kept;
};
using Sequence = std::vector<Step>;

Sequence random_sequence(std::mt19937& random, std::size_t steps) {
  Sequence sequence;
  std::vector<std::size_t> live;
  for (std::size_t i = 0; i < steps; ++i) {
    if (!live.empty() && random() % 5 < 2) {
      const std::size_t at = random() % live.size();
      sequence.push_back({0, live[at], false});
      live.erase(live.begin() + static_cast<long>(at));
      continue;
    }
    const bool kept = random() % 4 == 0;
    const std::size_t units = random() % 3 == 0 ? 8 : 64;
    sequence.push_back({(1 + random() % units) * kUnit, i, kept});
    if (!kept) live.push_back(i);
  }
  for (const std::size_t number : live) sequence.push_back({0, number, false});
  return sequence;
}

std::size_t span_of(const Sequence& sequence) {
  FirstFit layout;
  const std::vector<std::byte> names(sequence.size());
  for (const Step& step : sequence) {
    if (step.bytes == 0) {
      layout.remove(&names[step.number]);
    } else {
      layout.add(layout.find(step.bytes), step.bytes, &names[step.number]);
    }
  }
  return layout.span();
}

class PagerHoleTest : public PagerTest {
 protected:
  // An op that writes `written` and runs the sequence. The step that failed, or
  // -1.
  int run(const Sequence& sequence, const std::vector<Block*>& read,
          Block* written, OpMemory& memory, std::uint64_t seed,
          const profiler::Token* token = nullptr) {
    std::vector<Operand> operands;
    operands.reserve(read.size() + 1);
    for (Block* block : read) operands.push_back({block, Access::kRead});
    operands.push_back({written, Access::kWrite});
    OpIdentity identity{};
    if (token != nullptr) identity = OpIdentity::of(1, *token);
    Call call;
    runtime::Error error =
        pager->begin(call, kStream, operands, &memory, "op", false,
                     token != nullptr ? &identity : nullptr);
    EXPECT_FALSE(failed(error));
    if (error) return 0;
    std::vector<std::byte*> live(sequence.size());
    std::vector<Block*> results;
    int failing = -1;
    for (std::size_t i = 0; i < sequence.size(); ++i) {
      const Step& step = sequence[i];
      if (step.bytes == 0) {
        pager->free(&call, live[step.number]);
        live[step.number] = nullptr;
        continue;
      }
      runtime::Result<std::byte*> bytes = pager->allocate(call, step.bytes);
      if (!bytes.ok()) {
        failing = static_cast<int>(i);
        break;
      }
      live[step.number] = *bytes;
      fill_pattern(*bytes, step.bytes, i);
      if (step.kept) {
        runtime::Result<Block*> block = pager->adopt(call, *bytes, step.bytes);
        EXPECT_TRUE(block.ok());
        results.push_back(*block);
        live[step.number] = nullptr;
      }
      if (i % 7 == 0) check(2);
    }
    if (failing >= 0) {
      for (std::byte* bytes : live) {
        if (bytes != nullptr) pager->free(&call, bytes);
      }
    }
    fill_pattern(written->device_address, written->bytes, seed);
    pager->end(call);
    for (Block* block : results) pager->release(block);
    check(2);
    return failing;
  }

  // Blocks of all sizes, in no order; some of them are away.
  std::vector<Block*> surroundings(std::mt19937& random, std::size_t bytes) {
    std::vector<Block*> blocks;
    for (std::size_t sum = 0; sum < bytes; sum += blocks.back()->bytes) {
      blocks.push_back(filled((1 + random() % 40) * kUnit, blocks.size()));
    }
    for (Block* block : blocks) {
      if (random() % 4 != 0) continue;
      EXPECT_FALSE(failed(pager->evict(*block)));
    }
    return blocks;
  }
};

// The budget is what the op has pinned and the span of what it did before.
TEST_F(PagerHoleTest, RepetitionsNeverFail) {
  for (std::uint32_t seed = 0; seed < 30; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    open(4 * kMiB);
    const Sequence sequence = random_sequence(random, 16);
    const profiler::Token token = 77;
    const profiler::Token* const identity = seed % 2 == 0 ? &token : nullptr;
    OpMemory memory;
    std::vector<Block*> read;
    std::size_t operand_bytes = 16 * kUnit;
    for (std::size_t i = 0; i < 6; ++i) {
      read.push_back(filled((1 + random() % 20) * kUnit, 100 + i));
      operand_bytes += read.back()->bytes;
    }
    Block* const written = filled(16 * kUnit, 99);
    ASSERT_EQ(run(sequence, read, written, memory, 98, identity), -1);
    const std::size_t span = span_of(sequence);
    EXPECT_EQ(memory.peak_bytes, span);

    ASSERT_FALSE(failed(pager->setHbmBudget(operand_bytes + span)));
    const std::vector<Block*> others = surroundings(random, 256 * kUnit);
    for (std::uint64_t round = 0; round < 6; ++round) {
      ASSERT_EQ(run(sequence, read, written, memory, round, identity), -1);
      ASSERT_FALSE(failed(expect(written, round)));
      for (int i = 0; i < 8; ++i) {
        const std::size_t at = random() % others.size();
        ASSERT_FALSE(failed(expect(others[at], at)));
      }
    }
    for (std::size_t i = 0; i < read.size(); ++i) {
      EXPECT_FALSE(failed(expect(read[i], 100 + i)));
    }
    for (std::size_t i = 0; i < others.size(); ++i) {
      EXPECT_FALSE(failed(expect(others[i], i)));
    }
  }
}

// Another sequence than the one that was learned takes what it can get.
TEST_F(PagerHoleTest, OtherSequencesRunAsWell) {
  for (std::uint32_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    open(512 * kUnit + kMiB);
    const std::vector<Block*> others = surroundings(random, 4096 * kUnit);
    Block* const written = filled(16 * kUnit, 99);
    OpMemory memory;
    for (std::uint64_t round = 0; round < 10; ++round) {
      const Sequence sequence = random_sequence(random, 30);
      ASSERT_EQ(run(sequence, {}, written, memory, round), -1);
      ASSERT_FALSE(failed(expect(written, round)));
    }
    for (std::size_t i = 0; i < others.size(); ++i) {
      EXPECT_FALSE(failed(expect(others[i], i)));
    }
  }
}

// What one size needed is not asked for another one.
TEST_F(PagerHoleTest, LearnsBySize) {
  open(64 * kUnit);
  std::vector<Block*> others;
  others.reserve(15);
  for (std::size_t i = 0; i < 15; ++i) others.push_back(filled(4 * kUnit, i));
  Block* const written = filled(4 * kUnit, 99); // full: 64 units
  OpMemory memory;
  const Sequence large{{32 * kUnit, 0, false}, {0, 0, false}};
  const Sequence small{{4 * kUnit, 0, false}, {0, 0, false}};
  const profiler::Token large_token = 1;
  const profiler::Token small_token = 2;
  ASSERT_EQ(run(large, {}, written, memory, 1, &large_token), -1);
  ASSERT_EQ(run(small, {}, written, memory, 1, &small_token), -1);
  for (std::size_t i = 0; i < 15; ++i) {
    ASSERT_FALSE(failed(expect(others[i], i)));
  }
  ASSERT_FALSE(failed(expect(written, 1)));
  const std::int64_t before = pager->stats().evictions;
  ASSERT_EQ(run(small, {}, written, memory, 2, &small_token), -1);
  EXPECT_LE(pager->stats().evictions - before, 1);
  for (std::size_t i = 0; i < 15; ++i) {
    ASSERT_FALSE(failed(expect(others[i], i)));
  }
}

} // namespace
} // namespace chameleon::memory
