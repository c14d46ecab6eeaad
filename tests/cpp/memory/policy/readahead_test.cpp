// What comes back ahead of its use though no plan fetches it.
#include "memory/policy/readahead.h"

#include <cstdint>
#include <gtest/gtest.h>
#include <memory>
#include <vector>

#include "tests/cpp/memory/read_loop.h"

namespace chameleon::memory {
namespace {

using profiler::kNone;

constexpr std::uint32_t kOps = 1024; // blocks are put in order every 16 ops
constexpr std::uint32_t kAhead = 16;

class ReadaheadTest : public ::testing::Test {
 protected:
  // Two rounds behind the last place that was not foreseen.
  ReadaheadTest() {
    run.runTo(0);
    const profiler::PathPosition at =
        profiler::Forecast(run.profiler).position();
    path = {at.path, at.ops, run.profiler.opCount()};
    readahead.enter(path, 0);
    readahead.knowAll(path);
  }
  void toHost(std::size_t i) {
    run.blocks[i].word = Block::stateBits(BlockState::kHost);
  }
  // The next op is at that position; the blocks that are due before it.
  std::vector<std::size_t> next(const PathPlan* plan = nullptr) {
    const profiler::OpTicket ticket = run.op();
    std::vector<PlannedAction> list;
    readahead.advance(path, plan, ticket.position, list);
    std::vector<std::size_t> due;
    for (const PlannedAction& action : list) {
      EXPECT_EQ(action.kind, Action::Kind::kFetch);
      EXPECT_EQ(action.needed_at, path.begin + action.identity - 1);
      EXPECT_EQ(action.joined, !due.empty());
      due.push_back(action.identity - 1);
    }
    return due;
  }
  using Numbers = std::vector<std::size_t>;

  ReadLoop run{kOps};
  Readahead readahead{run.profiler};
  FollowedPath path;
};

TEST_F(ReadaheadTest, AVictimComesBackAheadOfItsUse) {
  toHost(100);
  EXPECT_TRUE(readahead.expect(run.blocks[100]));
  EXPECT_EQ(readahead.nextPosition(path), 100 - kAhead);
  for (std::uint32_t op = 0; op < 100 - kAhead; ++op) {
    ASSERT_EQ(next(), Numbers{}) << op;
  }
  EXPECT_EQ(next(), Numbers{100});
  EXPECT_EQ(next(), Numbers{});
}

TEST_F(ReadaheadTest, WhatIsDueTogetherIsOneBatchInOrder) {
  for (const std::size_t i : {7, 3, 5}) {
    toHost(i);
    EXPECT_TRUE(readahead.expect(run.blocks[i]));
  }
  EXPECT_EQ(next(), (Numbers{3, 5, 7}));
}

TEST_F(ReadaheadTest, WhatIsNoLongerAheadIsNotFetched) {
  toHost(2);
  EXPECT_TRUE(readahead.expect(run.blocks[2]));
  for (int op = 0; op < 3; ++op) run.op();
  EXPECT_EQ(next(), Numbers{});
}

TEST_F(ReadaheadTest, WhoseNextUseIsUnknownDoesNotComeBack) {
  Block& dead = run.blocks[50];
  run.profiler.freed(dead.profiler_slot, run.profiler.opCount());
  dead.profiler_slot = profiler::kNoSlot;
  EXPECT_FALSE(readahead.expect(dead));
}

TEST_F(ReadaheadTest, AtANewPlaceTheWholePathIsLookedAlong) {
  for (const std::size_t i : {4, 40, 900}) toHost(i);
  readahead.restart(0, /*is_foreseen=*/true);
  Numbers back;
  for (std::uint32_t op = 0; op < kOps; ++op) {
    for (const std::size_t due : next()) {
      EXPECT_GT(due, op);
      EXPECT_LE(due, op + kAhead);
      back.push_back(due);
    }
  }
  EXPECT_EQ(back, (Numbers{4, 40, 900}));
}

TEST_F(ReadaheadTest, WhatThePlanFetchesIsLeftToIt) {
  for (const std::size_t i : {4, 6}) toHost(i);
  auto plan = std::make_shared<Plan>();
  plan->actions = {Action(Action::Kind::kFetch, 0)};
  plan->action_end.assign(kOps, 1);
  plan->action_end[0] = plan->action_end[1] = 0; // before op 2
  PathPlan path_plan;
  path_plan.plan = plan;
  path_plan.names = {{4, kNone}}; // value 4 of the path
  readahead.restart(0, /*is_foreseen=*/true);
  EXPECT_EQ(next(&path_plan), Numbers{6});
}

TEST_F(ReadaheadTest, WhatWasToComeBackIsForgotten) {
  toHost(8);
  EXPECT_TRUE(readahead.expect(run.blocks[8]));
  run.blocks[8].word = Block::kIdle; // it was fetched meanwhile
  readahead.restart(0, /*is_foreseen=*/true);
  EXPECT_EQ(next(), Numbers{});
}

// A run that finds a new place at every op looks a few ops ahead each time.
TEST_F(ReadaheadTest, OpensAsThePathGoesOnAsForeseen) {
  toHost(13);
  readahead.restart(0, /*is_foreseen=*/false);
  EXPECT_EQ(next(), Numbers{}); // 13 ops away, and it looks 12 ops ahead
  EXPECT_EQ(next(), Numbers{13});
}

TEST_F(ReadaheadTest, AtTheEndTheSamePathIsNotLookedIntoAgain) {
  toHost(3); // needed in the next round
  for (std::uint32_t op = 0; op < kOps - 1; ++op) {
    ASSERT_EQ(next(), Numbers{}) << op;
  }
}

} // namespace
} // namespace chameleon::memory
