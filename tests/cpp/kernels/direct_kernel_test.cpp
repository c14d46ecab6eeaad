// Direct kernels: which calls they take, what the native kernel gets, and what
// becomes of its results. The ops are the test's own: their kernels for the CPU
// say what they saw.
#include "kernels/direct_kernel.h"

#include <stdexcept>

#include <torch/library.h>

#include "tests/cpp/kernels/device_fixture.h"
#include "tests/cpp/kernels/schema_ops.h"

namespace chameleon::kernels {
namespace {

// What the native kernel saw, the latest call.
struct Seen {
  int calls = 0;
  std::vector<at::Tensor> kept;     // what it was told to keep
  std::vector<const void*> tensors; // by identity, in order
  std::vector<c10::Device> devices;
  std::vector<double> firsts; // first elements
  std::int64_t number = 0;
};
Seen seen;
bool keep = false;
int failures = 0; // so many calls raise
int hungry = 0;   // so many calls need more memory than there is

void see(const at::Tensor& tensor) {
  seen.tensors.push_back(tensor.unsafeGetTensorImpl());
  seen.devices.push_back(tensor.device());
  seen.firsts.push_back(
      tensor.numel() > 0 ? static_cast<double>(*tensor.const_data_ptr<float>())
                         : 0);
  if (keep) seen.kept.push_back(tensor);
}

void begin_to_see() {
  const int calls = seen.calls + 1;
  seen = {};
  seen.calls = calls;
  if (failures > 0) {
    --failures;
    throw std::runtime_error("the kernel failed");
  }
  if (hungry > 0) {
    --hungry;
    at::empty({64 * kMiB}, at::kByte); // takes it from the device
  }
}

at::Tensor mixed(const at::Tensor& a, const std::optional<at::Tensor>& b,
                 std::int64_t c) {
  begin_to_see();
  see(a);
  if (b) see(*b);
  seen.number = c;
  return a + c;
}

at::Tensor lists(at::TensorList a, at::TensorList b, const at::Tensor& c) {
  begin_to_see();
  for (const at::Tensor& each : a) see(each);
  for (const at::Tensor& each : b) see(each);
  see(c);
  return c + 1;
}

at::Tensor& in_place(at::Tensor& a, const at::Tensor& b) {
  begin_to_see();
  see(a);
  see(b);
  return a.add_(b);
}

at::Tensor same(const at::Tensor& a) {
  begin_to_see();
  return a.view({-1});
}

// Each test has the same ops.
c10::OperatorHandle define_once(const std::string& name,
                                std::string_view schema) {
  const auto known = c10::Dispatcher::singleton().findSchema({name, ""});
  return known ? *known : define(name, schema);
}

// A direct kernel of one of these, and how often it handed a call on.
template <typename Signature>
class Direct;

template <typename Return, typename... Arguments>
class Direct<Return(Arguments...)> {
 public:
  using Signature = Return(Arguments...);

  Direct(const std::string& name, std::string_view schema, Signature* kernel)
      : op_(define_once(name, schema)),
        traits_(op_),
        library_(torch::Library::IMPL, name.substr(0, name.find(':')),
                 c10::DispatchKey::CPU, __FILE__, __LINE__) {
    library_.impl(name.c_str(), kernel);
    auto functor = std::make_unique<General>(&handed_on);
    kernel_.emplace(op_, &traits_,
                    c10::BoxedKernel::makeFromFunctor(std::move(functor)));
  }
  Return operator()(Arguments... arguments) const {
    return (*kernel_)(std::forward<Arguments>(arguments)...);
  }

  int handed_on = 0;

 private:
  // The general way: leaves something to be told by.
  struct General final : c10::OperatorKernel {
    explicit General(int* calls) : calls_(calls) {}
    void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet,
                    torch::jit::Stack* stack) {
      ++*calls_;
      c10::IValue result = at::scalar_tensor(-1);
      if (op.schema().arguments()[0].alias_info() != nullptr) {
        result = stack->front();
      }
      stack->assign({result});
    }
    int* calls_;
  };

  c10::OperatorHandle op_;
  OpTraits traits_;
  torch::Library library_;
  std::optional<DirectKernel<Signature>> kernel_;
};

class DirectKernelTest : public DeviceTest {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    seen = {};
    keep = false;
    failures = 0;
    hungry = 0;
  }
  void TearDown() override {
    seen = {};
    EXPECT_EQ(pager().stats().pinned_bytes, 0);
    DeviceTest::TearDown();
  }

  Direct<at::Tensor(const at::Tensor&, const std::optional<at::Tensor>&,
                    std::int64_t)>
      mixed_{"direct_test::mixed", "(Tensor a, Tensor? b, int c) -> Tensor",
             &mixed};
  Direct<at::Tensor(at::TensorList, at::TensorList, const at::Tensor&)> lists_{
      "direct_test::lists", "(Tensor[] a, Tensor[] b, Tensor c) -> Tensor",
      &lists};
  Direct<at::Tensor&(at::Tensor&, const at::Tensor&)> in_place_{
      "direct_test::in_place_", "(Tensor(a!) a, Tensor b) -> Tensor(a!)",
      &in_place};
  Direct<at::Tensor(const at::Tensor&)> same_{"direct_test::same",
                                              "(Tensor a) -> Tensor", &same};
};

// ---- arguments -------------------------------------------------------------

TEST_F(DirectKernelTest, TensorsBecomeNativeOnesAndTheRestStays) {
  const at::Tensor a = filled({3, 4}, 2);
  const at::Tensor b = filled({5}, 7);
  const at::Tensor made = mixed_(a, b, 40);
  EXPECT_EQ(mixed_.handed_on, 0);
  EXPECT_EQ(seen.devices, std::vector(2, c10::Device(at::kCPU)));
  EXPECT_EQ(seen.firsts, (std::vector<double>{2, 7}));
  EXPECT_EQ(seen.number, 40);
  EXPECT_EQ(made.device(), chameleon());
  EXPECT_NE(block(made), nullptr);
  EXPECT_TRUE(holds(made, 42));
}

TEST_F(DirectKernelTest, OptionalTensorsMayBeMissing) {
  const at::Tensor a = filled({3}, 2);
  EXPECT_TRUE(holds(mixed_(a, std::nullopt, 1), 3));
  EXPECT_EQ(seen.tensors.size(), 1U);
  EXPECT_EQ(mixed_.handed_on, 0);
}

TEST_F(DirectKernelTest, ScalarsStayOnTheCpuAndVectorsAreNotTaken) {
  const at::Tensor a = filled({3}, 2);
  const at::Tensor scalar = at::scalar_tensor(9);
  EXPECT_TRUE(holds(mixed_(a, scalar, 1), 3));
  EXPECT_EQ(seen.tensors.at(1), scalar.unsafeGetTensorImpl());
  EXPECT_EQ(mixed_.handed_on, 0);
  mixed_(a, at::ones({2}), 1);
  EXPECT_EQ(mixed_.handed_on, 1);
  EXPECT_EQ(seen.calls, 1);
}

TEST_F(DirectKernelTest, OneTensorTwiceIsOneNativeTensor) {
  const at::Tensor a = filled({3}, 2);
  mixed_(a, a, 1);
  EXPECT_EQ(mixed_.handed_on, 0);
  EXPECT_EQ(seen.tensors.at(0), seen.tensors.at(1));
}

TEST_F(DirectKernelTest, WhatIsSpecialGoesTheGeneralWay) {
  const at::Tensor a = filled({4}, 2);
  mixed_(a, a.view({2, 2}), 1); // two tensors on one storage
  EXPECT_EQ(mixed_.handed_on, 1);
  mixed_(filled({0}, 1), std::nullopt, 1); // no bytes
  EXPECT_EQ(mixed_.handed_on, 2);
  mixed_(at::_neg_view(a), std::nullopt, 1); // a lazy bit
  EXPECT_EQ(mixed_.handed_on, 3);
  mixed_(at::ones({1}), std::nullopt, 1); // nothing of ours
  EXPECT_EQ(mixed_.handed_on, 4);
  EXPECT_EQ(seen.calls, 0);
}

// ---- lists -----------------------------------------------------------------

// 32 collected tensors are looked through one by one, more are hashed.
TEST_F(DirectKernelTest, ListsOnBothSidesOfTheHash) {
  const at::Tensor c = filled({1}, 5000);
  for (const std::size_t count : {1, 15, 16, 31, 32, 511}) {
    const std::vector<at::Tensor> a = list(count, {1});
    const std::vector<at::Tensor> b = list(count, {1}, 2000);
    EXPECT_TRUE(holds(lists_(a, b, c), 5001)) << count;
    ASSERT_EQ(seen.firsts.size(), 2 * count + 1);
    for (std::size_t i = 0; i < count; ++i) {
      EXPECT_EQ(seen.firsts[i], 1 + static_cast<double>(i)) << count;
      EXPECT_EQ(seen.firsts[count + i], 2000 + static_cast<double>(i)) << count;
    }
    EXPECT_EQ(seen.firsts.back(), 5000) << count;
  }
  EXPECT_EQ(lists_.handed_on, 0);
}

TEST_F(DirectKernelTest, AListGivenTwiceIsTheSameNativeTensors) {
  for (const std::size_t count : {5, 100}) {
    const std::vector<at::Tensor> a = list(count, {1});
    lists_(a, a, a.back());
    for (std::size_t i = 0; i < count; ++i) {
      EXPECT_EQ(seen.tensors.at(i), seen.tensors.at(count + i)) << count;
    }
    EXPECT_EQ(seen.tensors.at(2 * count), seen.tensors.at(count - 1));
  }
  EXPECT_EQ(lists_.handed_on, 0);
}

// The native tensors of a list lie in a row, so each has to be a new one.
TEST_F(DirectKernelTest, AListThatRepeatsOrTurnsGoesTheGeneralWay) {
  const at::Tensor c = filled({1}, 1);
  for (const std::size_t count : {3, 100}) {
    std::vector<at::Tensor> a = list(count, {1});
    std::vector<at::Tensor> turned(a.rbegin(), a.rend());
    const int before = lists_.handed_on;
    lists_(a, turned, c);
    EXPECT_EQ(lists_.handed_on, before + 1) << count;
    a.back() = a.front();
    lists_(a, {}, c);
    EXPECT_EQ(lists_.handed_on, before + 2) << count;
  }
  EXPECT_EQ(seen.calls, 0);
}

TEST_F(DirectKernelTest, TakesAsManyListedTensorsAsThereIsRoomFor) {
  const at::Tensor c = filled({1}, 5);
  std::vector<at::Tensor> a = list(kMaxListedTensors, {1});
  lists_(a, {}, c);
  EXPECT_EQ(lists_.handed_on, 0);
  EXPECT_EQ(seen.tensors.size(), kMaxListedTensors + 1);
  lists_(a, {c}, c); // one more, in the other list
  EXPECT_EQ(lists_.handed_on, 1);
  a.push_back(filled({1}, 6));
  lists_(a, {}, c);
  EXPECT_EQ(lists_.handed_on, 2);
  EXPECT_EQ(seen.calls, 1);
}

TEST_F(DirectKernelTest, EmptyListsAreHandedOver) {
  EXPECT_TRUE(holds(lists_({}, {}, filled({1}, 5)), 6));
  EXPECT_EQ(lists_.handed_on, 0);
  EXPECT_EQ(seen.tensors.size(), 1U);
}

// ---- results, failures -----------------------------------------------------

TEST_F(DirectKernelTest, AnInPlaceOpReturnsWhatItWasGiven) {
  at::Tensor a = filled({3}, 2);
  const at::Tensor b = filled({3}, 5);
  EXPECT_EQ(&in_place_(a, b), &a);
  EXPECT_TRUE(holds(a, 7));
  EXPECT_EQ(&in_place_(a, a), &a);
  EXPECT_TRUE(holds(a, 14));
  EXPECT_EQ(in_place_.handed_on, 0);
}

TEST_F(DirectKernelTest, AResultThatShowsAnOperandShowsItsStorage) {
  const at::Tensor a = filled({2, 3}, 4);
  const at::Tensor made = same_(a);
  EXPECT_EQ(made.storage().unsafeGetStorageImpl(),
            a.storage().unsafeGetStorageImpl());
  EXPECT_EQ(made.sizes(), at::IntArrayRef({6}));
  EXPECT_EQ(made.device(), chameleon());
}

TEST_F(DirectKernelTest, AKernelThatRaisesLeavesNoPinAndTheNextCallWorks) {
  const at::Tensor a = filled({3}, 2);
  failures = 1;
  EXPECT_THROW(mixed_(a, std::nullopt, 1), std::runtime_error);
  EXPECT_EQ(block(a)->pins(), 0U);
  EXPECT_TRUE(holds(mixed_(a, std::nullopt, 1), 3));
  EXPECT_EQ(mixed_.handed_on, 0);
}

// The general way goes on with the call: for the profiler it is one op.
TEST_F(DirectKernelTest, OutOfMemoryInsideIsTriedAgainAsTheSameOp) {
  const at::Tensor a = filled({3}, 2);
  for (const int times : {0, 1, 2}) {
    hungry = times;
    const std::uint64_t ops = pager().profiler().opCount();
    const int calls = seen.calls;
    EXPECT_TRUE(holds(mixed_(a, std::nullopt, 1), 3));
    EXPECT_EQ(seen.calls - calls, 1 + times);
    EXPECT_EQ(pager().profiler().opCount() - ops, 1U);
    EXPECT_EQ(mixed_.handed_on, 0);
  }
}

TEST_F(DirectKernelTest, OutOfMemoryInsideIsRaisedWhereItStays) {
  const at::Tensor a = filled({3}, 2);
  hungry = 100;
  EXPECT_THROW(mixed_(a, std::nullopt, 1), c10::OutOfMemoryError);
  EXPECT_EQ(block(a)->pins(), 0U);
  hungry = 1;
  at::Tensor b = filled({3}, 2);
  EXPECT_THROW(in_place_(b, a), c10::OutOfMemoryError); // it may have written
  EXPECT_TRUE(holds(mixed_(a, std::nullopt, 1), 3));
}

TEST_F(DirectKernelTest, ANativeTensorThatWasKeptShowsNothingAfterwards) {
  const at::Tensor a = filled({3}, 2);
  keep = true;
  mixed_(a, std::nullopt, 1);
  ASSERT_EQ(seen.kept.size(), 1U);
  const at::Tensor kept = seen.kept[0];
  EXPECT_EQ(kept.storage().nbytes(), 0U);
  EXPECT_THROW(kept.mutable_data_ptr(), c10::Error);
  keep = false;
  EXPECT_TRUE(holds(mixed_(a, std::nullopt, 1), 3)); // on another one
  EXPECT_NE(seen.tensors.at(0), kept.unsafeGetTensorImpl());
}

} // namespace
} // namespace chameleon::kernels
