// The pager on a device where everything is asynchronous, kernels too: work
// lies in queues and runs later, in any order that the waits allow. An op is a
// copy on a compute stream. Whatever is not ordered by a wait sooner or later
// gives wrong bytes.
#include <gtest/gtest.h>
#include <memory>
#include <random>

#include "memory/pager.h"
#include "tests/cpp/memory/fake_runtime.h"
#include "tests/cpp/memory/pager_fixture.h"

namespace chameleon::memory {
namespace {

using runtime::Error;
using runtime::Stream;

constexpr std::size_t kBudget = 256 * kKiB;
constexpr std::size_t kLargest = 40 * kKiB;

class PagerAsyncTest : public ::testing::Test {
 protected:
  // What a mirror has of a tensor, and should have.
  struct Mirrored {
    std::vector<std::byte> bytes;
    std::vector<std::byte> expected;
    BlockValue value{};
  };
  struct Tensor {
    Block* block;
    std::uint64_t low;  // seed of the first half's bytes
    std::uint64_t high; // of the second half's
    std::size_t stream; // the only one that writes it
    std::shared_ptr<Mirrored> mirrored{};
  };
  static std::vector<std::byte> bytesOf(const Tensor& tensor) {
    const std::size_t bytes = tensor.block->bytes;
    std::vector<std::byte> result = pattern(bytes, tensor.low);
    const std::vector<std::byte> high = pattern(bytes, tensor.high);
    std::copy(high.begin() + static_cast<std::ptrdiff_t>(bytes / 2), high.end(),
              result.begin() + static_cast<std::ptrdiff_t>(bytes / 2));
    return result;
  }

  void SetUp() override {
    auto result = Pager::create(device(), {kBudget, 128 * kMiB, 64}, "lru");
    ASSERT_TRUE(result.ok()) << result.error().message();
    pager = std::move(*result);
  }
  void TearDown() override {
    pager->invariants().check(3);
    ASSERT_TRUE(pager->synchronize().ok());
    pager.reset();
  }

  void submit(std::size_t stream, std::byte* to, const std::byte* from,
              std::size_t bytes) {
    const runtime::Copy copy{to, from, bytes};
    ASSERT_TRUE(device().copy(FakeRuntime::compute(stream), {&copy, 1}).ok());
  }

  // Host bytes that live as long as kernels may read them.
  const std::byte* constant(std::size_t bytes, std::uint64_t seed) {
    constants_.push_back(
        std::make_unique<std::vector<std::byte>>(pattern(bytes, seed)));
    return constants_.back()->data();
  }

  Tensor make(std::size_t bytes, std::uint64_t seed, std::size_t stream) {
    runtime::Result<Block*> block = pager->createBlock(bytes);
    EXPECT_TRUE(block.ok());
    Tensor tensor{*block, seed, seed, stream, nullptr};
    fill(tensor, seed);
    fillHigh(tensor, seed);
    return tensor;
  }

  // Writes all of it / the second half.
  void fill(Tensor& tensor, std::uint64_t seed) {
    write(tensor, seed, 0);
    tensor.low = tensor.high = seed;
  }
  void fillHigh(Tensor& tensor, std::uint64_t seed) {
    write(tensor, seed, tensor.block->bytes / 2);
    tensor.high = seed;
  }
  void write(Tensor& tensor, std::uint64_t seed, std::size_t from) {
    const Operand operand{tensor.block, Access::kWrite};
    Call call;
    ASSERT_TRUE(pager
                    ->begin(call, FakeRuntime::compute(tensor.stream),
                            {&operand, 1}, nullptr, "fill", false)
                    .ok());
    const std::size_t bytes = tensor.block->bytes;
    submit(tensor.stream, tensor.block->device_address + from,
           constant(bytes, seed) + from, bytes - from);
    pager->end(call);
  }

  // A copy of `from` made on `stream`, by way of a workspace.
  Tensor clone(const Tensor& from, std::size_t stream) {
    const Operand operand{from.block, Access::kRead};
    const std::size_t bytes = from.block->bytes;
    Tensor result{nullptr, from.low, from.high, stream, nullptr};
    Call call;
    do {
      EXPECT_TRUE(pager
                      ->begin(call, FakeRuntime::compute(stream), {&operand, 1},
                              &clone_memory_, "clone", true)
                      .ok());
      runtime::Result<std::byte*> work = pager->allocate(call, bytes);
      if (work.ok()) {
        submit(stream, *work, from.block->device_address, bytes);
        runtime::Result<std::byte*> output = pager->allocate(call, bytes);
        if (output.ok()) {
          submit(stream, *output, *work, bytes);
          runtime::Result<Block*> block = pager->adopt(call, *output, bytes);
          EXPECT_TRUE(block.ok());
          result.block = *block;
        }
        pager->free(&call, *work);
      }
      pager->end(call);
    } while (call.worthRetrying());
    EXPECT_NE(result.block, nullptr);
    return result;
  }

  void expect(const Tensor& tensor) {
    std::vector<std::byte> bytes(tensor.block->bytes);
    ASSERT_TRUE(pager
                    ->read(*tensor.block, 0, bytes.data(), bytes.size(),
                           FakeRuntime::compute(tensor.stream))
                    .ok());
    ASSERT_EQ(bytes, bytesOf(tensor));
  }

  void mirror(Tensor& tensor) {
    const std::size_t bytes = tensor.block->bytes;
    if (tensor.mirrored == nullptr) {
      tensor.mirrored = std::make_shared<Mirrored>();
      tensor.mirrored->bytes.resize(bytes);
    }
    tensor.mirrored->expected = bytesOf(tensor);
    runtime::Result<BlockValue> value = pager->mirror(
        {tensor.block, 0, bytes, tensor.mirrored->bytes.data()},
        tensor.mirrored->value, FakeRuntime::compute(tensor.stream));
    ASSERT_TRUE(value.ok());
    tensor.mirrored->value = *value;
    mirrored_.push_back(tensor.mirrored);
  }

  void finishMirror() {
    ASSERT_TRUE(pager->finishMirror().ok());
    for (const auto& each : mirrored_) ASSERT_EQ(each->bytes, each->expected);
    mirrored_.clear();
  }

  support::QueuedRuntime& device() { return *device_; }

  std::unique_ptr<Pager> pager;
  OpMemory clone_memory_;
  std::vector<std::unique_ptr<std::vector<std::byte>>> constants_;
  std::vector<std::shared_ptr<Mirrored>> mirrored_; // under way

 private:
  std::unique_ptr<support::QueuedRuntime> device_ = make_queues();
};

TEST_F(PagerAsyncTest, NothingWaitsOnTheHost) {
  std::vector<Tensor> tensors;
  for (std::uint64_t i = 0; i < 20; ++i) {
    tensors.push_back(make(32 * kKiB, i, 0));
  }
  for (int round = 0; round < 3; ++round) {
    for (const Tensor& tensor : tensors) {
      pager->release(clone(tensor, 0).block);
    }
  }
  EXPECT_GT(pager->stats().faults, 20);
  EXPECT_EQ(device().hostWaits(), 0u);
  for (const Tensor& tensor : tensors) expect(tensor);
}

// Two calls at a time write a half each, on two streams: the position of the
// later write does not cover the other.
TEST_F(PagerAsyncTest, EvictionWaitsForAllWriters) {
  Tensor tensor = make(32 * kKiB, 1, 0);
  expect(tensor);
  const Operand operand{tensor.block, Access::kWrite};
  const std::byte* const source = constant(32 * kKiB, 2);
  Call calls[2];
  for (std::size_t stream : {0, 1}) {
    ASSERT_TRUE(pager
                    ->begin(calls[stream], FakeRuntime::compute(stream),
                            {&operand, 1}, nullptr, "half", false)
                    .ok());
    const std::size_t offset = stream * 16 * kKiB;
    submit(stream, tensor.block->device_address + offset, source + offset,
           16 * kKiB);
  }
  for (Call& call : calls) pager->end(call);
  ASSERT_TRUE(pager->evict(*tensor.block).ok());
  device().run(device().copyOutStream());
  device().runAll();
  tensor.low = tensor.high = 2;
  expect(tensor);
}

// Tensors belong to streams; between streams nobody waits but the pager.
TEST_F(PagerAsyncTest, RandomOrders) {
  constexpr int kSteps = 120;
  constexpr int kSeeds = 32;
  RecordProperty("random_operations", kSeeds * kSteps);
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    std::mt19937_64 random(seed);
    const auto below = [&](std::uint64_t bound) { return random() % bound; };
    Tensor shared = make(16 * kKiB, 77, 0);
    expect(shared); // written for all to see
    std::vector<Tensor> tensors;
    for (int step = 0; step < kSteps && !HasFatalFailure(); ++step) {
      const std::size_t stream = below(2);
      const std::size_t index = tensors.empty() ? 0 : below(tensors.size());
      switch (tensors.size() < 6 ? 0 : below(10)) {
        case 0:
          tensors.push_back(
              make((1 + below(5)) * kLargest / 5 - below(9), random(), stream));
          break;
        case 1:
          below(2) == 0 ? fill(tensors[index], random())
                        : fillHigh(tensors[index], random());
          break;
        case 2:
        case 3:
          tensors.push_back(clone(tensors[index], tensors[index].stream));
          break;
        case 4:
          pager->release(clone(shared, stream).block);
          break;
        case 5:
          if (below(2) == 0) tensors.push_back(clone(tensors[index], stream));
          pager->release(tensors[index].block);
          tensors.erase(tensors.begin() + static_cast<std::ptrdiff_t>(index));
          break;
        case 6:
        case 7:
        case 8:
          ASSERT_TRUE(pager->evict(*tensors[index].block).ok());
          break;
        default:
          if (below(4) == 0) expect(tensors[index]);
          if (below(16) == 0) {
            ASSERT_TRUE(
                pager->budgets().setHbmBudget(kBudget - below(64) * kKiB).ok());
          }
          break;
      }
      if (below(8) == 0 && mirrored_.empty()) {
        for (Tensor& tensor : tensors) {
          if (below(4) != 0) mirror(tensor);
        }
      } else if (below(16) == 0) {
        finishMirror();
      }
      // Any queue may run a little, or all of it.
      for (std::uint64_t i = 0, n = below(3); i < n; ++i) {
        const Stream streams[] = {
            device().copyInStream(), device().copyOutStream(),
            device().moveStream(), FakeRuntime::compute(0),
            FakeRuntime::compute(1)};
        device().run(streams[below(5)], below(2) == 0 ? 1 : 100);
      }
      pager->invariants().check(below(32) == 0 ? 3 : 2);
    }
    finishMirror();
    for (const Tensor& tensor : tensors) {
      expect(tensor);
      pager->release(tensor.block);
    }
    expect(shared);
    pager->release(shared.block);
  }
}

} // namespace
} // namespace chameleon::memory
