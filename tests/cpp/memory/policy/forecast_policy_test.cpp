// The forecast policy at work.
#include "memory/policy/forecast_policy.h"

#include <array>
#include <chrono>
#include <gtest/gtest.h>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "backend/runtime/physical_device.h"
#include "tests/cpp/memory/policy/miniature_training.h"

namespace chameleon::memory {
namespace {

// A plan needs a moment, which the op side does not wait for: trains until the
// second one is there (the first leaves more than usual, headroom_trial.h), or
// for five seconds at most. It is followed from the next step on.
void settle(Pager& pager, Training& training, std::uint64_t plans = 2) {
  for (int i = 0; i < 500 && pager.policy().costs().plans_made < plans; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    training.step();
  }
  training.step();
}

constexpr std::size_t kLayers = 40;
constexpr std::size_t kBudget = 32 * kBytes;
constexpr std::size_t kGuestBytes = 24 * kBytes;

// Four steps of a run that has settled, all with one plan.
Stats steady_stats(Pager& pager, bool plans) {
  Training training(pager, kLayers);
  for (int i = 0; i < 3; ++i) training.step();
  if (plans) settle(pager, training);
  for (int i = 0; i < 3; ++i) training.step();
  PlanPtr before;
  do {
    before = pager.meter().lastStep()->plan;
    pager.resetStats();
    for (int i = 0; i < 4; ++i) training.step();
  } while (pager.meter().lastStep()->plan != before);
  pager.invariants().check(3);
  return pager.stats();
}

TEST(ForecastPolicy, FetchesAheadOfNeed) {
  const Device forecast("forecast", kBudget);
  const Stats planned = steady_stats(*forecast.pager, true);
  // Where ops are slow (sanitizers) the plan leaves room, since it is free.
  const std::size_t room =
      forecast.pager->meter().lastStep()->plan->budget_bytes;
  const Device lru("lru", (room + kBytes - 1) / kBytes * kBytes);
  const Stats paged = steady_stats(*lru.pager, false);
  EXPECT_GT(paged.faults, 200);
  EXPECT_EQ(paged.prefetched_bytes, 0);
  EXPECT_LE(20 * planned.faults, paged.faults);
  EXPECT_LE(planned.bytes_in, paged.bytes_in);
  EXPECT_LE(planned.bytes_out, paged.bytes_out);
  // All that left HBM was clean by then, and all that came was of use.
  EXPECT_LE(20 * (planned.evictions - planned.clean_evictions),
            planned.evictions);
  const auto fetches = planned.prefetched_bytes / std::int64_t{kBytes};
  EXPECT_GE(20 * planned.prefetch_hits, 19 * fetches);
  EXPECT_GT(fetches, 100);
}

// Takes room in HBM while it lives.
class Guest {
 public:
  Guest(Pager& pager, std::size_t bytes)
      : pager_(pager), block_(pager.createBlock(bytes).value()) {
    const Operand operand{block_, Access::kWrite};
    EXPECT_FALSE(
        pager.begin(call_, {}, {&operand, 1}, nullptr, "guest", false));
    pager.keepPins(call_);
  }
  ~Guest() {
    pager_.end(call_);
    pager_.release(block_);
  }
  Guest(const Guest&) = delete;
  Guest& operator=(const Guest&) = delete;

 private:
  Pager& pager_;
  Block* block_;
  Call call_;
};

// The room that a plan counts on is taken by others for a while: what leaves
// for them against the plan comes back ahead of need.
TEST(ForecastPolicy, VictimsThatThePlanDidNotChooseComeBack) {
  Device device("forecast", kBudget);
  Pager& pager = *device.pager;
  Training training(pager, kLayers);
  for (int i = 0; i < 3; ++i) training.step();
  settle(pager, training);
  for (int i = 0; i < 3; ++i) training.step();
  std::optional<Guest> guest(std::in_place, pager, 3 * kBytes);
  training.step();
  pager.resetStats();
  for (int i = 0; i < 4; ++i) training.step();
  const Stats stats = pager.stats();
  EXPECT_GT(stats.prefetch_hits, 100);
  EXPECT_LE(20 * stats.faults, stats.prefetch_hits);
  guest.reset();
  pager.invariants().check(3);
}

// Others take so much room that a plan is of no use. What comes back ahead does
// not push out what came back before it, or four times as much would move.
TEST(ForecastPolicy, WhatComesBackLeavesWhatIsNeededSooner) {
  std::array<std::int64_t, 2> bytes_in{};
  for (const bool ahead : {false, true}) {
    Device device(ahead ? "forecast" : "lru", kBudget);
    Pager& pager = *device.pager;
    Training training(pager, kLayers);
    for (int i = 0; i < 3; ++i) training.step();
    if (ahead) settle(pager, training);
    std::optional<Guest> guest(std::in_place, pager, kGuestBytes);
    training.step();
    pager.resetStats();
    for (int i = 0; i < 4; ++i) training.step();
    bytes_in[ahead ? 1 : 0] = pager.stats().bytes_in;
    guest.reset();
    pager.invariants().check(3);
  }
  EXPECT_LE(bytes_in[1], 3 * bytes_in[0]);
}

// The plan that was followed when a step ended, and the step's figures.
TEST(ForecastPolicy, TheStepSaysWhatWasPlanned) {
  Device device("forecast", kBudget);
  Training training(*device.pager, kLayers);
  for (int i = 0; i < 3; ++i) training.step();
  settle(*device.pager, training);
  training.step();
  training.step();
  const StepFigures step = device.pager->meter().lastStep().value();
  ASSERT_NE(step.plan, nullptr);
  EXPECT_LE(step.plan->budget_bytes, kBudget - kBudget / 200);
  EXPECT_GE(step.plan->budget_bytes, kBudget - kBudget / 8);
  EXPECT_EQ(step.ops, static_cast<std::int64_t>(step.plan->ops()));
  EXPECT_EQ(step.forecast_misses, 0);
  EXPECT_GE(step.bound_ns, step.compute_ns);
  ASSERT_FALSE(device.pager->policy().set("lru"));
  training.step();
  training.step();
  EXPECT_EQ(device.pager->meter().lastStep()->plan, nullptr);
}

// While all fits nobody asks which blocks an op's operands are; once something
// has to leave, another block of the same size is another sequence.
TEST(ForecastPolicy, WhichBlocksTheyAreCountsWhereSomethingMoves) {
  constexpr std::size_t kForAll = 8 * kLayers * kBytes;
  Device device("forecast", kForAll);
  Pager& pager = *device.pager;
  Training training(pager, kLayers);
  training.initialize();
  for (int i = 0; i < 3; ++i) training.step();
  settle(pager, training, 1); // the first moves nothing and stays
  const auto misses = [&] {
    for (int i = 0; i < 3; ++i) training.step();
    pager.resetStats();
    training.swapTwoWeights();
    for (int i = 0; i < 2; ++i) training.step();
    training.swapTwoWeights();
    for (int i = 0; i < 2; ++i) training.step();
    return pager.stats().forecast_misses;
  };
  EXPECT_EQ(misses(), 0);
  {
    const Guest guest(pager, kForAll - kBudget);
    EXPECT_GT(misses(), 0);
  }
  EXPECT_EQ(misses(), 0);
  ASSERT_FALSE(pager.policy().set("lru")); // which never says that all fits
  EXPECT_GT(misses(), 0);
}

// A link that turns out to be much slower than the plan assumed: it is made
// again, once, and not for less.
TEST(ForecastPolicy, AnotherLinkIsAnotherPlan) {
  Device device("forecast", kBudget);
  Training training(*device.pager, kLayers);
  for (int i = 0; i < 3; ++i) training.step();
  settle(*device.pager, training);
  const auto plan = [&] {
    training.step();
    training.step();
    return device.pager->meter().lastStep()->plan;
  };
  const PlanPtr before = plan();
  ASSERT_NE(before, nullptr);
  for (int i = 0; i < 500; ++i) {
    for (const auto way :
         {profiler::Direction::kIn, profiler::Direction::kOut}) {
      device.pager->meter().durations().addCopy(way, false, 4 << 20,
                                                400'000'000);
      device.pager->meter().durations().addCopy(way, true, 4 << 20,
                                                400'000'000);
    }
  }
  EXPECT_LT(device.pager->meter().link().now().in_bytes_per_ns, 1);
  // Plans with other headrooms come, too.
  const auto is_slower = [&](const PlanPtr& after) {
    return after != nullptr &&
           after->modelled.duration_ns > 2 * before->modelled.duration_ns;
  };
  PlanPtr after = plan();
  for (int i = 0; i < 200 && !is_slower(after); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    after = plan();
  }
  EXPECT_TRUE(is_slower(after));
}

class ForecastPolicyUnderAdversary
    : public testing::TestWithParam<std::string> {};

// Training itself looks at every value.
TEST_P(ForecastPolicyUnderAdversary, EveryValueIsRight) {
  Device device("forecast", kBudget, GetParam());
  Training training(*device.pager, kLayers);
  for (int i = 0; i < 3; ++i) training.step();
  settle(*device.pager, training);
  for (int i = 0; i < 3; ++i) {
    training.step();
    device.pager->invariants().check(3);
  }
  EXPECT_GT(device.pager->stats().prefetched_bytes, 0);
}

INSTANTIATE_TEST_SUITE_P(
    Modes, ForecastPolicyUnderAdversary,
    testing::Values("copies=late", "copies=reordered,seed=1",
                    "copies=on_await,poison=1",
                    "copies=on_await,compute_delay=8,poison=1",
                    "copies=reordered,compute_delay=3,poison=1,seed=2"));

// The copy of the old value comes first. The emulated driver, whose copies
// cannot be taken back, finds the write that does not wait for it.
TEST(ForecastPolicy, WhatIsBeingWrittenBackMayBeWritten) {
  Device device("forecast", kBudget);
  Training training(*device.pager, kLayers);
  for (int i = 0; i < 3; ++i) training.step();
  for (int i = 0; i < 50 && training.written_while_written_back < 3; ++i) {
    training.writes_what_is_written_back = false;
    settle(*device.pager, training);
    training.writes_what_is_written_back = true;
    training.step();
  }
  EXPECT_GE(training.written_while_written_back, 3);
  training.writes_what_is_written_back = false;
  training.step(); // all values are right
  device.pager->invariants().check(3);
}

TEST(ForecastPolicy, ChangesUnderLoad) {
  Device device("lru", kBudget);
  Training training(*device.pager, kLayers);
  const auto train = [&] {
    for (int i = 0; i < 4; ++i) training.step();
    device.pager->invariants().check(2);
  };
  train();
  for (const char* policy : {"forecast", "lru", "forecast"}) {
    ASSERT_FALSE(device.pager->policy().set(policy));
    train();
  }
  settle(*device.pager, training);
  EXPECT_GT(device.pager->stats().prefetched_bytes, 0);
  for (const std::size_t budget : {2 * kBudget, kBudget, 4 * kBudget}) {
    ASSERT_FALSE(device.pager->budgets().setHbmBudget(budget));
    train();
  }
  device.pager->resetStats();
  training.step();
  EXPECT_EQ(device.pager->stats().faults, 0); // all fits by now
}

} // namespace
} // namespace chameleon::memory
