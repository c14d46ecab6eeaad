// What the pager decides, on a device with bytes and on one without.
#include "memory/decision_log.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <gtest/gtest.h>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "backend/runtime/simulated/clocked_cpu_runtime.h"
#include "backend/runtime/simulated/simulated_runtime.h"
#include "memory/pager.h"
#include "profiler/op_names.h"

namespace chameleon::memory {
namespace {

constexpr std::size_t kKiB = 1024;

runtime::GpuProfile gpu() {
  return runtime::parse_gpu_profile("rtx3090").value();
}

// A training with layers of different sizes, in-op temporaries, results and
// in-place ops. Where there are bytes it fills and looks at them.
class Program {
 public:
  Program(runtime::DeviceRuntime& runtime, std::string_view policy,
          std::size_t budget)
      : runtime_(runtime),
        pager_(Pager::create(runtime, {budget, 1 << 28, 64}, policy).value()) {
    pager_->decisions().start(1 << 20);
  }

  void train(int steps, std::size_t layers) {
    std::vector<Value> weights;
    for (std::size_t i = 0; i < layers; ++i) {
      Block* const block =
          pager_->createBlock((16 + 8 * (i % 5)) * kKiB).value();
      const std::vector<std::byte> data(block->bytes, std::byte(i));
      EXPECT_FALSE(pager_->write(*block, 0, data.data(), block->bytes, {}));
      weights.push_back({block, std::byte(i)});
    }
    for (int step = 0; step < steps; ++step) this->step(weights);
    for (const Value& weight : weights) pager_->release(weight.block);
  }

  Pager& pager() { return *pager_; }

 private:
  struct Value {
    Block* block;
    std::byte byte;
  };

  void step(std::vector<Value>& weights) {
    std::vector<Value> activations{op("input", {}, 32 * kKiB)};
    for (Value& weight : weights) {
      activations.push_back(
          op("forward", {&activations.back(), &weight}, weight.block->bytes));
    }
    for (std::size_t i = weights.size(); i-- > 0;) {
      Value gradient = op("backward", {&activations[i + 1], &activations[i]},
                          weights[i].block->bytes);
      pager_->release(activations[i + 1].block);
      op("update", {&weights[i], &gradient}, 0);
      pager_->release(gradient.block);
    }
    pager_->release(activations[0].block);
  }

  // The sum of its operands as a new value; without one, into the first.
  Value op(const std::string& name, std::vector<Value*> values,
           std::size_t result_bytes) {
    std::vector<Operand> operands;
    std::uint64_t token = profiler::op_names().add(name);
    std::byte sum{1};
    for (Value* value : values) {
      const bool writes = result_bytes == 0 && operands.empty();
      operands.push_back(
          {value->block, writes ? Access::kWrite : Access::kRead});
      token = token * 31 + value->block->bytes;
      sum ^= value->byte;
    }
    Call call;
    const OpIdentity identity =
        OpIdentity::of(profiler::op_names().add(name), token);
    EXPECT_FALSE(pager_->begin(call, {}, operands, &memory_[name], name, false,
                               &identity));
    std::byte* const temporary = pager_->allocate(call, 4 * kKiB).value();
    Value made = values.empty() ? Value{} : *values[0];
    if (result_bytes > 0) {
      std::byte* const place = pager_->allocate(call, result_bytes).value();
      made.block = pager_->adopt(call, place, result_bytes).value();
    }
    pager_->free(&call, temporary);
    if (runtime_.holdsData()) {
      for (const Value* value : values) {
        const std::byte* data = value->block->device_address;
        EXPECT_EQ(data[0], value->byte);
        EXPECT_EQ(data[value->block->bytes - 1], value->byte);
      }
      std::fill_n(made.block->device_address, made.block->bytes.load(), sum);
    }
    made.byte = sum;
    if (result_bytes == 0) values[0]->byte = sum;
    EXPECT_FALSE(runtime_.computed(
        {}, {.bytes = static_cast<double>(4 * made.block->bytes)}));
    pager_->end(call);
    return made;
  }

  runtime::DeviceRuntime& runtime_;
  std::unique_ptr<Pager> pager_;
  std::map<std::string, OpMemory> memory_;
};

class Decisions
    : public testing::TestWithParam<std::tuple<std::string, std::size_t>> {};

TEST_P(Decisions, AreTheSameWithAndWithoutData) {
  constexpr int kSteps = 12;
  const auto& [policy, budget] = GetParam();
  const auto real = runtime::make_clocked_cpu_runtime(gpu());
  const auto modelled = runtime::make_simulated_runtime(gpu());
  std::vector<std::vector<DecisionRecord>> logs;
  std::vector<std::int64_t> times_ns;
  for (runtime::DeviceRuntime* runtime : {real.get(), modelled.get()}) {
    Program program(*runtime, policy, budget);
    program.train(kSteps, 24);
    ASSERT_FALSE(program.pager().synchronize());
    times_ns.push_back(runtime->now_ns());
    EXPECT_EQ(program.pager().decisions().dropped(), 0U);
    logs.push_back(program.pager().decisions().records());
    program.pager().invariants().check(3);
  }
  EXPECT_TRUE(logs[0] == logs[1]);
  EXPECT_EQ(times_ns[0], times_ns[1]);
  std::array<int, kDecisions> count{};
  for (const DecisionRecord& record : logs[0]) {
    ++count[static_cast<std::size_t>(record.decision)];
  }
  const auto of = [&](Decision decision) {
    return count[static_cast<std::size_t>(decision)];
  };
  EXPECT_GE(of(Decision::kPin), kSteps * 24 * 6); // and those of write()
  EXPECT_EQ(of(Decision::kAdopt), kSteps * (24 * 2 + 1));
  EXPECT_GT(of(Decision::kFault), 0);
  EXPECT_GT(of(Decision::kVictim), 0);
  if (policy == "forecast") {
    EXPECT_GT(of(Decision::kFetch), 100);
    EXPECT_GT(of(Decision::kWriteBack), 100);
    EXPECT_GT(of(Decision::kEvict), 100);
  }
}

INSTANTIATE_TEST_SUITE_P(All, Decisions,
                         testing::Combine(testing::Values("lru", "forecast"),
                                          testing::Values(512 * kKiB,
                                                          900 * kKiB)));

TEST(DecisionLog, IsOffUntilStartedAndBounded) {
  std::atomic<bool> watched{false};
  DecisionLog log(watched);
  EXPECT_FALSE(log.on());
  log.start(3);
  EXPECT_TRUE(log.on());
  for (std::uint64_t i = 0; i < 5; ++i) {
    log.add({i, Decision::kPin, 1, 2, 3});
  }
  ASSERT_EQ(log.records().size(), 3U);
  EXPECT_EQ(log.records()[2].call, 2U);
  EXPECT_EQ(log.dropped(), 2U);
  log.start(0);
  EXPECT_FALSE(log.on());
  EXPECT_TRUE(log.records().empty());
}

TEST(DecisionLog, NamesAreDifferent) {
  std::vector<std::string_view> names;
  for (std::size_t i = 0; i < kDecisions; ++i) {
    names.push_back(decision_name(static_cast<Decision>(i)));
  }
  std::sort(names.begin(), names.end());
  EXPECT_EQ(std::unique(names.begin(), names.end()), names.end());
}

} // namespace
} // namespace chameleon::memory
