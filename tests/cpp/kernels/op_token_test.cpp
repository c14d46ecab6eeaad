// Tokens of op calls: what of an operand changes them, and what does not.
#include "kernels/op_token.h"

#include <gtest/gtest.h>
#include <set>
#include <vector>

#include <ATen/ATen.h>

namespace chameleon::kernels {
namespace {

using Tensors = std::vector<at::Tensor>;

template <typename Hasher>
auto hash(const Tensors& operands, std::uint64_t op) {
  Hasher hasher(op);
  for (const at::Tensor& operand : operands) {
    add_to_token(hasher, *operand.unsafeGetTensorImpl());
  }
  return hasher.token();
}
profiler::Token token(const Tensors& operands, std::uint64_t op = 7) {
  return hash<profiler::TokenHasher>(operands, op);
}
profiler::QuickToken quick(const Tensors& operands, std::uint64_t op = 7) {
  return hash<profiler::QuickHasher>(operands, op);
}

// How many different tokens calls with one of these each have.
std::size_t different(const Tensors& tensors) {
  std::set<profiler::Token> tokens;
  for (const at::Tensor& each : tensors) tokens.insert(token({each}));
  return tokens.size();
}
std::size_t quickly_different(const Tensors& tensors) {
  std::set<profiler::QuickToken> tokens;
  for (const at::Tensor& each : tensors) tokens.insert(quick({each}));
  return tokens.size();
}

at::Tensor nested(const Tensors& pieces) {
  return at::_nested_tensor_from_tensor_list(pieces);
}

// ---- what counts -----------------------------------------------------------

TEST(OpToken, RankAndSizesCount) {
  const Tensors tensors{at::ones({}),     at::ones({1}),       at::ones({1, 1}),
                        at::ones({6}),    at::ones({2, 3}),    at::ones({3, 2}),
                        at::ones({1, 6}), at::ones({6, 1}),    at::ones({0}),
                        at::ones({0, 3}), at::ones({2, 3, 1}), at::ones({7})};
  EXPECT_EQ(different(tensors), tensors.size());
}

TEST(OpToken, DtypesCount) {
  Tensors tensors;
  for (const at::ScalarType type :
       {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kLong, at::kInt,
        at::kByte, at::kChar, at::kBool, at::kComplexFloat}) {
    tensors.push_back(at::ones({2, 3}, type));
  }
  EXPECT_EQ(different(tensors), tensors.size());
}

TEST(OpToken, StridesCountWhereItIsNotContiguous) {
  const at::Tensor base = at::ones({64});
  const Tensors tensors{
      at::ones({4, 4}),                 // contiguous
      at::ones({4, 4}).t(),             // turned
      base.as_strided({4, 4}, {8, 1}),  // rows of a wider one
      base.as_strided({4, 4}, {16, 1}), // of one that is wider still
      base.as_strided({4, 4}, {8, 2}),  // every other column
      at::ones({4, 1}).expand({4, 4}),
      at::ones({1, 4}).expand({4, 4}),
      at::ones({1, 1}).expand({4, 4}),
  };
  EXPECT_EQ(different(tensors), tensors.size());

  const at::Tensor image = at::ones({2, 3, 4, 5});
  EXPECT_NE(token({image}),
            token({image.contiguous(at::MemoryFormat::ChannelsLast)}));
}

TEST(OpToken, TheOpCounts) {
  const Tensors operands{at::ones({2, 3})};
  EXPECT_NE(token(operands, 7), token(operands, 8));
  EXPECT_NE(quick(operands, 7), quick(operands, 8));
  EXPECT_NE(token({}, 7), token({}, 8));
}

TEST(OpToken, OrderAndNumberOfOperandsCount) {
  const at::Tensor a = at::ones({2, 3});
  const at::Tensor b = at::ones({4});
  EXPECT_NE(token({a, b}), token({b, a}));
  EXPECT_NE(token({a}), token({a, a}));
  EXPECT_NE(token({}), token({a}));
  EXPECT_NE(token({a, b, b}), token({a, a, b}));
  // The same sizes one after the other, but of other tensors.
  EXPECT_NE(token({a, b}), token({at::ones({2}), at::ones({3, 4})}));
  // A size that is the word for "a contiguous tensor of floats without sizes".
  const std::int64_t word = 1 << 8 | static_cast<int>(at::kFloat);
  EXPECT_NE(token({at::ones({2, word})}), token({at::ones({2}), at::ones({})}));
}

// ---- what does not ---------------------------------------------------------

TEST(OpToken, ValuesAndAddressesDoNotCount) {
  const at::Tensor a = at::zeros({2, 3});
  const at::Tensor b = at::ones({2, 3});
  EXPECT_EQ(token({a}), token({b}));
  EXPECT_EQ(token({a, b}), token({b, a}));
  EXPECT_EQ(token({a, a}), token({a, b}));
}

TEST(OpToken, AStorageOffsetDoesNotCount) {
  const at::Tensor base = at::ones({64});
  EXPECT_EQ(token({base.narrow(0, 4, 6)}), token({at::ones({6})}));
  EXPECT_EQ(token({base.as_strided({4, 4}, {8, 1}, 0)}),
            token({base.as_strided({4, 4}, {8, 1}, 3)}));
}

TEST(OpToken, StridesOfContiguousTensorsDoNotCount) {
  const at::Tensor base = at::ones({64});
  // Nobody goes along a dimension of one element, or of none.
  EXPECT_EQ(token({base.as_strided({1, 3}, {50, 1})}),
            token({at::ones({1, 3})}));
  EXPECT_EQ(token({base.as_strided({3, 1}, {1, 50})}),
            token({at::ones({3, 1})}));
  EXPECT_EQ(token({base.as_strided({0, 3}, {1, 9})}),
            token({at::ones({0, 3})}));
}

TEST(OpToken, AutogradAndLazyBitsDoNotCount) {
  const at::Tensor a = at::ones({2, 3});
  EXPECT_EQ(token({a}), token({at::ones({2, 3}).requires_grad_()}));
  EXPECT_EQ(token({a}), token({at::_neg_view(a)}));
}

// ---- nested tensors --------------------------------------------------------

TEST(OpToken, OfANestedTensorItsElementsAreCounted) {
  const at::Tensor a = nested({at::ones({2, 3}), at::ones({4, 3})});
  ASSERT_TRUE(is_nested(*a.unsafeGetTensorImpl()));
  EXPECT_EQ(a.numel(), 18);
  EXPECT_EQ(token({a}), token({nested({at::ones({3, 3}), at::ones({3, 3})})}));
  EXPECT_EQ(token({a}), token({nested({at::ones({18})})}));
  EXPECT_EQ(token({a}),
            token({nested({at::ones({9, 2}, at::kDouble)})})); // not its dtype
  EXPECT_NE(token({a}), token({nested({at::ones({2, 3}), at::ones({3, 3})})}));
  EXPECT_NE(token({a}), token({at::ones({18})}));
  EXPECT_EQ(quick({a}), quick({at::ones({18})}));
}

// ---- the quick half --------------------------------------------------------

TEST(OpToken, TheQuickHalfCountsElementsAndNothingElse) {
  const at::Tensor base = at::ones({64});
  EXPECT_EQ(
      quickly_different({at::ones({6}), at::ones({2, 3}), at::ones({3, 2}).t(),
                         at::ones({6, 1, 1}), at::ones({6}, at::kByte),
                         base.as_strided({2, 3}, {8, 2}, 5),
                         at::ones({1}).expand({6})}),
      1U);
  EXPECT_EQ(quickly_different({at::ones({0}), at::ones({1}), at::ones({2}),
                               at::ones({6}), at::ones({7}),
                               at::ones({1}).expand({1LL << 40})}),
            6U);
}

TEST(OpToken, TheQuickHalfKnowsTheOrder) {
  const at::Tensor a = at::ones({2, 3});
  const at::Tensor b = at::ones({4});
  EXPECT_NE(quick({a, b}), quick({b, a}));
  EXPECT_NE(quick({a}), quick({a, a}));
  EXPECT_EQ(quick({a, b}), quick({at::ones({6}), at::ones({2, 2})}));
}

} // namespace
} // namespace chameleon::kernels
