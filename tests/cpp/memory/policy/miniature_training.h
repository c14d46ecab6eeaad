// A training step in miniature, with every value checked.
#pragma once

#include <array>
#include <cstring>
#include <gtest/gtest.h>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "memory/pager.h"
#include "profiler/op_names.h"
#include "tests/cpp/support/test_runtime.h"

namespace chameleon::memory {

inline constexpr std::size_t kBytes = std::size_t{64} << 10; // of a value

// Layers with a weight each; forward keeps an activation a layer, backward
// takes them back and updates the weights. Values are one byte, repeated.
class Training {
 public:
  Training(Pager& pager, std::size_t layers) : pager_(pager) {
    for (std::size_t i = 0; i < layers; ++i) {
      Block* const block = pager.createBlock(kBytes).value();
      weights_.push_back({block, static_cast<std::uint8_t>(i)});
      const std::vector<std::byte> data(kBytes, std::byte(i));
      EXPECT_FALSE(pager.write(*block, 0, data.data(), kBytes, {}));
    }
  }
  ~Training() {
    for (const Value& weight : weights_) pager_.release(weight.block);
  }

  // After each update a weight is written once more, if one is being written
  // back, and counted.
  bool writes_what_is_written_back = false;
  int written_while_written_back = 0;

  // So that they were there before the steps.
  void initialize() {
    for (Value& weight : weights_) op(6, {&weight}, true);
  }
  // Later steps have the same ops, some on other blocks of the same size.
  void swapTwoWeights() { std::swap(weights_[1], weights_[2]); }

  void step() {
    std::vector<Value> activations;
    std::optional<Value> x = op(1, {&weights_[0]}, false);
    for (Value& weight : weights_) {
      Value y = op(2, {&*x, &weight}, false).value();
      activations.push_back(*x);
      x = y;
    }
    for (std::size_t i = weights_.size(); i-- > 0;) {
      Value gradient = op(3, {&*x, &activations[i]}, false).value();
      pager_.release(x->block);
      pager_.release(activations[i].block);
      op(4, {&weights_[i], &gradient}, true);
      x = gradient;
      if (writes_what_is_written_back) writeOneBeingWrittenBack();
    }
    pager_.release(x->block);
  }

 private:
  struct Value {
    Block* block;
    std::uint8_t byte;
  };

  void writeOneBeingWrittenBack() {
    for (Value& weight : weights_) {
      if (!weight.block->copied_ahead || !weight.block->hasHostCopy()) continue;
      op(5, {&weight}, true);
      ++written_while_written_back;
      return;
    }
  }

  // Sums its operands, into a new value or into the first.
  std::optional<Value> op(std::uint32_t name, std::vector<Value*> values,
                          bool in_place) {
    std::vector<Operand> operands;
    for (Value* value : values) {
      operands.push_back({value->block, in_place && value == values[0]
                                            ? Access::kWrite
                                            : Access::kRead});
    }
    Call call;
    const profiler::Token token = name;
    const OpIdentity identity = OpIdentity::of(
        profiler::op_names().add("op" + std::to_string(name)), token);
    EXPECT_FALSE(pager_.begin(call, {}, operands, &memory_[name], "op", false,
                              &identity));
    std::uint8_t sum = 0;
    for (const Value* value : values) {
      const auto* data = value->block->device_address;
      EXPECT_EQ(data[0], std::byte(value->byte));
      EXPECT_EQ(data[kBytes - 1], std::byte(value->byte));
      sum = static_cast<std::uint8_t>(sum + value->byte + name);
    }
    std::optional<Value> made;
    std::byte* to = values[0]->block->device_address;
    if (!in_place) {
      to = pager_.allocate(call, kBytes).value();
      made = Value{pager_.adopt(call, to, kBytes).value(), sum};
    } else {
      values[0]->byte = sum;
    }
    std::memset(to, sum, kBytes);
    pager_.end(call);
    return made;
  }

  Pager& pager_;
  std::vector<Value> weights_;
  std::array<OpMemory, 8> memory_;
};

struct Device {
  std::unique_ptr<runtime::DeviceRuntime> runtime;
  std::unique_ptr<Pager> pager;

  explicit Device(const std::string& policy, std::size_t budget,
                  const std::string& adversary = "") {
    runtime = support::make_test_runtime(
        adversary.empty() ? runtime::CpuAdversary{}
                          : runtime::parse_cpu_adversary(adversary).value());
    pager = Pager::create(*runtime, {budget, 1 << 28, 64}, policy).value();
  }
};

} // namespace chameleon::memory
