// The n-th failure of everything that a training step asks of the device, once
// and for ever: the training in miniature, each op of which may fail.
#include <cstring>
#include <gtest/gtest.h>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "tests/cpp/memory/pager_fixture.h"
#include "tests/cpp/memory/policy/miniature_training.h"

namespace chameleon::memory {
namespace {

using runtime::Error;
using runtime::ErrorCode;
using runtime::FaultPoint;

constexpr std::size_t kLayers = 5;
constexpr std::size_t kRoom = 6 * kBytes; // of some 13 values at most

// As Training, where every op may fail: it stops there and leaves no value but
// the weights, which hold what they held before the op.
class FailingTraining {
 public:
  explicit FailingTraining(Pager& pager) : pager_(pager) {
    for (std::size_t i = 0; i < kLayers; ++i) {
      Block* const block = pager.createBlock(kBytes).value();
      weights_.push_back({block, static_cast<std::uint8_t>(i)});
      const std::vector<std::byte> data(kBytes, std::byte(i));
      EXPECT_FALSE(pager.write(*block, 0, data.data(), kBytes, {}));
    }
  }
  ~FailingTraining() {
    for (const Value& weight : weights_) pager_.release(weight.block);
  }

  // The first error, and what the step gives: the bytes of its last value.
  Error step(int& result) {
    std::vector<Value> alive;
    Error error = step(alive, result);
    for (const Value& value : alive) pager_.release(value.block);
    return error;
  }

  // Reads all weights, by copies to the host.
  Error read() {
    std::vector<std::byte> data(kBytes);
    for (const Value& weight : weights_) {
      if (Error error =
              pager_.read(*weight.block, 0, data.data(), kBytes, {})) {
        return error;
      }
      EXPECT_EQ(data, std::vector<std::byte>(kBytes, std::byte(weight.byte)));
    }
    return {};
  }

  std::uint32_t pins() const {
    std::uint32_t pins = 0;
    for (const Value& weight : weights_) pins += weight.block->pins();
    return pins;
  }

 private:
  struct Value {
    Block* block;
    std::uint8_t byte;
  };

  Error step(std::vector<Value>& alive, int& result) {
    Value x;
    if (Error error = make(1, {&weights_[0]}, x)) return error;
    alive.push_back(x);
    for (Value& weight : weights_) {
      if (Error error = make(2, {&x, &weight}, x)) return error;
      alive.push_back(x);
    }
    // What is used up is freed; a loss is read back in the middle.
    std::vector<std::byte> loss(kBytes);
    if (Error error = pager_.read(*x.block, 0, loss.data(), kBytes, {})) {
      return error;
    }
    EXPECT_EQ(loss[kBytes / 2], std::byte(x.byte));
    for (std::size_t i = kLayers; i-- > 0;) {
      Value gradient;
      if (Error error = make(3, {&alive.back(), &alive[i]}, gradient)) {
        return error;
      }
      pager_.release(alive.back().block);
      alive.back() = gradient;
      if (Error error = run(4, {&weights_[i], &gradient}, Access::kWrite)) {
        return error;
      }
      // The optimizer overwrites what is left of the activation.
      if (Error error = run(5, {&alive[i], &weights_[i]}, Access::kOverwrite)) {
        return error;
      }
    }
    result = alive.back().byte;
    return {};
  }

  // A kernel's sum of its operands. A failure of its memory is retried.
  Error make(std::uint32_t name, std::vector<Value*> values, Value& made) {
    Call call;
    for (;;) {
      std::uint8_t sum = 0;
      if (Error error = begin(call, name, values, Access::kRead, sum)) {
        return error;
      }
      runtime::Result<std::byte*> to = pager_.allocate(call, kBytes);
      Error error;
      if (to.ok()) {
        std::memset(*to, sum, kBytes);
        runtime::Result<Block*> block = pager_.adopt(call, *to, kBytes);
        if (block.ok()) {
          made = {*block, sum};
        } else {
          pager_.free(&call, *to);
          error = block.takeError();
        }
      } else {
        error = to.takeError();
      }
      pager_.end(call);
      if (!error || !call.worthRetrying()) return error;
    }
  }

  // Into the first operand.
  Error run(std::uint32_t name, std::vector<Value*> values, Access access) {
    Call call;
    std::uint8_t sum = 0;
    if (Error error = begin(call, name, values, access, sum)) return error;
    std::memset(values[0]->block->device_address, sum, kBytes);
    values[0]->byte = sum;
    call.overwritten();
    pager_.end(call);
    return {};
  }

  Error begin(Call& call, std::uint32_t name, std::span<Value* const> values,
              Access first, std::uint8_t& sum) {
    std::vector<Operand> operands;
    for (Value* value : values) {
      operands.push_back(
          {value->block, operands.empty() ? first : Access::kRead});
    }
    const profiler::Token token = name;
    const OpIdentity identity = OpIdentity::of(
        profiler::op_names().add("op" + std::to_string(name)), token);
    if (Error error = pager_.begin(call, {}, operands, &memory_[name], "op",
                                   first == Access::kRead, &identity)) {
      return error;
    }
    for (const Value* value : values) {
      const bool read = first != Access::kOverwrite || value != values[0];
      if (read) {
        const std::byte* const data = value->block->device_address;
        EXPECT_EQ(data[0], std::byte(value->byte));
        EXPECT_EQ(std::memcmp(data, data + 1, kBytes - 1), 0);
      }
      sum = static_cast<std::uint8_t>(sum + (read ? value->byte : 0) + name);
    }
    return {};
  }

  Pager& pager_;
  std::vector<Value> weights_;
  std::array<OpMemory, 8> memory_;
};

using Kind = std::tuple<FaultPoint, const char*>;

class PagerFaults : public testing::TestWithParam<Kind> {
 protected:
  void TearDown() override { faults_.disarmAll(); }
  runtime::FaultInjection& faults_ = runtime::FaultInjection::instance();
};

TEST_P(PagerFaults, AStepSurvivesEach) {
  const auto [point, adversary] = GetParam();
  std::vector<int> expected(4);
  {
    Device device("lru", kRoom, adversary);
    FailingTraining training(*device.pager);
    for (int& result : expected) ASSERT_FALSE(training.step(result));
  }
  int injected = 0;
  for (const bool for_ever : {false, true}) {
    std::uint64_t errors = 0;
    bool met = true;
    for (std::uint64_t nth = 1; met; nth += 1 + nth / 12) {
      SCOPED_TRACE(testing::Message() << "pass " << nth << " seed 1"
                                      << (for_ever ? " for ever" : ""));
      Device device("lru", kRoom, adversary);
      FailingTraining training(*device.pager);
      int result = 0;
      ASSERT_FALSE(training.step(result));
      faults_.arm(point, nth, for_ever);
      const Error error = training.step(result);
      met = faults_.passes(point) >= nth;
      injected += met ? 1 : 0;
      if (error) {
        ++errors;
        EXPECT_NE(error.message().find("injected failure"), std::string::npos)
            << error.message();
      } else {
        EXPECT_EQ(result, expected[1]);
      }
      device.pager->invariants().check(2);
      EXPECT_EQ(training.pins(), 0u);
      faults_.disarmAll();
      // What was lost, if anything, is the activations'.
      ASSERT_FALSE(training.read());
      ASSERT_FALSE(training.step(result));
      if (!error) {
        EXPECT_EQ(result, expected[2]);
      }
      ASSERT_FALSE(training.read());
      device.pager->invariants().check(3);
      EXPECT_EQ(device.pager->stats().logical_bytes,
                std::int64_t{kLayers * kBytes});
      EXPECT_EQ(device.pager->stats().pinned_bytes, 0);
      if (testing::Test::HasFailure()) return;
    }
    // Waits by other means, and room by other victims, pass unnoticed.
    if (point == FaultPoint::kCopy || point == FaultPoint::kBlock) {
      EXPECT_GT(errors, 5u);
    }
  }
  RecordProperty("faults_injected", injected);
}

INSTANTIATE_TEST_SUITE_P(
    Points, PagerFaults,
    testing::Combine(testing::Values(FaultPoint::kCommit,
                                     FaultPoint::kAllocateHost,
                                     FaultPoint::kCopy, FaultPoint::kEvent,
                                     FaultPoint::kBlock),
                     testing::Values("", "copies=on_await,seed=1",
                                     "copies=on_await,compute_delay=4,poison=1",
                                     "copies=reordered,poison=1,seed=2")),
    [](const testing::TestParamInfo<Kind>& kind) {
      return std::string(runtime::fault_point_names()[static_cast<std::size_t>(
                 std::get<0>(kind.param))]) +
             std::to_string(kind.index % 4);
    });

// A copy that fails late takes the device with it: what is read is right or an
// error, for ever, and all of it comes down without a hang.
TEST(PagerLostDevice, ReadsAreRightOrFail) {
  if (support::tests_run_on_cuda()) GTEST_SKIP() << "of the cpu runtime";
  runtime::FaultInjection& faults = runtime::FaultInjection::instance();
  std::uint64_t read = 0;
  std::uint64_t refused = 0;
  int injected = 0;
  for (const char* const adversary : {"", "copies=on_await,seed=1"}) {
    bool met = true;
    for (std::uint64_t nth = 1; met; ++nth) {
      SCOPED_TRACE(testing::Message() << "batch " << nth);
      Device device("lru", kRoom, adversary);
      FailingTraining training(*device.pager);
      int result = 0;
      ASSERT_FALSE(training.step(result));
      faults.arm(FaultPoint::kCompletion, nth, false);
      for (int i = 0; i < 3; ++i) {
        if (Error error = training.step(result)) {
          EXPECT_EQ(error.code(), ErrorCode::kDevice) << error.message();
        }
      }
      met = faults.passes(FaultPoint::kCompletion) >= nth;
      injected += met ? 1 : 0;
      faults.disarmAll();
      for (int i = 0; i < 2; ++i) {
        if (training.read()) {
          ++refused;
        } else {
          ++read;
        }
      }
      device.pager->invariants().check(2);
      EXPECT_EQ(training.pins(), 0u);
    }
  }
  EXPECT_GT(refused, 20u);
  EXPECT_GT(read, 0u);
  RecordProperty("faults_injected", injected);
}

} // namespace
} // namespace chameleon::memory
