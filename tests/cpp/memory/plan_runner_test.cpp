// Plans that drop, carried out: a step through the pager on a simulated GPU,
// whose blocks are dropped and made again as the plan says. (That the bits are
// right is what recomputer_test.cpp and the tests of the framework say; a
// simulated GPU has none.)
#include <cstdint>
#include <gtest/gtest.h>
#include <memory>
#include <utility>
#include <vector>

#include "backend/runtime/simulated/simulated_runtime.h"
#include "memory/pager.h"
#include "profiler/op_names.h"
#include "tests/cpp/memory/policy/hand_profile.h"
#include "tests/cpp/memory/policy/residual_network.h"

namespace chameleon::memory {
namespace {

using profiler::Cycle;
using profiler::ValueIndex;

// Runs the ops of a cycle as the framework would.
class CycleRun {
 public:
  CycleRun(const Cycle& cycle, std::size_t budget_bytes, bool recompute)
      : cycle_(cycle),
        runtime_(runtime::make_simulated_runtime(hand_profile())),
        pager_(Pager::create(*runtime_, {budget_bytes, 1 << 30, 64}, "forecast")
                   .value()),
        blocks_(cycle.values()) {
    EXPECT_FALSE(pager_->policy().setRecompute(recompute));
    may_ = profiler::op_names().add("recompute_test::may");
    may_not_ = profiler::op_names().add("recompute_test::may_not");
    profiler::op_names().allowRerun(may_);
    std::vector<bool> created(cycle.values());
    for (const profiler::Operand operand : cycle.operands) {
      if (operand.creates()) created[operand.value()] = true;
    }
    for (ValueIndex v = 0; v < cycle.values(); ++v) {
      if (created[v]) continue;
      blocks_[v] = pager_->createBlock(cycle.value_bytes[v]).value();
      EXPECT_FALSE(
          pager_->write(*blocks_[v], 0, nullptr, cycle.value_bytes[v], {}));
    }
  }
  ~CycleRun() {
    for (Block* block : blocks_) {
      if (block != nullptr) pager_->release(block);
    }
  }

  // Its time, in ns.
  std::int64_t step() {
    const std::int64_t begin = now();
    pager_->profiler().step();
    for (std::uint32_t op = 0; op < cycle_.ops(); ++op) run(op);
    return now() - begin;
  }
  Pager& pager() { return *pager_; }

 private:
  // The op once more.
  class Recorded final : public RecordedOp {
   public:
    Recorded(CycleRun& owner, std::uint32_t op) : owner_(owner), op_(op) {}
    runtime::Error run(std::span<Block* const> blocks,
                       std::vector<Block*>& results) override {
      std::vector<Operand> operands;
      for (Block* block : blocks) operands.push_back({block, Access::kRead});
      Call call;
      if (runtime::Error error = owner_.pager_->begin(
              call, {kKind, {}, operands, nullptr, true})) {
        return error;
      }
      for (Block* block : owner_.results(call, op_)) results.push_back(block);
      owner_.pager_->end(call);
      return {};
    }
    bool isSideEffect(std::size_t /*operand*/) const override { return false; }

   private:
    CycleRun& owner_;
    const std::uint32_t op_;
  };
  static constexpr OpKind kKind{.name = "op"};

  std::int64_t now() {
    const runtime::Event event = runtime_->recordTimed({}).value();
    EXPECT_TRUE(pager_->synchronize().ok());
    const std::int64_t time_ns = runtime_->momentOf(event).value().time_ns;
    runtime_->destroy(event);
    return time_ns;
  }

  // The kernel, and what it makes.
  std::vector<Block*> results(Call& call, std::uint32_t op) {
    std::vector<Block*> made;
    for (const profiler::Operand operand : cycle_.operandsOf(op)) {
      if (!operand.creates()) continue;
      const std::size_t bytes = cycle_.value_bytes[operand.value()];
      std::byte* const address = pager_->allocate(call, bytes).value();
      made.push_back(pager_->adopt(call, address, bytes).value());
    }
    EXPECT_FALSE(runtime_->computed(
        {}, {.bytes = static_cast<double>(cycle_.duration_ns[op])}));
    return made;
  }

  void run(std::uint32_t op) {
    std::vector<Operand> operands;
    const std::uint32_t name = cycle_.may_rerun[op] != 0 ? may_ : may_not_;
    profiler::TokenHasher hasher(name);
    for (const profiler::Operand operand : cycle_.operandsOf(op)) {
      hasher.add(cycle_.value_bytes[operand.value()]);
      hasher.add(operand.flags());
      if (operand.creates()) continue;
      operands.push_back({blocks_[operand.value()],
                          operand.dirties() ? Access::kWrite : Access::kRead});
    }
    const profiler::Token token = hasher.token();
    const OpIdentity identity = OpIdentity::of(name, token);
    Call call;
    ASSERT_FALSE(pager_->begin(call, {kKind, {}, operands, &identity}));
    const std::vector<Block*> made = results(call, op);
    std::size_t next = 0;
    for (const profiler::Operand operand : cycle_.operandsOf(op)) {
      if (operand.creates()) blocks_[operand.value()] = made[next++];
    }
    pager_->meter().durations().addOp(token, 0, cycle_.duration_ns[op]);
    if (call.wantsRecord()) {
      pager_->record(call, std::make_unique<Recorded>(*this, op), made);
    }
    pager_->end(call);
    for (const ValueIndex value : cycle_.freedAfter(op)) {
      pager_->release(std::exchange(blocks_[value], nullptr));
    }
  }

  const Cycle& cycle_;
  std::unique_ptr<runtime::DeviceRuntime> runtime_;
  std::unique_ptr<Pager> pager_;
  std::vector<Block*> blocks_; // per value
  std::uint32_t may_ = 0;
  std::uint32_t may_not_ = 0;
};

// Half of what the step keeps; a byte takes a nanosecond each way.
TEST(PagerRecompute, PlansAreCarriedOut) {
  const Cycle cycle = residual_network(12);
  constexpr std::size_t kBudget = std::size_t{400} << 20;
  CycleRun swaps(cycle, kBudget, false);
  CycleRun both(cycle, kBudget, true);
  for (CycleRun* each : {&swaps, &both}) {
    for (int i = 0; i < 6; ++i) each->step();
    each->pager().resetStats();
  }
  const std::int64_t moved_ns = swaps.step();
  const std::int64_t made_ns = both.step();
  EXPECT_EQ(swaps.pager().stats().rerun_ops, 0);
  const Stats stats = both.pager().stats();
  EXPECT_GT(stats.rerun_ops, 0);
  EXPECT_EQ(stats.faults, 0);
  EXPECT_LT(made_ns, moved_ns / 2);
  EXPECT_LT(stats.bytes_in, swaps.pager().stats().bytes_in / 2);
  both.pager().invariants().check(3);
  // What was dropped comes back though nothing more is.
  EXPECT_FALSE(both.pager().policy().setRecompute(false));
  both.step();
  both.pager().invariants().check(3);
}

} // namespace
} // namespace chameleon::memory
