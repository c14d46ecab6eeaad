// List ops in chunks: which calls are cut, where, and that nobody can tell by
// the results.
#include "kernels/lists/list_ops.h"

#include "tests/cpp/kernels/device_fixture.h"

namespace chameleon::kernels {
namespace {

using torch::jit::Stack;
using Tensors = std::vector<at::Tensor>;

constexpr std::int64_t kElements = 4096; // of a tensor: 16 KiB
constexpr std::size_t kTensorBytes = 4 * kElements;

class ListOpsTest : public DeviceTest {
 protected:
  // A chunk is of two tensors, and more than one has left HBM.
  void SetUp() override {
    setBudget(8 * 2 * kTensorBytes);
    away_ = filled({3 * kElements}, 0);
    ASSERT_FALSE(pager().evict(*block(away_)));
  }
  void TearDown() override { away_.reset(); }

  static bool run(const std::string& name, Stack& stack) {
    const OpTraits traits(op_named("aten::" + name));
    return run_in_chunks(traits, traits.handle, stack);
  }
  // The result of an op, which must have run in chunks, ...
  static Stack chunked(const std::string& name, Stack stack) {
    EXPECT_TRUE(run(name, stack)) << name;
    return stack;
  }
  // ... and of native's, on copies.
  static Stack native(const std::string& name, Stack stack) {
    op_named("aten::" + name).callBoxed(stack);
    return stack;
  }
  static Tensors cpu(const Tensors& tensors) {
    Tensors copies;
    for (const at::Tensor& each : tensors) copies.push_back(each.cpu());
    return copies;
  }
  static void expectEqual(const Tensors& ours, const Tensors& natives) {
    ASSERT_EQ(ours.size(), natives.size());
    for (std::size_t i = 0; i < ours.size(); ++i) {
      EXPECT_EQ(ours[i].device(), chameleon()) << i;
      EXPECT_TRUE(ours[i].cpu().equal(natives[i])) << i;
    }
  }
  // No two elements are the same.
  static Tensors various(std::size_t count, double first = 1) {
    Tensors tensors;
    for (std::size_t i = 0; i < count; ++i) {
      const double start = first + static_cast<double>(i);
      tensors.push_back(
          at::linspace(start, start + 0.5, kElements).to(chameleon()));
    }
    return tensors;
  }
  // Nothing ran: a stack is as it was, and so is the pager.
  static void expectRefused(const std::string& name, Stack stack) {
    const Stack before = stack;
    const std::int64_t ops = pager().stats().ops;
    EXPECT_FALSE(run(name, stack)) << name;
    EXPECT_EQ(pager().stats().ops, ops) << name;
    ASSERT_EQ(stack.size(), before.size());
    for (std::size_t i = 0; i < stack.size(); ++i) {
      EXPECT_TRUE(stack[i].is(before[i])) << name << ", " << i;
    }
  }

  at::Tensor away_;
};

// ---- chunks ----------------------------------------------------------------

TEST_F(ListOpsTest, AChunkIsAnEighthOfTheBudget) {
  EXPECT_EQ(chunk_bytes_of(device()), 2 * kTensorBytes);
  setBudget(16 * kMiB);
  EXPECT_EQ(chunk_bytes_of(device()), 2 * kMiB);
}

TEST_F(ListOpsTest, WhereAllFitsNothingIsCut) {
  EXPECT_TRUE(is_short(pager(), 0));
  away_.add_(1); // it is back
  EXPECT_FALSE(is_short(pager(), 0));
  const Tensors xs = list(5, {kElements});
  const std::size_t left_bytes =
      pager().hbmBudget() - pager().levels().logical_rounded_bytes;
  EXPECT_FALSE(is_short(pager(), left_bytes));
  EXPECT_TRUE(is_short(pager(), left_bytes + 1));
  expectRefused("_foreach_mul_.Scalar", {xs, 2.0});
  expectRefused("_foreach_mul.Scalar", {xs, 2.0});
  const Tensors more = list(4, {kElements});
  expectRefused("_foreach_mul_.Scalar", {xs, 2.0});
  chunked("_foreach_mul.Scalar", {xs, 2.0}); // what it makes has no room
}

TEST_F(ListOpsTest, ResultsTakeWhatTheFirstListTakes) {
  const Tensors xs{filled({1}, 1), filled({kElements}, 2)};
  const auto bytes = [](const std::string& name, const Stack& stack) {
    return result_bytes(OpTraits(op_named("aten::" + name)), stack);
  };
  EXPECT_EQ(bytes("_foreach_mul.Scalar", {xs, 2.0}), 512 + kTensorBytes);
  EXPECT_EQ(bytes("_foreach_mul_.Scalar", {xs, 2.0}), 0U);
}

TEST_F(ListOpsTest, SlicesAreListsOfTheSameType) {
  const Tensors xs = list(4, {1});
  const c10::IValue tensors = slice_of(xs, 1, 3);
  ASSERT_TRUE(tensors.isTensorList());
  EXPECT_EQ(tensors.toTensorVector().size(), 2U);
  EXPECT_TRUE(tensors.toTensorVector()[0].is_same(xs[1]));
  EXPECT_TRUE(tensors.toTensorVector()[1].is_same(xs[2]));

  const c10::IValue scalars =
      slice_of(c10::List<at::Scalar>({1, 2.5, true}), 1, 3);
  EXPECT_EQ(scalars.toList().elementType(), c10::NumberType::get());
  EXPECT_EQ(scalars.toListRef()[0].toDouble(), 2.5);
  EXPECT_TRUE(scalars.toListRef()[1].toBool());

  const c10::List<std::optional<at::Tensor>> optionals({std::nullopt, xs[0]});
  const c10::IValue some = slice_of(optionals, 0, 2);
  ASSERT_TRUE(some.isOptionalTensorList());
  EXPECT_TRUE(some.toListRef()[0].isNone());
  EXPECT_TRUE(some.toListRef()[1].toTensor().is_same(xs[0]));

  const c10::IValue none = slice_of(xs, 2, 2);
  EXPECT_TRUE(none.isTensorList());
  EXPECT_TRUE(none.toListRef().empty());
}

// ---- what runs as it is ----------------------------------------------------

TEST_F(ListOpsTest, WhatFitsIntoOneChunkIsNotCut) {
  const Tensors xs = list(2, {kElements});
  expectRefused("_foreach_mul_.Scalar", {xs, 2.0});
  expectRefused("_foreach_mul_.Scalar", {Tensors(), 2.0});
  // All lists count: one tensor each is the most.
  const Tensors one{xs[0]};
  expectRefused("_foreach_add_.List", {one, Tensors{xs[1]}, 1.0});
}

TEST_F(ListOpsTest, OneElementCannotBeCut) {
  expectRefused("_foreach_mul_.Scalar", {list(1, {4 * kElements}), 2.0});
}

TEST_F(ListOpsTest, ListsThatDoNotMatchAreNatives) {
  const Tensors xs = list(4, {kElements});
  expectRefused("_foreach_add_.List", {xs, list(3, {kElements}), 1.0});
  expectRefused("_foreach_mul_.ScalarList",
                {xs, c10::IValue(c10::List<at::Scalar>({1, 2, 3}))});
  const Tensors fives = list(5, {kElements});
  for (const std::int64_t count : {4, 6}) {
    expectRefused("_foreach_addcdiv_.Tensor",
                  {fives, fives, fives, at::ones({count})});
  }
  expectRefused("_foreach_addcdiv_.Tensor",
                {fives, fives, fives, at::ones({})});
  // The last would have to grow; the others would have been written by then.
  Tensors ys = list(4, {kElements});
  ys.back() = filled({2, kElements}, 1);
  expectRefused("_foreach_add_.List", {xs, ys, 1.0});
  for (std::size_t i = 0; i < xs.size(); ++i) {
    EXPECT_TRUE(holds(xs[i], static_cast<double>(i + 1))) << i;
  }
}

// ---- what is cut -----------------------------------------------------------

TEST_F(ListOpsTest, AChunkHasAsManyElementsAsFit) {
  const Tensors xs = list(5, {kElements});
  const Calls calls =
      callsOf([&] { chunked("_foreach_mul_.Scalar", {xs, 3.0}); });
  EXPECT_EQ(calls, (Calls{{identity(xs[0]), identity(xs[1])},
                          {identity(xs[2]), identity(xs[3])},
                          {identity(xs[4])}}));
  for (std::size_t i = 0; i < xs.size(); ++i) {
    EXPECT_TRUE(holds(xs[i], 3.0 * static_cast<double>(i + 1))) << i;
  }
}

TEST_F(ListOpsTest, AllListsCount) {
  const Tensors xs = list(2, {kElements});
  const Tensors ys = list(2, {kElements}, 10);
  const Calls calls =
      callsOf([&] { chunked("_foreach_add_.List", {xs, ys, 1.0}); });
  EXPECT_EQ(calls, (Calls{{identity(xs[0]), identity(ys[0])},
                          {identity(xs[1]), identity(ys[1])}}));
}

TEST_F(ListOpsTest, AnElementLargerThanAChunkIsOne) {
  const at::Tensor large = filled({4 * kElements}, 1);
  const Tensors xs{filled({8}, 1), large, filled({8}, 2), filled({8}, 3)};
  const Calls calls =
      callsOf([&] { chunked("_foreach_mul_.Scalar", {xs, 3.0}); });
  EXPECT_EQ(calls, (Calls{{identity(xs[0])},
                          {identity(xs[1])},
                          {identity(xs[2]), identity(xs[3])}}));
}

TEST_F(ListOpsTest, InPlaceEachElementIsWrittenOnce) {
  const Tensors xs = list(5, {kElements});
  const auto version = xs[0]._version();
  const Stack stack = chunked("_foreach_add_.Scalar", {7, xs, 1.0});
  ASSERT_EQ(stack.size(), 1U); // what was below stays
  EXPECT_EQ(stack[0].toInt(), 7);
  for (const at::Tensor& x : xs) EXPECT_EQ(x._version(), version + 1);
}

// ---- results ---------------------------------------------------------------

TEST_F(ListOpsTest, ResultsAreNativesInOrder) {
  const Tensors xs = various(5);
  const Stack roots = chunked("_foreach_sqrt", {xs});
  ASSERT_EQ(roots.size(), 1U);
  expectEqual(roots[0].toTensorVector(),
              native("_foreach_sqrt", {cpu(xs)})[0].toTensorVector());

  const Stack norms = chunked("_foreach_norm.Scalar", {xs, 2, c10::IValue()});
  expectEqual(norms[0].toTensorVector(),
              native("_foreach_norm.Scalar", {cpu(xs), 2, c10::IValue()})[0]
                  .toTensorVector());
}

TEST_F(ListOpsTest, ScalarsGoWithTheirElements) {
  const Tensors xs = various(5);
  const Tensors ys = various(5, 10);
  const c10::IValue scalars(c10::List<at::Scalar>({1, 2, 3.5, 4, 5}));
  const Stack ours =
      chunked("_foreach_addcmul.ScalarList", {xs, ys, xs, scalars});
  const Stack natives = native("_foreach_addcmul.ScalarList",
                               {cpu(xs), cpu(ys), cpu(xs), scalars});
  expectEqual(ours[0].toTensorVector(), natives[0].toTensorVector());
}

TEST_F(ListOpsTest, ATensorOfScalarsIsCutToo) {
  const Tensors xs = various(5);
  const Tensors natives = cpu(xs);
  const at::Tensor scalars = at::arange(1, 6, at::kFloat);
  chunked("_foreach_addcdiv_.Tensor", {xs, various(5, 10), xs, scalars});
  native("_foreach_addcdiv_.Tensor",
         {natives, cpu(various(5, 10)), natives, scalars});
  expectEqual(xs, natives);
}

TEST_F(ListOpsTest, AnEmptyListBesideOthersStaysEmpty) {
  const std::vector<Tensors> ours{various(5), various(5, 10), various(5, 20),
                                  various(5, 30), list(5, {})};
  std::vector<Tensors> natives;
  for (const Tensors& each : ours) natives.push_back(cpu(each));
  // params, gradients, two averages, no maxima, steps
  const auto arguments = [](const std::vector<Tensors>& lists) {
    return Stack{lists[0], lists[1], lists[2], lists[3], Tensors(),
                 lists[4], 0.1,      0.9,      0.99,     0.01,
                 1e-8,     false,    false,    {},       {}};
  };
  chunked("_fused_adam_", arguments(ours));
  native("_fused_adam_", arguments(natives));
  for (std::size_t i = 0; i < ours.size(); ++i) {
    expectEqual(ours[i], natives[i]);
  }
}

// ---- several devices -------------------------------------------------------

TEST_F(ListOpsTest, ElementsOnSeveralDevicesRunWhereTheyAre) {
  away_.add_(1); // HBM is not short: nothing is deferred
  const Tensors xs{filled({3}, 1), at::full({3}, 2), filled({3}, 3)};
  const Tensors made =
      chunked("_foreach_mul.Scalar", {xs, 2.0})[0].toTensorVector();
  ASSERT_EQ(made.size(), 3U);
  for (std::size_t i = 0; i < xs.size(); ++i) {
    EXPECT_EQ(made[i].device(), xs[i].device());
    EXPECT_TRUE(holds(made[i], 2.0 * static_cast<double>(i + 1))) << i;
  }
}

TEST_F(ListOpsTest, CopiesMayGoBetweenDevices) {
  const Tensors to{filled({3}, 0), at::zeros({3}), at::zeros({3})};
  const Tensors from{at::full({3}, 1), filled({3}, 2), at::full({3}, 3)};
  EXPECT_TRUE(chunked("_foreach_copy_", {to, from, false}).empty());
  for (std::size_t i = 0; i < to.size(); ++i) {
    EXPECT_TRUE(holds(to[i], static_cast<double>(i + 1))) << i;
  }
  expectRefused("_foreach_copy_", {to, Tensors{from[0]}, false});
  expectRefused("_foreach_mul_.List", {to, Tensors{from[0], from[1]}});
}

TEST_F(ListOpsTest, OpsThatAreNotForeachStayOnOneDevice) {
  const at::Tensor found = filled({1}, 0);
  expectRefused(
      "_amp_foreach_non_finite_check_and_unscale_",
      {Tensors{filled({3}, 1), at::ones({3})}, found, filled({1}, 2)});
}

} // namespace
} // namespace chameleon::kernels
