// Runs of list ops: what is recorded, what goes together, and in which order
// it is executed.
#include "kernels/lists/list_run.h"

#include "backend/torch/stream.h"
#include "kernels/lists/list_ops.h"
#include "tests/cpp/kernels/device_fixture.h"

namespace chameleon::kernels {
namespace {

using torch::jit::Stack;

constexpr std::int64_t kElements = 4096; // of a tensor: 16 KiB
constexpr std::size_t kTensorBytes = 4 * kElements;

class ListRunTest : public DeviceTest {
 protected:
  // Chunks of two indices of one tensor each, or of one of two tensors.
  void SetUp() override { setBudget(8 * 2 * kTensorBytes); }

  // What an op needs to be recorded; lives as long as the process.
  static const OpTraits& traits(const std::string& name) {
    return *new OpTraits(op_named(name));
  }
  static bool add(ListRun& run, const OpTraits& traits, Stack& stack) {
    return run.add(traits, traits.handle, stack);
  }
  // In place, all with a scalar.
  static bool addScalar(ListRun& run, const std::string& name,
                        const std::vector<at::Tensor>& self, double scalar) {
    Stack stack{self, scalar};
    return add(run, traits(name), stack);
  }
  static std::vector<at::Tensor> four() { return list(4, {kElements}); }
};

TEST_F(ListRunTest, NothingRunsBeforeItIsExecuted) {
  const std::vector<at::Tensor> xs = four();
  ListRun run(device(), xs.size());
  const std::int64_t ops = pager().stats().ops;
  const auto version = xs[0]._version();
  ASSERT_TRUE(addScalar(run, "aten::_foreach_mul_.Scalar", xs, 3.0));
  EXPECT_EQ(run.opCount(), 1U);
  EXPECT_EQ(run.length(), 4U);
  EXPECT_EQ(pager().stats().ops, ops);
  for (const at::Tensor& x : xs) EXPECT_EQ(x._version(), version + 1);
  run.execute();
  for (std::size_t i = 0; i < xs.size(); ++i) {
    EXPECT_TRUE(holds(xs[i], 3.0 * static_cast<double>(i + 1))) << i;
    EXPECT_EQ(xs[i]._version(), version + 1) << i;
  }
}

// Two ops over four tensors are four calls: each chunk meets both ops before
// the next one is touched.
TEST_F(ListRunTest, RunsChunkByChunkThroughAllOps) {
  const std::vector<at::Tensor> xs = four();
  ListRun run(device(), xs.size());
  ASSERT_TRUE(addScalar(run, "aten::_foreach_add_.Scalar", xs, 1.0));
  ASSERT_TRUE(addScalar(run, "aten::_foreach_mul_.Scalar", xs, 2.0));
  const Calls calls = callsOf([&] { run.execute(); });
  const std::vector<std::uint64_t> first{identity(xs[0]), identity(xs[1])};
  const std::vector<std::uint64_t> second{identity(xs[2]), identity(xs[3])};
  EXPECT_EQ(calls, (std::vector{first, first, second, second}));
  for (std::size_t i = 0; i < xs.size(); ++i) {
    EXPECT_TRUE(holds(xs[i], 2.0 * static_cast<double>(i + 2))) << i;
  }
}

TEST_F(ListRunTest, ResultsAreThereAtOnceAndAreTheDevicesLater) {
  const std::vector<at::Tensor> xs = four();
  ListRun run(device(), xs.size());
  Stack stack{xs, 0.5};
  ASSERT_TRUE(add(run, traits("aten::_foreach_mul.Scalar"), stack));
  ASSERT_EQ(stack.size(), 1U);
  const std::vector<at::Tensor> made = stack.back().toTensorVector();
  stack.clear();
  ASSERT_EQ(made.size(), 4U);
  EXPECT_EQ(pager().stats().logical_bytes, 8 * std::int64_t{kTensorBytes});
  for (const at::Tensor& each : made) {
    EXPECT_EQ(each.sizes(), at::IntArrayRef(kElements));
    EXPECT_EQ(each.device(), chameleon());
    EXPECT_EQ(block(each), nullptr);
  }
  run.execute();
  EXPECT_EQ(pager().stats().logical_bytes, 8 * std::int64_t{kTensorBytes});
  for (std::size_t i = 0; i < made.size(); ++i) {
    EXPECT_NE(block(made[i]), nullptr);
    EXPECT_TRUE(holds(made[i], 0.5 * static_cast<double>(i + 1))) << i;
    EXPECT_TRUE(holds(xs[i], static_cast<double>(i + 1))) << i;
  }
}

TEST_F(ListRunTest, ALaterOpReadsWhatAnEarlierOneMakes) {
  const std::vector<at::Tensor> xs = four();
  ListRun run(device(), xs.size());
  Stack stack{xs, 0.5};
  ASSERT_TRUE(add(run, traits("aten::_foreach_mul.Scalar"), stack));
  std::vector<at::Tensor> halves = stack.back().toTensorVector();
  stack.assign({xs, halves, 2.0}); // xs += 2 * halves
  ASSERT_TRUE(add(run, traits("aten::_foreach_add_.List"), stack));
  stack.clear();
  halves.clear(); // nobody holds them but the run
  EXPECT_EQ(pager().stats().logical_bytes, 8 * std::int64_t{kTensorBytes});
  run.execute();
  // Each was freed behind the last op that uses its chunk.
  EXPECT_EQ(pager().stats().logical_bytes, 4 * std::int64_t{kTensorBytes});
  for (std::size_t i = 0; i < xs.size(); ++i) {
    EXPECT_TRUE(holds(xs[i], 2.0 * static_cast<double>(i + 1))) << i;
  }
}

TEST_F(ListRunTest, ScalarsOfEachIndexGoWithTheirChunk) {
  const std::vector<at::Tensor> xs = four();
  ListRun run(device(), xs.size());
  c10::List<at::Scalar> scalars({1, 10, 100, 1000});
  Stack stack{xs, c10::IValue(scalars)};
  ASSERT_TRUE(add(run, traits("aten::_foreach_add_.ScalarList"), stack));
  run.execute();
  const std::vector<double> expected{2, 12, 103, 1004};
  for (std::size_t i = 0; i < xs.size(); ++i) {
    EXPECT_TRUE(holds(xs[i], expected[i])) << i;
  }
}

// ---- what does not go together ---------------------------------------------

TEST_F(ListRunTest, AStorageOfTwoIndicesIsRefusedAndNothingHappened) {
  const std::vector<at::Tensor> xs = four();
  const std::vector<at::Tensor> turned{xs[1], xs[2], xs[3], xs[0]};
  ListRun run(device(), xs.size());
  ASSERT_TRUE(addScalar(run, "aten::_foreach_mul_.Scalar", xs, 3.0));
  const auto version = xs[0]._version();
  Stack stack{xs, turned, 1.0};
  EXPECT_FALSE(add(run, traits("aten::_foreach_add_.List"), stack));
  EXPECT_EQ(stack.size(), 3U);
  const std::vector<at::Tensor> ys = four();
  stack = {ys, turned, 1.0};
  EXPECT_FALSE(add(run, traits("aten::_foreach_add_.List"), stack));
  stack.clear();
  for (const at::Tensor& y : ys) EXPECT_EQ(y.storage().use_count(), 1U);
  EXPECT_EQ(run.opCount(), 1U);
  for (const at::Tensor& x : xs) EXPECT_EQ(x._version(), version);
  run.execute();
  for (std::size_t i = 0; i < xs.size(); ++i) {
    EXPECT_TRUE(holds(xs[i], 3.0 * static_cast<double>(i + 1))) << i;
  }
}

TEST_F(ListRunTest, AnotherViewOfAStorageIsRefused) {
  const std::vector<at::Tensor> xs = four();
  std::vector<at::Tensor> views;
  for (const at::Tensor& x : xs) views.push_back(x.view({2, kElements / 2}));
  ListRun run(device(), xs.size());
  ASSERT_TRUE(addScalar(run, "aten::_foreach_mul_.Scalar", xs, 3.0));
  EXPECT_FALSE(addScalar(run, "aten::_foreach_mul_.Scalar", views, 3.0));
  EXPECT_EQ(run.opCount(), 1U);
}

TEST_F(ListRunTest, OneTensorForAllIndicesIsReadOnly) {
  const std::vector<at::Tensor> xs = four();
  const at::Tensor factor = filled({}, 2.0);
  {
    ListRun run(device(), xs.size());
    Stack stack{xs, factor};
    ASSERT_TRUE(add(run, traits("aten::_foreach_mul_.Tensor"), stack));
    run.execute();
  }
  EXPECT_TRUE(holds(xs[3], 8.0));
  // Index 0 is the factor of all: they would see it change.
  std::vector<at::Tensor> with_it = list(4, {});
  ListRun run(device(), with_it.size());
  Stack stack{with_it, with_it[0]};
  EXPECT_FALSE(add(run, traits("aten::_foreach_mul_.Tensor"), stack));
}

TEST_F(ListRunTest, BelongsToAStream) {
  const ListRun run(device(), 4);
  EXPECT_TRUE(run.isOnStreamOfThread());
  const c10::Stream before =
      backend::exchange_stream(backend::new_stream(device().index));
  EXPECT_FALSE(run.isOnStreamOfThread());
  backend::exchange_stream(before);
  EXPECT_TRUE(run.isOnStreamOfThread());
}

// Two tensors of one index need half the budget; a user's pins leave room for
// one index, not for a chunk.
TEST_F(ListRunTest, WhereMemoryIsShortItTakesFewerIndicesAtATime) {
  setBudget(16 * kTensorBytes);
  const std::vector<at::Tensor> xs = four();
  const at::Tensor ballast = filled({13 * kElements}, 1);
  memory::Call held;
  const memory::Operand operand{block(ballast), memory::Access::kRead};
  ASSERT_TRUE(pager()
                  .begin(held, backend::current_stream(0), {&operand, 1},
                         nullptr, "a test", true)
                  .ok());
  pager().keepPins(held);
  ListRun run(device(), xs.size());
  ASSERT_TRUE(addScalar(run, "aten::_foreach_mul_.Scalar", xs, 3.0));
  run.execute();
  pager().end(held);
  EXPECT_FALSE(run.isBroken());
  for (std::size_t i = 0; i < xs.size(); ++i) {
    EXPECT_TRUE(holds(xs[i], 3.0 * static_cast<double>(i + 1))) << i;
  }
}

} // namespace
} // namespace chameleon::kernels
