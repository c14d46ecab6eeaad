// A plan of six ops by hand: what it wants before each op, in blocks.
#include "memory/policy/plan_cursor.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <initializer_list>
#include <memory>
#include <utility>
#include <vector>

#include "tests/cpp/memory/read_loop.h"

namespace chameleon::memory {
namespace {

using Kind = Action::Kind;
using profiler::kNone;

constexpr std::size_t kOps = 6;

class PlanCursorTest : public ::testing::Test {
 protected:
  PlanCursorTest() { run.runTo(0); }

  // Value i of the plan is value i of the path, and block i.
  std::shared_ptr<PathPlan> planOf(
      std::vector<std::vector<Action>> actions,
      std::vector<std::uint32_t> recorded_ops = {}) const {
    auto plan = std::make_shared<Plan>();
    for (const std::vector<Action>& before : actions) {
      plan->actions.insert(plan->actions.end(), before.begin(), before.end());
      plan->action_end.push_back(
          static_cast<std::uint32_t>(plan->actions.size()));
    }
    plan->recorded = std::move(recorded_ops);
    auto made = std::make_shared<PathPlan>();
    made->plan = std::move(plan);
    made->key.path = profiler::Forecast(run.profiler).position().path;
    for (std::uint32_t i = 0; i < kOps; ++i) made->names.push_back({i, kNone});
    return made;
  }
  using Wanted = std::vector<std::pair<Kind, const Block*>>;
  Wanted advance(std::uint32_t position) {
    std::vector<PlannedAction> list;
    recorded = cursor.advance(position, list);
    Wanted wanted;
    for (const PlannedAction& action : list) {
      EXPECT_EQ(action.identity, action.block->identity);
      wanted.emplace_back(action.kind, action.block);
    }
    return wanted;
  }
  const Block* block(std::size_t i) const { return &run.blocks[i]; }

  ReadLoop run{kOps};
  PlanCursor cursor{run.profiler};
  bool recorded = false;
};

TEST_F(PlanCursorTest, WithoutAPlanThereIsNothing) {
  EXPECT_EQ(advance(3), Wanted{});
  EXPECT_FALSE(recorded);
  EXPECT_EQ(cursor.nextPosition(), kNone);
  EXPECT_FALSE(cursor.movesNothing());
  EXPECT_FALSE(cursor.reruns());
}

TEST_F(PlanCursorTest, GivesEachActionBeforeItsOp) {
  cursor.follow(planOf({{},
                        {{Kind::kWriteBack, 0}},
                        {},
                        {{Kind::kEvict, 0}, {Kind::kFetch, 4, true}},
                        {},
                        {}}));
  EXPECT_FALSE(cursor.movesNothing());
  EXPECT_EQ(cursor.nextPosition(), 1U);
  EXPECT_EQ(advance(0), Wanted{});
  EXPECT_EQ(advance(1), (Wanted{{Kind::kWriteBack, block(0)}}));
  EXPECT_EQ(advance(1), Wanted{}); // it was given
  EXPECT_EQ(cursor.nextPosition(), 3U);
  EXPECT_EQ(advance(3),
            (Wanted{{Kind::kEvict, block(0)}, {Kind::kFetch, block(4)}}));
  EXPECT_EQ(cursor.nextPosition(), kNone);
}

TEST_F(PlanCursorTest, GivesWhatWasMissedAndNotWhatIsBehind) {
  const auto plan = planOf({{{Kind::kWriteBack, 0}},
                            {{Kind::kWriteBack, 1}},
                            {{Kind::kWriteBack, 2}},
                            {},
                            {},
                            {}});
  cursor.follow(plan);
  EXPECT_EQ(advance(1), (Wanted{{Kind::kWriteBack, block(0)},
                                {Kind::kWriteBack, block(1)}}));
  cursor.follow(plan); // the next round
  cursor.moveTo(1);
  EXPECT_EQ(cursor.position(), 1U);
  EXPECT_EQ(advance(2), (Wanted{{Kind::kWriteBack, block(1)},
                                {Kind::kWriteBack, block(2)}}));
}

TEST_F(PlanCursorTest, SaysWhichOpsAreRecorded) {
  cursor.follow(planOf({{}, {}, {}, {}, {}, {}}, {1, 4}));
  EXPECT_TRUE(cursor.reruns());
  EXPECT_FALSE(cursor.movesNothing());
  std::vector<std::uint32_t> ops;
  for (std::uint32_t op = 0; op < kOps; ++op) {
    EXPECT_EQ(cursor.nextPosition(), op < 2 ? 1U : op < 5 ? 4U : kNone);
    (void)advance(op);
    if (recorded) ops.push_back(op);
  }
  EXPECT_EQ(ops, (std::vector<std::uint32_t>{1, 4}));
}

TEST_F(PlanCursorTest, AnEmptyPlanMovesNothing) {
  cursor.follow(planOf({{}, {}, {}, {}, {}, {}}));
  EXPECT_TRUE(cursor.movesNothing());
  EXPECT_EQ(cursor.nextPosition(), kNone);
}

TEST_F(PlanCursorTest, WhatDiedIsLeftOut) {
  cursor.follow(
      planOf({{}, {}, {{Kind::kDrop, 0}, {Kind::kWriteBack, 1}}, {}, {}, {}}));
  run.profiler.freed(block(0)->profiler_slot, run.profiler.opCount());
  EXPECT_EQ(advance(2), (Wanted{{Kind::kWriteBack, block(1)}}));
}

TEST_F(PlanCursorTest, WhatIsHeldIsFoundBeforeItDies) {
  const auto plan = planOf({{}, {}, {}, {{Kind::kDrop, 0}}, {}, {}}, {2});
  plan->held = {{1, 0}};
  cursor.follow(plan);
  EXPECT_EQ(cursor.nextPosition(), 1U);
  EXPECT_EQ(advance(1), Wanted{});
  run.profiler.freed(block(0)->profiler_slot, run.profiler.opCount());
  EXPECT_EQ(advance(3), (Wanted{{Kind::kDrop, block(0)}}));
  cursor.follow(plan);
  cursor.moveTo(0);
  cursor.forgetHeld();
  EXPECT_EQ(advance(3), Wanted{});
}

// ---- where results lie -----------------------------------------------------

TEST_F(PlanCursorTest, PlacesBeginWhereAllWasPacked) {
  const auto plan = planOf({{}, {}, {}, {}, {}, {}});
  plan->key.budget_bytes = 1000;
  plan->placement =
      Placement{.place_end = {0, 1, 1, 1, 1, 1},
                .places = {{.offset = 64, .bytes = 36, .is_workspace = false}},
                .packed_before = 3,
                .span_bytes = 100};
  cursor.follow(plan);
  EXPECT_TRUE(cursor.movesNothing());
  EXPECT_EQ(cursor.nextPosition(), 3U);
  EXPECT_EQ(advance(2), Wanted{});
  EXPECT_FALSE(cursor.takePacking());
  EXPECT_EQ(advance(4), Wanted{}); // an op was left out
  EXPECT_TRUE(cursor.takePacking());
  EXPECT_FALSE(cursor.takePacking());
  EXPECT_FALSE(cursor.isPlacing());
  EXPECT_TRUE(cursor.placesOf(1).empty());
  cursor.packed(950); // too much is there
  EXPECT_FALSE(cursor.isPlacing());
  cursor.packed(900);
  EXPECT_EQ(cursor.baseBytes(), 900U);
  EXPECT_EQ(cursor.placesOf(1).size(), 1U);
  EXPECT_TRUE(cursor.placesOf(2).empty());
  EXPECT_TRUE(cursor.placesOf(6).empty());
  cursor.follow(plan); // the next round
  cursor.moveTo(0);
  EXPECT_EQ(cursor.nextPosition(), 3U);
  EXPECT_TRUE(cursor.isPlacing());
  cursor.follow(nullptr);
  EXPECT_FALSE(cursor.isPlacing());
}

} // namespace
} // namespace chameleon::memory
