// What an op costs on a simulated GPU, and what its kernels allocate: by
// formula, for sizes that can be multiplied in one's head.
#include "kernels/simulated/op_costs.h"

#include <ATen/Context.h>

#include "kernels/simulated/workspaces.h"
#include "tests/cpp/kernels/device_fixture.h"

namespace chameleon::kernels::simulated {
namespace {

using runtime::MathType;
using runtime::OpCost;
using Values = std::vector<c10::IValue>;

class OpCostsTest : public DeviceTest {
 protected:
  template <typename Use>
  static auto with(const std::string& op, const Values& arguments,
                   const Values& results, Use use) {
    const OpTraits traits(op_named("aten::" + op));
    return use(CallView{traits, traits.handle.schema(), arguments, results});
  }
  static OpCost cost(const std::string& op, const Values& arguments,
                     const Values& results) {
    return with(op, arguments, results, &cost_of);
  }
  static std::size_t workspace(const std::string& op, const Values& arguments,
                               const Values& results = {}) {
    return with(op, arguments, results, &workspace_bytes);
  }
  // Of float, unless `type` says otherwise; what is in it does not matter.
  static at::Tensor of(at::IntArrayRef sizes,
                       at::ScalarType type = at::kFloat) {
    return at::empty(sizes, at::TensorOptions(chameleon()).dtype(type));
  }
  static const c10::IValue& none() {
    static const c10::IValue value;
    return value;
  }
};

// ---- floating point operations -------------------------------------------

TEST_F(OpCostsTest, ProductsOfMatrices) {
  EXPECT_EQ(cost("mm", {of({2, 3}), of({3, 5})}, {of({2, 5})}).flops,
            2 * 2 * 3 * 5);
  EXPECT_EQ(cost("bmm", {of({7, 2, 3}), of({7, 3, 5})}, {of({7, 2, 5})}).flops,
            7 * 2 * 2 * 3 * 5);
  EXPECT_EQ(cost("addmm", {of({5}), of({2, 3}), of({3, 5}), 1, 1}, {of({2, 5})})
                .flops,
            2 * 2 * 3 * 5);
  EXPECT_EQ(cost("mv", {of({2, 3}), of({3})}, {of({2})}).flops, 2 * 2 * 3);
  EXPECT_EQ(cost("add.Tensor", {of({2}), of({2}), 1}, {of({2})}).flops, 0);
}

TEST_F(OpCostsTest, AConvolutionMeetsItsWeightAtEachPosition) {
  // 4 output channels of 3 input channels and 9 places; 8 x 8 of 2 images.
  const at::Tensor weight = of({4, 3, 3, 3});
  const auto flops = [&](const at::Tensor& input, const at::Tensor& result,
                         bool transposed) {
    const std::vector<std::int64_t> ones{1, 1};
    return cost("convolution",
                {input, weight, none(), ones, ones, ones, transposed, ones, 1},
                {result})
        .flops;
  };
  EXPECT_EQ(flops(of({2, 3, 10, 10}), of({2, 4, 8, 8}), false),
            2.0 * 2 * 64 * 4 * 27);
  // Of a transposed one: at each position of the input.
  EXPECT_EQ(flops(of({2, 4, 8, 8}), of({2, 3, 10, 10}), true),
            2.0 * 2 * 64 * 4 * 27);
}

TEST_F(OpCostsTest, CausalAttentionIsHalfOfIt) {
  const at::Tensor q = of({2, 3, 8, 16});
  const at::Tensor k = of({2, 3, 4, 16});
  const at::Tensor v = of({2, 3, 4, 32});
  const auto flops = [&](bool causal) {
    return cost("_scaled_dot_product_flash_attention",
                {q, k, v, 0.0, causal, false, none()}, Values(9))
        .flops;
  };
  EXPECT_EQ(flops(false), 2.0 * 2 * 3 * 8 * 4 * (16 + 32));
  EXPECT_EQ(flops(true), flops(false) / 2);
}

TEST_F(OpCostsTest, TheTypeSaysHow) {
  const auto product = [](at::ScalarType type) {
    return cost("mm", {of({2, 3}, type), of({3, 5}, type)}, {of({2, 5}, type)});
  };
  EXPECT_EQ(product(at::kDouble).math, MathType::kFp64);
  EXPECT_EQ(product(at::kHalf).math, MathType::kFp16);
  EXPECT_EQ(product(at::kBFloat16).math, MathType::kBf16);
  EXPECT_EQ(product(at::kComplexFloat).flops, 4 * 2 * 2 * 3 * 5);
  at::globalContext().setAllowTF32CuBLAS(false);
  EXPECT_EQ(product(at::kFloat).math, MathType::kFp32);
  at::globalContext().setAllowTF32CuBLAS(true);
  EXPECT_EQ(product(at::kFloat).math, MathType::kTf32);
  at::globalContext().setAllowTF32CuBLAS(false);
}

// ---- bytes ---------------------------------------------------------------

TEST_F(OpCostsTest, OperandsOnceAndResultsOnce) {
  EXPECT_EQ(cost("add.Tensor", {of({10}), of({10}), 1}, {of({10})}).bytes, 120);
  EXPECT_EQ(cost("relu", {of({10}, at::kHalf)}, {of({10}, at::kHalf)}).bytes,
            40);
  // A scalar on the CPU is no traffic.
  EXPECT_EQ(
      cost("add.Tensor", {of({10}), at::scalar_tensor(1), 1}, {of({10})}).bytes,
      80);
}

TEST_F(OpCostsTest, AnExpandedElementIsReadOnce) {
  EXPECT_EQ(
      cost("relu", {of({10, 1}).expand({10, 100})}, {of({10, 100})}).bytes,
      40 + 4000);
}

TEST_F(OpCostsTest, InPlaceIsReadAndWrittenAndFillsAreWrittenOnly) {
  const at::Tensor x = of({10});
  EXPECT_EQ(cost("add_.Tensor", {x, of({10}), 1}, {x}).bytes, 2 * 40 + 40);
  EXPECT_EQ(cost("zero_", {x}, {x}).bytes, 40);
  EXPECT_EQ(cost("add.out", {of({10}), of({10}), 1, x}, {x}).bytes, 120);
}

TEST_F(OpCostsTest, GathersAndScattersTouchWhatTheyName) {
  const at::Tensor table = of({1000, 10});
  const at::Tensor rows = of({3}, at::kLong);
  EXPECT_EQ(cost("index_select", {table, 0, rows}, {of({3, 10})}).bytes,
            24 + 2 * 120);
  EXPECT_EQ(cost("index_add_", {table, 0, rows, of({3, 10}), 1}, {table}).bytes,
            2 * 24 + 2 * 120);
}

TEST_F(OpCostsTest, ListsCountEachElement) {
  const std::vector<at::Tensor> xs{of({10}), of({20})};
  EXPECT_EQ(cost("_foreach_mul_.Scalar", {xs, 2.0}, {}).bytes, 2 * 120);
  EXPECT_EQ(cost("_foreach_zero_", {xs}, {}).bytes, 120);
}

// ---- workspaces ----------------------------------------------------------

TEST_F(OpCostsTest, WhatKernelsAllocateBesideTheirResults) {
  EXPECT_EQ(workspace("mm", {of({2, 3}), of({3, 5})}), 0U);
  EXPECT_EQ(workspace("sort", {of({10}), 0, false}), 10 * (4 + 8U));
  EXPECT_EQ(workspace("_unique2", {of({10}), true, false, false}),
            10 * 2 * (4 + 8U));
  EXPECT_EQ(workspace("embedding_dense_backward",
                      {of({3, 4}), of({3}, at::kLong), 7, -1, false}),
            4 * 8 * 3U);
  // A loss is made element by element, unless it stays so.
  EXPECT_EQ(workspace("mse_loss", {of({10, 1}), of({4}), 1}), 160U);
  EXPECT_EQ(workspace("mse_loss", {of({10, 1}), of({4}), 0}), 0U);
  EXPECT_EQ(workspace("logsumexp", {of({10, 4}), 1, false}, {of({10})}),
            50 * 4U);
}

TEST_F(OpCostsTest, AWorkspaceOnlyWhereValuesAreAddedUp) {
  const c10::List<std::optional<at::Tensor>> indices(
      {std::nullopt, of({6}, at::kLong)});
  const auto put = [&](bool accumulate) {
    return workspace("index_put_",
                     {of({10, 10}), indices, of({6}), accumulate});
  };
  EXPECT_EQ(put(true), 5 * 8 * 6U);
  EXPECT_EQ(put(false), 0U);
}

} // namespace
} // namespace chameleon::kernels::simulated
