// Kernels that write, and allocate and free in turn: what they needed once they
// can have again, however HBM is cut up, and if all that is left is exactly
// that.
#include <algorithm>
#include <atomic>
#include <gtest/gtest.h>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "memory/space/first_fit.h"
#include "tests/cpp/memory/pager_fixture.h"

namespace chameleon::memory {
namespace {

using runtime::Error;

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

    ASSERT_FALSE(failed(pager->budgets().setHbmBudget(operand_bytes + span)));
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

// ---- what fits runs --------------------------------------------------------

// Its two operands lie apart, with blocks between and around them.
class PagerTightTest : public PagerHoleTest {
 protected:
  void openApart(std::size_t budget_bytes) {
    open(budget_bytes);
    for (int i = 0; i < 6; ++i) {
      const bool operand = i == 2 || i == 4;
      (operand ? apart : others).push_back(filled(2 * kUnit, i));
    }
  }
  // The op's attempts until one has all `bytes`, which it keeps.
  Error attempts(bool may_retry, std::span<const std::size_t> bytes,
                 int* count = nullptr) {
    const std::vector<Operand> operands{{apart[0], Access::kRead},
                                        {apart[1], Access::kRead}};
    Call call;
    for (;;) {
      if (count != nullptr) ++*count;
      Error error =
          pager->begin(call, kStream, operands, &memory, "op", may_retry);
      if (error) return error;
      std::vector<std::byte*> live;
      for (const std::size_t each : bytes) {
        runtime::Result<std::byte*> made = pager->allocate(call, each);
        if (!made.ok()) {
          error = made.takeError();
          break;
        }
        live.push_back(*made);
      }
      for (std::byte* each : live) pager->free(&call, each);
      check(2);
      pager->end(call);
      if (!error || !may_retry || !call.worthRetrying()) return error;
    }
  }
  void expectAll() {
    for (int i = 0, o = 0, a = 0; i < 6; ++i) {
      const bool operand = i == 2 || i == 4;
      EXPECT_FALSE(failed(expect(operand ? apart[a++] : others[o++], i)));
    }
  }

  std::vector<Block*> apart;
  std::vector<Block*> others;
  OpMemory memory;
};

TEST_F(PagerTightTest, TheLastAttemptHasAllThatTheOperandsLeave) {
  openApart(16 * kUnit);
  int count = 0;
  // Three failures would have to come first, if only what is seen were made.
  const std::size_t needed[] = {3 * kUnit, 5 * kUnit, 4 * kUnit};
  EXPECT_FALSE(failed(attempts(/*may_retry=*/true, needed, &count)));
  EXPECT_LE(count, 3);
  EXPECT_EQ(memory.peak_bytes, 12 * kUnit); // and four of operands
  // A peak that was no peak of residence is none that is shown.
  EXPECT_EQ(pager->stats().peak_resident_bytes,
            static_cast<std::int64_t>(16 * kUnit));
  expectAll();
}

TEST_F(PagerTightTest, WhatMayNotRunAgainHasItAtOnce) {
  openApart(16 * kUnit);
  const std::size_t needed[] = {12 * kUnit};
  EXPECT_FALSE(failed(attempts(/*may_retry=*/false, needed)));
  expectAll();
}

TEST_F(PagerTightTest, SeenOnesOfOtherSizesAreNoProof) {
  openApart(16 * kUnit);
  memory.known = true;
  memory.operand_bytes = 4 * kUnit;
  memory.peak_bytes = kUnit;
  const std::size_t needed[] = {12 * kUnit};
  EXPECT_FALSE(failed(attempts(/*may_retry=*/true, needed)));
  expectAll();
}

TEST_F(PagerTightTest, WhatIsNotCutCountsInNoFigure) {
  openApart(16 * kUnit);
  for (Block* other : others) ASSERT_FALSE(failed(pager->evict(*other)));
  pager->resetStats();
  const std::size_t needed[] = {7 * kUnit, 3 * kUnit};
  EXPECT_FALSE(failed(attempts(/*may_retry=*/false, needed)));
  EXPECT_EQ(pager->stats().peak_resident_bytes,
            static_cast<std::int64_t>(14 * kUnit));
  expectAll();
}

// What the message says is enough, and no less than that is.
TEST_F(PagerTightTest, TheMessageNamesABudgetThatIsEnough) {
  openApart(16 * kUnit);
  const std::size_t needed[] = {13 * kUnit};
  for (const bool may_retry : {true, false}) {
    const Error error = attempts(may_retry, needed);
    ASSERT_TRUE(failed(error));
    EXPECT_NE(error.message().find("hbm_budget to at least 8.50 KiB"),
              std::string::npos)
        << error.message();
    expectAll();
  }
  ASSERT_FALSE(failed(pager->budgets().setHbmBudget(17 * kUnit)));
  EXPECT_FALSE(failed(attempts(/*may_retry=*/false, needed)));
  expectAll();
}

// What others hold counts: a budget without it would not be enough.
TEST_F(PagerTightTest, TheMessageCountsWhatOthersHold) {
  openApart(16 * kUnit);
  Call held;
  ASSERT_FALSE(failed(pin(held, others[0])));
  pager->keepPins(held);
  const std::size_t needed[] = {13 * kUnit};
  const Error error = attempts(/*may_retry=*/true, needed);
  ASSERT_TRUE(failed(error));
  EXPECT_NE(error.message().find("hbm_budget to at least 9.50 KiB"),
            std::string::npos)
      << error.message();
  pager->end(held);
  expectAll();
}

// An op that writes its operands would leave them half written.
TEST_F(PagerTightTest, WhatCanBeHeldBackDoesNotBeginWithoutRoom) {
  for (const bool seen : {false, true}) {
    apart.clear();
    others.clear();
    openApart(12 * kUnit);
    OpMemory needs;
    const OpKind kind{.name = "op", .memory = &needs, .may_retry = false};
    const Operand operand{others[1], Access::kWrite};
    const auto begin = [&](Call& call, bool can_be_held_back) {
      return pager->begin(call, {.kind = kind,
                                 .stream = kStream,
                                 .operands = {&operand, 1},
                                 .can_be_held_back = can_be_held_back});
    };
    if (seen) {
      Call call;
      ASSERT_FALSE(failed(begin(call, false)));
      runtime::Result<std::byte*> made = pager->allocate(call, kUnit);
      ASSERT_TRUE(made.ok());
      pager->free(&call, *made);
      pager->end(call);
    }
    Call held;
    std::vector<Operand> pins;
    for (Block* block : {others[0], others[2], others[3], apart[0], apart[1]}) {
      pins.push_back({block, Access::kRead});
    }
    ASSERT_FALSE(failed(pager->begin(held, kStream, pins, nullptr, "", false)));
    pager->keepPins(held);
    Call call;
    const Error error = begin(call, true);
    ASSERT_TRUE(failed(error));
    EXPECT_EQ(error.code(), runtime::ErrorCode::kOutOfDeviceMemory);
    ASSERT_FALSE(failed(begin(call, false))); // which may need less
    pager->end(call);
    pager->end(held);
    EXPECT_FALSE(failed(begin(call, true)));
    pager->end(call);
    expectAll();
  }
}

// Where the host takes nothing more, blocks move out of the way.
TEST_F(PagerTightTest, AFullHostIsNoReason) {
  open(16 * kUnit, /*host_bytes=*/0);
  for (int i = 0; i < 3; ++i) {
    (i % 2 == 0 ? apart : others).push_back(filled(2 * kUnit, i));
  }
  const std::size_t needed[] = {10 * kUnit};
  EXPECT_FALSE(failed(attempts(/*may_retry=*/true, needed)));
  EXPECT_FALSE(failed(expect(apart[0], 0)));
  EXPECT_FALSE(failed(expect(others[0], 1)));
  EXPECT_FALSE(failed(expect(apart[1], 2)));
}

// A second call waits until it ends, and the other way round.
TEST_F(PagerTightTest, ItHasHbmForItself) {
  openApart(16 * kUnit);
  Call other;
  ASSERT_FALSE(failed(pin(other, others[1])));
  std::atomic<bool> done = false;
  std::thread thread([&] {
    const std::size_t needed[] = {12 * kUnit};
    EXPECT_FALSE(failed(attempts(/*may_retry=*/false, needed)));
    done = true;
  });
  while (pager->stats().host_waits == 0) std::this_thread::yield();
  EXPECT_FALSE(done);
  pager->end(other);
  thread.join();
  expectAll();
}

// ---- a library that chooses by what it gets ---------------------------------

class PagerChoiceTest : public PagerTightTest {
 protected:
  Error beginChoice(Call& call, Algorithm algorithm) {
    const Operand operands[] = {{apart[0], Access::kRead},
                                {apart[1], Access::kRead}};
    const OpKind kind{.name = "op", .memory = &memory, .may_retry = true};
    const OpIdentity identity = OpIdentity::of(1, token);
    return pager->begin(call, {.kind = kind,
                               .stream = kStream,
                               .operands = operands,
                               .identity = &identity,
                               .algorithm = algorithm});
  }
  const profiler::Token token = 77;
};

TEST_F(PagerChoiceTest, HasAllOfHbmWhereThatIsLittle) {
  openApart(16 * kUnit);
  Call call;
  ASSERT_FALSE(failed(beginChoice(call, Algorithm::kToBeChosen)));
  EXPECT_TRUE(call.hadAll());
  EXPECT_EQ(pager->largestInCall(call), 12 * kUnit);
  runtime::Result<std::byte*> result = pager->allocate(call, 2 * kUnit);
  ASSERT_TRUE(result.ok());
  EXPECT_FALSE(pager->allocate(call, 11 * kUnit).ok());
  runtime::Result<std::byte*> workspace = pager->allocate(call, 10 * kUnit);
  ASSERT_TRUE(workspace.ok());
  check(2);
  pager->free(&call, *workspace);
  pager->free(&call, *result);
  pager->end(call);
  EXPECT_FALSE(call.hadAll());
  expectAll();
}

// What a user holds, or the host has no place for, a larger device would have
// beside it.
TEST_F(PagerChoiceTest, HasNotAllWhereOthersHoldSome) {
  openApart(16 * kUnit);
  Call held;
  ASSERT_FALSE(failed(pin(held, others[0])));
  pager->keepPins(held);
  Call call;
  ASSERT_FALSE(failed(beginChoice(call, Algorithm::kToBeChosen)));
  EXPECT_FALSE(call.hadAll());
  EXPECT_EQ(pager->largestInCall(call), 10 * kUnit);
  pager->end(call);
  pager->end(held);
  expectAll();
}

// Where there is much room nothing leaves for it.
TEST_F(PagerChoiceTest, HasAQuarterWhereThatIsMuch) {
  openApart(256 * kUnit);
  filled(100 * kUnit, 7);
  Call call;
  ASSERT_FALSE(failed(beginChoice(call, Algorithm::kToBeChosen)));
  EXPECT_FALSE(call.hadAll());
  EXPECT_GE(pager->largestInCall(call), 64 * kUnit);
  runtime::Result<std::byte*> workspace = pager->allocate(call, 64 * kUnit);
  ASSERT_TRUE(workspace.ok());
  pager->free(&call, *workspace);
  pager->end(call);
  EXPECT_EQ(pager->stats().evictions, 0);
  EXPECT_EQ(pager->stats().compactions, 0);
  expectAll();
}

TEST_F(PagerChoiceTest, WhatIsFullMakesThatFreeBefore) {
  openApart(256 * kUnit);
  for (int i = 0; i < 58; ++i) filled(4 * kUnit, 7);
  Call call;
  ASSERT_FALSE(failed(beginChoice(call, Algorithm::kToBeChosen)));
  EXPECT_GT(pager->stats().evictions, 0);
  EXPECT_LE(pager->stats().resident_bytes,
            static_cast<std::int64_t>(192 * kUnit));
  pager->end(call);
  expectAll();
}

TEST_F(PagerChoiceTest, LaterOnesFindWhatTheFirstOneHad) {
  openApart(16 * kUnit);
  for (int i = 0; i < 8; ++i) {
    Call call;
    ASSERT_FALSE(failed(beginChoice(
        call, i == 0 ? Algorithm::kToBeChosen : Algorithm::kChosen)));
    runtime::Result<std::byte*> result = pager->allocate(call, 2 * kUnit);
    runtime::Result<std::byte*> workspace = pager->allocate(call, 10 * kUnit);
    ASSERT_TRUE(result.ok() && workspace.ok()) << i;
    pager->free(&call, *workspace);
    pager->free(&call, *result);
    pager->end(call);
    expectAll();
  }
}

TEST_F(PagerChoiceTest, ItsCallIsAlone) {
  openApart(256 * kUnit);
  Call other;
  ASSERT_FALSE(failed(pin(other, others[1])));
  std::atomic<bool> begun = false;
  std::thread thread([&] {
    Call call;
    EXPECT_FALSE(failed(beginChoice(call, Algorithm::kToBeChosen)));
    begun = true;
    pager->end(call);
  });
  while (pager->stats().host_waits == 0) std::this_thread::yield();
  EXPECT_FALSE(begun);
  pager->end(other);
  thread.join();
  expectAll();
}

// A thread that is inside a call waits for nobody, and is told the truth.
TEST_F(PagerChoiceTest, InsideAnotherCallItHasWhatThereIs) {
  openApart(16 * kUnit);
  Call other;
  ASSERT_FALSE(failed(pin(other, others[1])));
  Call call;
  ASSERT_FALSE(failed(beginChoice(call, Algorithm::kToBeChosen)));
  EXPECT_FALSE(call.hadAll());
  pager->end(call);
  pager->end(other);
  expectAll();
}

} // namespace
} // namespace chameleon::memory
