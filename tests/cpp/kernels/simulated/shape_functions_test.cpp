// Shapes that a simulated device makes up: those of the CPU's results, on data
// that gives the largest ones.
#include "kernels/simulated/shape_functions.h"

#include <gtest/gtest.h>
#include <sstream>

#include <ATen/ATen.h>
#include <torch/library.h>

#include "backend/torch/device_options.h"
#include "tests/cpp/kernels/schema_ops.h"

namespace chameleon::kernels::simulated {
namespace {

using torch::jit::Stack;
using Sizes = std::vector<std::int64_t>;
using Indices = std::vector<std::optional<at::Tensor>>;

// The same sizes, strides and types on another device; the values are zeros.
at::Tensor moved(const at::Tensor& tensor, at::Device device) {
  if (!tensor.defined()) return tensor;
  return at::empty_strided(tensor.sizes(), tensor.strides(),
                           tensor.options().device(device))
      .zero_();
}
c10::IValue moved(const c10::IValue& value, at::Device device) {
  if (value.isTensor()) return moved(value.toTensor(), device);
  if (!value.isOptionalTensorList()) return value;
  c10::List<std::optional<at::Tensor>> tensors;
  for (const auto& each : value.toOptionalTensorVector()) {
    tensors.push_back(each ? std::optional(moved(*each, device)) : each);
  }
  return tensors;
}
Stack moved(Stack stack, at::Device device) {
  for (c10::IValue& value : stack) value = moved(value, device);
  return stack;
}

// As "Float [2, 3] by [3, 1], Long [0] by [1]".
std::string described(const Stack& stack) {
  std::ostringstream out;
  for (const c10::IValue& value : stack) {
    if (&value != &stack.front()) out << ", ";
    if (!value.isTensor()) {
      out << value;
    } else if (!value.toTensor().defined()) {
      out << "none";
    } else {
      const at::Tensor& tensor = value.toTensor();
      out << tensor.scalar_type() << ' ' << tensor.sizes() << " by "
          << tensor.strides();
    }
  }
  return out.str();
}

class ShapeFunctionsTest : public testing::Test {
 protected:
  void TearDown() override { backend::set_option("simulated_reads", "zeros"); }

  // As they are.
  static Stack results(const std::string& op, Stack stack) {
    const OpTraits traits(op_named("aten::" + op));
    const ShapeFunction function = find_shape_function(traits.name);
    if (function == nullptr) throw std::runtime_error(op + " is not listed");
    function(traits, stack);
    return stack;
  }
  static std::string shapes(const std::string& op, const Stack& arguments) {
    return described(results(op, moved(arguments, at::kMeta)));
  }
  static void expectNatives(const std::string& op, Stack arguments) {
    const std::string made = shapes(op, arguments);
    op_named("aten::" + op).callBoxed(arguments);
    EXPECT_EQ(made, described(arguments)) << op;
  }
  // 4 x 6, contiguous and not; all elements differ.
  static std::vector<at::Tensor> matrices() {
    const at::Tensor values = at::arange(1, 97, at::kFloat) / 100;
    return {values.narrow(0, 0, 24).view({4, 6}),
            values.narrow(0, 0, 24).view({6, 4}).t(),
            values.view({8, 12}).slice(0, 0, 8, 2).slice(1, 1, 12, 2)};
  }
  static at::Tensor mask(at::IntArrayRef sizes) {
    return at::ones(sizes, at::kBool);
  }
  static c10::IValue indices(const Indices& indices) {
    return c10::List<std::optional<at::Tensor>>(
        c10::ArrayRef<std::optional<at::Tensor>>(indices));
  }
};

TEST_F(ShapeFunctionsTest, AnOpWithAMetaKernelHasNone) {
  for (const char* const op : {"add.Tensor", "mm", "sort", "index_select",
                               "sum.dim_IntList", "nonzero_static"}) {
    EXPECT_EQ(find_shape_function("aten::" + std::string(op)), nullptr) << op;
  }
  EXPECT_EQ(find_shape_function("aten::index"), nullptr); // of no overload
  EXPECT_NE(find_shape_function("aten::index.Tensor"), nullptr);
  EXPECT_EQ(find_shape_function("nonzero"), nullptr);
  EXPECT_NE(find_shape_function("aten::_aminmax"),
            find_shape_function("aten::_aminmax.dim"));
}

// ---- shapes of arguments ---------------------------------------------------

TEST_F(ShapeFunctionsTest, InPlaceOpsTakeTheirArgumentsAndNoMore) {
  const at::Tensor x = at::rand({4});
  const at::Tensor indices = at::zeros({4}, at::kLong);
  const Stack left = results("_cummax_helper", {7, x, x, indices, 0});
  ASSERT_EQ(left.size(), 1U);
  EXPECT_EQ(left[0].toInt(), 7);
}

TEST_F(ShapeFunctionsTest, ResultsLikeAnArgument) {
  const c10::IValue none;
  const at::Tensor one = at::ones({});
  const at::Tensor labels = at::zeros({4, 6}, at::kLong);
  for (const at::Tensor& x : matrices()) {
    expectNatives("_standard_gamma", {x, none});
    expectNatives("_standard_gamma_grad", {x, x});
    expectNatives("_sample_dirichlet", {x, none});
    expectNatives("_dirichlet_grad", {x, x, x});
    expectNatives("binomial", {x, x, none});
    expectNatives("_logcumsumexp", {x, 0});
    expectNatives("_masked_softmax", {x, ~mask({4, 6}), 1, 2});
    expectNatives("_add_relu.Scalar", {x, 2, 1});
    expectNatives("glu_jvp", {x, at::ones({4, 12}), at::ones({4, 12}), 1});
    expectNatives("multi_margin_loss_backward",
                  {one, x, labels.select(1, 0), 1, 1, none, 1});
    expectNatives("multilabel_margin_loss_backward",
                  {one, x, labels, 1, at::zeros({4, 6})});
  }
}

TEST_F(ShapeFunctionsTest, GradientsAreContiguousWhereNativesAre) {
  const at::Tensor turned = at::ones({2, 5, 4}).transpose(0, 1);
  const at::Tensor targets = at::ones({2, 3}, at::kLong);
  const Sizes times{5, 5};
  const Sizes lengths{3, 3};
  const auto [loss, alpha] = at::_ctc_loss(turned, targets, times, lengths);
  expectNatives("_ctc_loss_backward", {at::ones({2}), turned, targets, times,
                                       lengths, loss, alpha, 0, false});
  const at::Tensor volume = at::ones({2, 3, 8, 8, 8}).transpose(2, 4);
  const Sizes twos{2, 2, 2};
  const Sizes fours{4, 4, 4};
  const at::Tensor places = std::get<1>(
      at::fractional_max_pool3d(volume, twos, fours, at::full({2, 3, 3}, 0.5)));
  expectNatives("fractional_max_pool3d_backward",
                {at::ones({2, 3, 4, 4, 4}), volume, twos, fours, places});
}

TEST_F(ShapeFunctionsTest, LossesKeepStridesUnlessTheyAreReduced) {
  for (const at::Tensor& x : matrices()) {
    for (const std::int64_t reduction : {0, 1, 2}) {
      expectNatives("mse_loss", {x, x, reduction});
      expectNatives("smooth_l1_loss", {x, x, reduction, 1.0});
    }
  }
  expectNatives("mse_loss", {at::ones({4, 1}), at::ones({3}, at::kDouble), 0});
  // Native shrinks what it has made element by element.
  const Stack reduced = results(
      "mse_loss", moved({at::ones({4, 1}), at::ones({3}), 1}, at::kMeta));
  EXPECT_EQ(described(reduced), "Float [] by []");
  EXPECT_EQ(reduced[0].toTensor().storage().nbytes(), 4U * 12);
}

TEST_F(ShapeFunctionsTest, SmallestAndLargest) {
  for (const at::Tensor& x : matrices()) {
    expectNatives("_aminmax", {x});
    for (const bool keep : {false, true}) {
      expectNatives("_aminmax.dim", {x, 0, keep});
      expectNatives("_aminmax.dim", {x, -1, keep});
    }
  }
  expectNatives("_aminmax.dim", {at::ones({}, at::kInt), 0, true});
}

// PyTorch's Meta kernels of convolutions are in Python. This one stands in for
// them: whatever it is given, its results are contiguous.
void contiguous_as_on_cpu(const c10::OperatorHandle& op, Stack* stack) {
  *stack = moved(*stack, at::kCPU);
  op.callBoxed(*stack);
  for (c10::IValue& value : *stack) {
    value = moved(value.toTensor().contiguous(), at::kMeta);
  }
}

TEST_F(ShapeFunctionsTest, ConvolutionsAreChannelsLastWhereAnOperandIs) {
  torch::Library library(torch::Library::IMPL, "aten", c10::DispatchKey::Meta,
                         __FILE__, __LINE__);
  for (const char* const op : {"convolution", "convolution_backward"}) {
    library.impl(
        op, torch::CppFunction::makeFromBoxedFunction<&contiguous_as_on_cpu>());
  }
  const at::Tensor image = at::rand({2, 3, 8, 8});
  const at::Tensor weight = at::rand({4, 3, 3, 3});
  const at::Tensor grad = at::rand({2, 4, 8, 8});
  // On the stack: stride, padding, dilation, transposed, ...
  const auto with = [](Stack stack, Stack more = {}) {
    const Sizes ones{1, 1};
    for (const c10::IValue& each :
         Stack{ones, ones, ones, false, Sizes{0, 0}, 1}) {
      stack.push_back(each);
    }
    stack.insert(stack.end(), more.begin(), more.end());
    return stack;
  };
  const auto last = at::MemoryFormat::ChannelsLast;
  for (const at::Tensor& x : {image, image.contiguous(last)}) {
    for (const at::Tensor& w : {weight, weight.contiguous(last)}) {
      expectNatives("convolution", with({x, w, {}}));
      expectNatives("_convolution",
                    with({x, w, {}}, {false, false, true, true}));
      expectNatives(
          "convolution_backward",
          with({grad, x, w, Sizes{4}}, {std::vector<bool>{true, true, true}}));
    }
  }
  const at::Tensor volume = at::rand({2, 3, 4, 4, 4});
  const Sizes ones{1, 1, 1};
  expectNatives("convolution",
                {volume.contiguous(at::MemoryFormat::ChannelsLast3d),
                 at::rand({4, 3, 3, 3, 3}),
                 {},
                 ones,
                 ones,
                 ones,
                 false,
                 Sizes{0, 0, 0},
                 1});
}

// ---- shapes that depend on values ------------------------------------------

TEST_F(ShapeFunctionsTest, AllElementsCount) {
  for (const at::Tensor& x : matrices()) {
    expectNatives("nonzero", {x});
    expectNatives("masked_select", {x, mask({4, 6})});
    expectNatives("masked_select", {x, mask({6})});
    expectNatives("equal", {x, x});
  }
  expectNatives("nonzero", {at::ones({})});
  expectNatives("masked_select", {at::ones({4, 1}, at::kInt), mask({3})});
  EXPECT_EQ(shapes("equal", {at::ones({4}), at::ones({5})}), "False");
}

TEST_F(ShapeFunctionsTest, AllElementsDiffer) {
  const c10::IValue none;
  for (const at::Tensor& x : matrices()) {
    for (const bool inverse : {false, true}) {
      expectNatives("_unique", {x, true, inverse});
      for (const bool counts : {false, true}) {
        expectNatives("_unique2", {x, true, inverse, counts});
        expectNatives("unique_consecutive", {x, inverse, counts, none});
      }
    }
    expectNatives("unique_dim", {x, 0, true, true, true});
    expectNatives("unique_dim_consecutive", {x, 0, true, true});
    // As CUDA: the CPU's are there if asked for or not.
    EXPECT_EQ(shapes("unique_dim", {x, -1, true, false, true}),
              "Float [4, 6] by [6, 1], Long [0] by [1], Long [6] by [1]");
    EXPECT_EQ(shapes("unique_consecutive", {x, true, false, 1}),
              "Float [4, 6] by [6, 1], Long [6] by [1], Long [0] by [1]");
  }
}

TEST_F(ShapeFunctionsTest, CountsAndRepeats) {
  const c10::IValue none;
  const at::Tensor zeros = at::zeros({5}, at::kLong); // one bin
  for (const std::int64_t least : {0, 4}) {
    expectNatives("bincount", {zeros, none, least});
    expectNatives("bincount", {zeros.narrow(0, 0, 0), none, least});
    for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kLong}) {
      expectNatives("bincount", {zeros, at::ones({5}, type), least});
      expectNatives("bincount",
                    {zeros.narrow(0, 0, 0), at::ones({0}, type), least});
    }
  }
  expectNatives("repeat_interleave.Tensor", {zeros + 1, none});
  expectNatives("repeat_interleave.Tensor", {(zeros + 2).to(at::kInt), 10});
}

TEST_F(ShapeFunctionsTest, MasksAmongIndicesAreAllTrue) {
  const at::Tensor places = at::tensor({1, 2}, at::kLong);
  for (const at::Tensor& x : matrices()) {
    for (const Indices& each :
         {Indices{mask({4})}, Indices{mask({4, 6})},
          Indices{std::nullopt, mask({6})}, Indices{std::nullopt, places},
          Indices{places, places}}) {
      expectNatives("index.Tensor", {x, indices(each)});
      expectNatives("index_put", {x, indices(each), at::ones({}), false});
    }
    const Indices some{places, std::nullopt};
    expectNatives("_unsafe_index.Tensor", {x, indices(some)});
  }
}

// ---- values that are there, and that are not -------------------------------

TEST_F(ShapeFunctionsTest, WhatIsOnTheCpuHasValues) {
  backend::set_option("simulated_reads", "raise");
  const at::Tensor x = moved(at::ones({4, 6}), at::kMeta);
  const at::Tensor two = at::tensor({1, 0, 0, 1}).to(at::kBool);
  EXPECT_EQ(described(results("index.Tensor", {x, indices({two})})),
            "Float [2, 6] by [6, 1]");
  const at::Tensor lengths = at::tensor({4, 3, 1}, at::kLong);
  Stack native{at::ones({4, 3, 6}), lengths, false};
  const Stack packed = results("_pack_padded_sequence",
                               {moved(native[0], at::kMeta), lengths, false});
  op_named("aten::_pack_padded_sequence").callBoxed(native);
  EXPECT_EQ(described(packed), described(native));
  EXPECT_TRUE(packed[1].toTensor().equal(native[1].toTensor()));
}

TEST_F(ShapeFunctionsTest, GuessesAreRefusedWhereReadsAre) {
  backend::set_option("simulated_reads", "raise");
  const c10::IValue none;
  const at::Tensor x = at::ones({4, 6});
  const at::Tensor counts = at::ones({4}, at::kLong);
  const auto refuses = [](const std::string& op, const Stack& arguments) {
    try {
      shapes(op, arguments);
    } catch (const c10::Error& error) {
      const std::string said = error.what_without_backtrace();
      return said.starts_with("aten::" + op + ": it needs values");
    }
    return false;
  };
  EXPECT_TRUE(refuses("nonzero", {x}));
  EXPECT_TRUE(refuses("masked_select", {x, mask({6})}));
  EXPECT_TRUE(refuses("_unique2", {x, true, true, true}));
  EXPECT_TRUE(refuses("unique_dim", {x, 0, true, true, true}));
  EXPECT_TRUE(refuses("bincount", {counts, none, 0}));
  EXPECT_TRUE(refuses("equal", {x, x}));
  EXPECT_TRUE(refuses("index.Tensor", {x, indices({mask({4})})}));
  EXPECT_TRUE(refuses("repeat_interleave.Tensor", {counts, none}));
  // These sizes are known.
  EXPECT_FALSE(refuses("repeat_interleave.Tensor", {counts, 4}));
  EXPECT_FALSE(refuses("bincount", {counts.narrow(0, 0, 0), none, 3}));
  EXPECT_FALSE(refuses("index.Tensor", {x, indices({counts})}));
  EXPECT_FALSE(refuses("_aminmax", {x}));
}

// ---- cuDNN -----------------------------------------------------------------

// An LSTM of 3 inputs and 5 hidden, over 7 steps of 2 sequences.
TEST_F(ShapeFunctionsTest, ARecurrentLayerIsTimeByTime) {
  const std::vector<at::Tensor> weights{at::ones({20, 3}), at::ones({20, 5})};
  const at::Tensor state = at::ones({1, 2, 5});
  const auto layer = [&](at::IntArrayRef sizes, bool batch_first, bool train) {
    const c10::IValue none;
    return shapes("_cudnn_rnn",
                  {at::ones(sizes), weights, 2, none, state, state, 2, 5, 0, 1,
                   batch_first, 0.0, train, false, Sizes{}, none});
  };
  const std::string states =
      "Float [1, 2, 5] by [10, 5, 1], "
      "Float [1, 2, 5] by [10, 5, 1], ";
  // All weights are one piece, with biases; gates and outputs are kept.
  EXPECT_EQ(layer({7, 2, 3}, false, false),
            "Float [7, 2, 5] by [10, 5, 1], " + states +
                "Byte [0] by [1], Float [200] by [1]");
  EXPECT_EQ(layer({2, 7, 3}, true, true),
            "Float [2, 7, 5] by [5, 10, 1], " + states +
                "Byte [1400] by [1], Float [200] by [1]");
}

} // namespace
} // namespace chameleon::kernels::simulated
