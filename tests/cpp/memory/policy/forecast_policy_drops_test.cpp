// The forecast policy with plans that drop: what it wants done, op by op. No
// pager: the test says what ops touch, and looks at the actions.
#include <chrono>
#include <cstdint>
#include <deque>
#include <gtest/gtest.h>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "memory/policy/forecast_policy.h"
#include "profiler/op_names.h"

namespace chameleon::memory {
namespace {

using Kind = Action::Kind;
constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

// Runs ops on blocks that are there or not just as the test wants.
class Runner {
 public:
  Runner(std::uint64_t budget_bytes, bool recompute, bool at_once = true)
      : profiler_(profiler::OpHistory::kDefaultBytes,
                  [](const void* block) {
                    return static_cast<const Block*>(block)->released_at !=
                           Block::kAlive;
                  }),
        policy_(PolicyInputs{profiler_, durations_, next_actions_,
                             LinkEstimate(durations_, std::nullopt),
                             budget_bytes, at_once, recompute}) {
    next_actions_.ask();
  }

  struct Wanted {
    std::uint32_t op;
    Kind kind;
    std::string block;
    bool alive;
  };

  Block* create(const std::string& name, std::uint64_t bytes) {
    Block& block = born(name, bytes);
    block.profiler_slot = profiler_.born(block.identity, bytes, &block);
    return &block;
  }

  // "+x" is written; one result.
  Block* op(const std::string& name, const std::vector<Block*>& reads,
            const std::string& result, std::uint64_t bytes,
            const std::vector<Block*>& writes = {}) {
    const std::uint32_t number = profiler::op_names().add(name);
    profiler::TokenHasher hasher(number);
    std::vector<profiler::Use> uses;
    const auto use = [&](Block* block, std::uint32_t flags) {
      uses.push_back({block->identity, block->profiler_slot, flags});
      hasher.add(flags);
      hasher.add(block->rounded_bytes);
    };
    for (Block* block : reads) use(block, profiler::Operand::kReads);
    for (Block* block : writes) {
      use(block, profiler::Operand::kReads | profiler::Operand::kWrites);
    }
    profiler::OpTicket ticket = profiler_.observe(number, hasher.token(), uses);
    if (next_actions_.due(ticket)) {
      std::vector<PlannedAction> list;
      if (policy_.plannedActions(ticket, list))
        recorded.insert(ticket.position);
      for (const PlannedAction& action : list) {
        wanted.push_back({ticket.position, action.kind, names_[action.identity],
                          action.block->released_at == Block::kAlive});
      }
    }
    if (result.empty()) return nullptr;
    Block& made = born(result, bytes);
    made.profiler_slot = profiler_.result(ticket, made.identity, bytes, &made);
    return &made;
  }

  void free(Block* block) {
    block->released_at = profiler_.opCount();
    profiler_.freed(block->profiler_slot, profiler_.opCount());
  }
  void step() {
    profiler_.step();
    wanted.clear();
    recorded.clear();
  }
  PlanPtr plan() const { return policy_.plan(); }

  std::vector<Wanted> wanted; // in this step
  std::set<std::uint32_t> recorded;

 private:
  Block& born(const std::string& name, std::uint64_t bytes) {
    Block& block = blocks_.emplace_back();
    block.identity = ++identities_;
    block.rounded_bytes = bytes;
    block.bytes = bytes;
    names_[identities_] = name;
    return block;
  }

  profiler::Profiler profiler_;
  profiler::Durations durations_;
  NextActions next_actions_;
  ForecastPolicy policy_;
  std::deque<Block> blocks_;
  std::map<std::uint64_t, std::string> names_;
  std::uint64_t identities_ = 0;
};

// Layers of two ops each; what they make is needed in backward. What the first
// one makes is let go in forward: only a re-run of the second needs it.
struct Network {
  static constexpr int kLayers = 10;

  explicit Network(Runner& r) : run(r) {
    for (int i = 0; i < kLayers; ++i) {
      weights.push_back(run.create("w" + std::to_string(i), kMiB));
    }
    for (const char* name :
         {"recompute_test::first", "recompute_test::second"}) {
      profiler::op_names().allowRerun(profiler::op_names().add(name));
    }
  }
  ~Network() {
    for (Block* weight : weights) run.free(weight);
  }

  void step() {
    run.step();
    std::vector<Block*> made;
    Block* x = run.op("recompute_test::data", {}, "x", 16 * kMiB);
    Block* const data = x;
    for (int i = 0; i < kLayers; ++i) {
      const std::string layer = std::to_string(i);
      Block* const a = run.op("recompute_test::first", {x, weights[i]},
                              "a" + layer, 16 * kMiB);
      x = run.op("recompute_test::second", {a}, "b" + layer, 16 * kMiB);
      run.free(a);
      made.push_back(x);
    }
    for (int i = kLayers; i-- > 0;) {
      run.op("recompute_test::backward", {made.back(), weights[i]}, "", 0);
      run.free(made.back());
      made.pop_back();
    }
    run.free(data);
    run.op("recompute_test::update", {}, "", 0, weights);
  }

  Runner& run;
  std::vector<Block*> weights;
};

TEST(RecomputePolicy, RecordsAndDropsWhatThePlanSays) {
  Runner run(90 * kMiB, true);
  Network network(run);
  for (int i = 0; i < 12; ++i) network.step();
  const PlanPtr plan = run.plan();
  ASSERT_NE(plan, nullptr);
  ASSERT_FALSE(plan->recorded.empty());
  EXPECT_EQ(run.recorded, std::set<std::uint32_t>(plan->recorded.begin(),
                                                  plan->recorded.end()));
  std::size_t drops = 0;
  for (const Runner::Wanted& action : run.wanted) {
    if (action.kind != Kind::kDrop) continue;
    ++drops;
    // Only by name: what is dead gives up its bytes by itself.
    EXPECT_TRUE(action.alive) << action.block;
    EXPECT_EQ(action.block[0], 'b') << action.block << " " << action.op;
  }
  EXPECT_GT(drops, 2U);
}

// A plan is not taken up in the middle of a round, but soon.
TEST(RecomputePolicy, InTheBackground) {
  Runner run(90 * kMiB, true, false);
  Network network(run);
  for (int i = 0; i < 1000; ++i) {
    network.step();
    if (run.plan() != nullptr && !run.plan()->recorded.empty()) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  network.step();
  ASSERT_NE(run.plan(), nullptr);
  EXPECT_FALSE(run.plan()->recorded.empty());
  EXPECT_FALSE(run.recorded.empty());
}

// Here the link takes most of the time. The best plans' own parameters leave a
// twentieth, so with a sixteenth of the budget left they would take 0.89 of it.
TEST(RecomputePolicy, WhereTheLinkBindsAPlanLeavesLess) {
  for (const std::uint64_t budget : {60 * kMiB, 66 * kMiB, 68 * kMiB}) {
    Runner run(budget, true);
    Network network(run);
    for (int i = 0; i < 12; ++i) network.step();
    const ModelledStep& modelled = run.plan()->modelled;
    EXPECT_FALSE(run.plan()->recorded.empty());
    EXPECT_GT(modelled.duration_ns, 2 * modelled.compute_ns);
    EXPECT_GT(run.plan()->budget_bytes, budget / 10 * 9);
  }
}

TEST(RecomputePolicy, OffMeansOff) {
  Runner run(90 * kMiB, false);
  Network network(run);
  for (int i = 0; i < 12; ++i) network.step();
  ASSERT_NE(run.plan(), nullptr);
  EXPECT_TRUE(run.plan()->recorded.empty());
  EXPECT_TRUE(run.recorded.empty());
  EXPECT_FALSE(run.wanted.empty());
  for (const Runner::Wanted& action : run.wanted) {
    EXPECT_NE(action.kind, Kind::kDrop);
  }
}

} // namespace
} // namespace chameleon::memory
