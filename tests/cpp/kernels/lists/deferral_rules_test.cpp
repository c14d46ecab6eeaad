// Which list ops may be deferred: one that may, and each way to be refused.
#include "kernels/lists/deferral_rules.h"

#include <limits>

#include <c10/core/InferenceMode.h>

#include "backend/torch/stream.h"
#include "tests/cpp/kernels/device_fixture.h"

namespace chameleon::kernels {
namespace {

using Tensors = std::vector<at::Tensor>;
using torch::jit::Stack;

class DeferralRulesTest : public DeviceTest {
 protected:
  static bool may(const std::string& op, Stack stack) {
    return is_deferrable(OpTraits(op_named("aten::_foreach_" + op)), stack,
                         device());
  }
  static c10::IValue scalars(std::initializer_list<at::Scalar> values) {
    return c10::List<at::Scalar>(values);
  }
  static Tensors of_type(at::ScalarType type) {
    return {filled({4}, 1, type), filled({4}, 2, type)};
  }
};

TEST_F(DeferralRulesTest, WhatAnOptimizerIsMadeOf) {
  const Tensors xs = list(2, {4});
  const Tensors ys = list(2, {4}, 5);
  EXPECT_TRUE(may("add_.Scalar", {xs, 1.0}));
  EXPECT_TRUE(may("add.List", {xs, ys, 1.0}));
  EXPECT_TRUE(may("mul_.Tensor", {xs, filled({}, 2)}));
  EXPECT_TRUE(may("addcdiv_.ScalarList", {xs, ys, ys, scalars({1, 2})}));
  EXPECT_TRUE(may("lerp_.Scalar", {xs, ys, 0.5}));
  EXPECT_TRUE(may("copy_", {xs, ys, false}));
  EXPECT_TRUE(may("zero_", {xs}));
  EXPECT_TRUE(may("sqrt", {xs}));
}

TEST_F(DeferralRulesTest, OtherOpsAndOutFormsAreNot) {
  const Tensors xs = list(2, {4});
  const Tensors ys = list(2, {4});
  EXPECT_FALSE(may("exp_", {xs}));
  EXPECT_FALSE(may("norm.Scalar", {xs, 2.0, c10::IValue()}));
  EXPECT_FALSE(may("sqrt.out", {xs, ys}));
  EXPECT_FALSE(may("add.Scalar_out", {xs, 1.0, ys}));
}

TEST_F(DeferralRulesTest, OneFloatingTypeForAll) {
  for (const at::ScalarType type :
       {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
    EXPECT_TRUE(may("add_.Scalar", {of_type(type), 1.0})) << type;
  }
  for (const at::ScalarType type : {at::kInt, at::kBool, at::kComplexFloat}) {
    EXPECT_FALSE(may("add_.Scalar", {of_type(type), 1.0})) << type;
  }
  EXPECT_FALSE(may("add_.List", {of_type(at::kFloat), of_type(at::kHalf), 1}));
}

// The largest half is 65504.
TEST_F(DeferralRulesTest, ScalarsThatTheTypeCanHold) {
  const Tensors halves = of_type(at::kHalf);
  EXPECT_TRUE(may("add_.Scalar", {halves, 65504.0}));
  EXPECT_TRUE(may("add_.Scalar", {halves, -65504.0}));
  EXPECT_FALSE(may("add_.Scalar", {halves, 65505.0}));
  EXPECT_FALSE(may("add_.Scalar", {halves, -65505.0}));
  EXPECT_FALSE(
      may("add_.Scalar", {halves, std::numeric_limits<double>::quiet_NaN()}));
  EXPECT_FALSE(may("add_.Scalar", {halves, c10::complex<double>(1, 0)}));
  EXPECT_TRUE(may("add_.ScalarList", {halves, scalars({1.0, 65504.0})}));
  EXPECT_FALSE(may("add_.ScalarList", {halves, scalars({1.0, 65505.0})}));
  EXPECT_FALSE(may("add_.ScalarList", {halves, scalars({1.0})}));
}

TEST_F(DeferralRulesTest, EachIndexHasOneShape) {
  const Tensors xs = list(2, {4, 6});
  EXPECT_FALSE(may("add_.List", {xs, list(2, {6}), 1.0}));
  EXPECT_FALSE(may("add_.List", {xs, list(3, {4, 6}), 1.0}));
  Tensors turned;
  for (const at::Tensor& y : list(2, {6, 4})) turned.push_back(y.t());
  EXPECT_FALSE(may("add_.List", {xs, turned, 1.0}));
  // Among themselves they agree; a new result would have other strides.
  EXPECT_TRUE(may("add_.Scalar", {turned, 1.0}));
  EXPECT_FALSE(may("add.Scalar", {turned, 1.0}));
  // Indices need not agree with each other.
  EXPECT_TRUE(may("add_.Scalar", {Tensors{xs[0], filled({9}, 1)}, 1.0}));
}

TEST_F(DeferralRulesTest, OrdinaryTensorsOfTheDevice) {
  const at::Tensor x = filled({4, 4}, 1);
  const auto may_add = [](const Tensors& xs) {
    return may("add_.Scalar", {xs, 1.0});
  };
  EXPECT_TRUE(may_add({x}));
  EXPECT_FALSE(may_add({}));
  EXPECT_FALSE(may_add({x, at::ones({4})}));     // on the CPU
  EXPECT_FALSE(may_add({x, filled({0}, 1)}));    // no elements
  EXPECT_FALSE(may_add({x, x.narrow(1, 0, 2)})); // not dense
  EXPECT_FALSE(may_add({x, at::_neg_view(x)}));  // a lazy bit
  EXPECT_FALSE(may("mul_.Tensor", {Tensors{x}, at::scalar_tensor(2)}));
  EXPECT_FALSE(may("mul_.Tensor", {Tensors{x}, filled({1}, 2)}));
}

TEST_F(DeferralRulesTest, NotWhereAnOperandIsPinned) {
  const Tensors xs = list(2, {4});
  memory::Call held;
  const memory::Operand operand{block(xs[1]), memory::Access::kRead};
  ASSERT_TRUE(pager()
                  .begin(held, backend::current_stream(0), {&operand, 1},
                         nullptr, "a test", true)
                  .ok());
  EXPECT_FALSE(may("add_.Scalar", {xs, 1.0}));
  pager().end(held);
  EXPECT_TRUE(may("add_.Scalar", {xs, 1.0}));
}

TEST_F(DeferralRulesTest, NotInInferenceMode) {
  const Tensors xs = list(2, {4});
  const c10::InferenceMode mode;
  EXPECT_FALSE(may("add_.Scalar", {xs, 1.0}));
}

// What an index needs: its operands, and its result where there is one.
TEST_F(DeferralRulesTest, EachIndexFitsIntoHalfTheBudget) {
  constexpr std::int64_t kElements = 4096; // 16 KiB
  const Tensors xs = list(3, {kElements});
  setBudget(2 * 16 * kKiB);
  EXPECT_TRUE(may("add_.Scalar", {xs, 1.0}));
  EXPECT_FALSE(may("add.Scalar", {xs, 1.0}));
  setBudget(4 * 16 * kKiB);
  EXPECT_TRUE(may("add.Scalar", {xs, 1.0}));
  setBudget(4 * 16 * kKiB - 1024);
  EXPECT_FALSE(may("add.Scalar", {xs, 1.0}));
}

TEST_F(DeferralRulesTest, LengthAndDeviceOfLists) {
  const Tensors xs = list(3, {4});
  const OpTraits traits(op_named("aten::_foreach_add_.Scalar"));
  const Stack stack{9, xs, 1.0}; // the arguments are the last ones
  EXPECT_EQ(list_length(traits, stack), 3U);
  EXPECT_EQ(device_of_lists(traits, stack), &device());
  EXPECT_EQ(list_length(traits, {Tensors{}, 1.0}), 0U);
  EXPECT_EQ(device_of_lists(traits, {Tensors{at::ones({1})}, 1.0}), nullptr);
  // The first that is ours, wherever it is.
  EXPECT_EQ(device_of_lists(traits, {Tensors{at::ones({1}), xs[0]}, 1.0}),
            &device());
}

} // namespace
} // namespace chameleon::kernels
