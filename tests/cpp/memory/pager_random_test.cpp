// Random sequences of everything a pager can do, against a model that holds
// each block's bytes in a vector, on a runtime that delays, reorders, poisons
// and checks. The invariants are walked after every step.
#include <random>

#include "memory/pager.h"
#include "tests/cpp/memory/pager_fixture.h"

namespace chameleon::memory {
namespace {

using runtime::Error;
using runtime::ErrorCode;
using runtime::Stream;

constexpr std::size_t kSmallestBudget = 256 * kKiB;
constexpr std::size_t kLargestBudget = 1024 * kKiB;
constexpr std::size_t kLargestBlock = 48 * kKiB;

class PagerRandomTest : public PagerTest,
                        public ::testing::WithParamInterface<int> {
 protected:
  // What a mirror has of a tensor, and should have.
  struct Mirrored {
    std::vector<std::byte> bytes;
    std::vector<std::byte> expected;
    BlockValue value{};
  };
  struct Tensor {
    Block* block;
    std::vector<std::byte> bytes;
    bool written;
    std::shared_ptr<Mirrored> mirrored{};
  };

  std::uint64_t below(std::uint64_t bound) { return random_() % bound; }
  Tensor& any() { return tensors_[below(tensors_.size())]; }

  // Half of them of few sizes, so that they take each other's places.
  std::size_t anySize() {
    return below(2) == 0 ? 1 + below(kLargestBlock)
                         : 512 * (1 + below(4)) - below(100);
  }

  // As a user does who goes on on another stream.
  void switchStream() {
    const Stream next{below(5)};
    runtime::Result<runtime::Event> event = runtime_->record(stream_);
    ASSERT_TRUE(event.ok());
    ASSERT_FALSE(failed(runtime_->wait(next, *event)));
    if (!event->complete()) runtime_->destroy(*event);
    stream_ = next;
  }

  void createOne() {
    const std::size_t bytes = 1 + below(kLargestBlock);
    tensors_.push_back(
        {create(bytes), std::vector<std::byte>(bytes), false, nullptr});
  }

  void releaseOne() {
    const std::size_t index = below(tensors_.size());
    pager->release(tensors_[index].block);
    std::swap(tensors_[index], tensors_.back());
    tensors_.pop_back();
  }

  // out[i] = a[i] ^ b[i] ..., some in place, some into new blocks.
  void runOp() {
    std::vector<Tensor*> inputs;
    std::vector<Operand> operands;
    for (std::uint64_t i = 0, n = below(4); i < n; ++i) {
      inputs.push_back(&any());
      operands.push_back({inputs.back()->block, Access::kRead});
    }
    Tensor* const written = below(2) == 0 ? &any() : nullptr;
    if (written != nullptr)
      operands.push_back({written->block, Access::kWrite});
    const std::size_t output_bytes = below(2) == 0 ? anySize() : 0;
    const std::size_t work_bytes = below(3) == 0 ? anySize() : 0;
    OpMemory& memory = memories_[(written != nullptr) * 2 + (output_bytes > 0)];
    const std::uint64_t seed = random_();

    Call call;
    for (;;) {
      const Error error = pager->begin(call, stream_, operands, &memory, "op",
                                       written == nullptr);
      ASSERT_FALSE(failed(error));
      for (const Tensor* input : inputs) {
        if (!input->written) continue;
        ASSERT_EQ(std::memcmp(input->block->device_address, input->bytes.data(),
                              input->bytes.size()),
                  0);
      }
      bool good = true;
      std::byte* work = nullptr;
      if (work_bytes > 0) {
        runtime::Result<std::byte*> result = pager->allocate(call, work_bytes);
        good = result.ok();
        if (good) {
          work = *result;
          std::memset(work, 0x5a, work_bytes);
        }
      }
      std::byte* output = nullptr;
      if (good && output_bytes > 0) {
        runtime::Result<std::byte*> result =
            pager->allocate(call, output_bytes);
        good = result.ok();
        if (good) output = *result;
      }
      check(2);
      if (work != nullptr && below(4) != 0) {
        pager->free(&call, work);
        work = nullptr;
      }
      if (good) {
        if (output != nullptr) {
          fill_pattern(output, output_bytes, seed);
          runtime::Result<Block*> block =
              pager->adopt(call, output, output_bytes);
          ASSERT_TRUE(block.ok());
          pending_ = {*block, pattern(output_bytes, seed), true, nullptr};
        }
        if (written != nullptr) {
          written->bytes = pattern(written->bytes.size(), seed + 1);
          written->written = true;
          std::memcpy(written->block->device_address, written->bytes.data(),
                      written->bytes.size());
        }
      } else if (output != nullptr) {
        pager->free(&call, output);
      }
      pager->end(call);
      if (work != nullptr) foreign_.push_back(work);
      if (good) break;
      // A kernel that writes had its room made for it, unless the op is new.
      ASSERT_TRUE(call.worthRetrying());
    }
    if (output_bytes > 0) tensors_.push_back(pending_);
  }

  void hostAccess() {
    Tensor& tensor = any();
    const std::size_t size = tensor.bytes.size();
    const bool writes = below(2) == 0;
    // What was never written has no known bytes: the first write is whole.
    const std::size_t offset = !tensor.written ? 0 : below(size);
    const std::size_t count = !tensor.written ? size : below(size - offset + 1);
    if (writes) {
      const std::vector<std::byte> bytes = pattern(count, random_());
      ASSERT_FALSE(failed(
          pager->write(*tensor.block, offset, bytes.data(), count, stream_)));
      std::copy(bytes.begin(), bytes.end(),
                tensor.bytes.begin() + static_cast<std::ptrdiff_t>(offset));
      tensor.written = true;
    } else {
      std::vector<std::byte> bytes(count);
      ASSERT_FALSE(failed(
          pager->read(*tensor.block, offset, bytes.data(), count, stream_)));
      if (!tensor.written || count == 0) return;
      ASSERT_EQ(std::memcmp(bytes.data(), tensor.bytes.data() + offset, count),
                0);
    }
  }

  // Of some tensors, or of what is under way the end.
  void mirror() {
    if (!mirrored_.empty()) {
      ASSERT_TRUE(pager->finishMirror().ok());
      for (const auto& each : mirrored_) ASSERT_EQ(each->bytes, each->expected);
      mirrored_.clear();
      return;
    }
    for (Tensor& tensor : tensors_) {
      if (!tensor.written || below(3) == 0) continue;
      if (tensor.mirrored == nullptr) {
        tensor.mirrored = std::make_shared<Mirrored>();
        tensor.mirrored->bytes.resize(tensor.bytes.size());
      }
      tensor.mirrored->expected = tensor.bytes;
      runtime::Result<BlockValue> value = pager->mirror(
          {tensor.block, 0, tensor.bytes.size(), tensor.mirrored->bytes.data()},
          tensor.mirrored->value, stream_);
      ASSERT_TRUE(value.ok()) << value.error().message();
      tensor.mirrored->value = *value;
      mirrored_.push_back(tensor.mirrored);
    }
  }

  void changeLimits() {
    if (below(2) == 0) {
      const Error error = pager->budgets().setHbmBudget(
          kSmallestBudget + below(kLargestBudget - kSmallestBudget));
      if (error) {
        ASSERT_EQ(error.code(), ErrorCode::kInvalidArgument);
      }
    } else {
      const Error error =
          pager->budgets().setHostBudget(8 * kMiB + below(8 * kMiB));
      if (error) {
        ASSERT_EQ(error.code(), ErrorCode::kInvalidArgument);
      }
    }
  }

  void step() {
    if (tensors_.size() < 10) createOne();
    switch (below(18)) {
      case 16:
        mirror();
        break;
      case 0:
      case 1:
        createOne();
        break;
      case 2:
      case 3:
        if (tensors_.size() > 60 || below(2) == 0) releaseOne();
        break;
      case 4:
        ASSERT_FALSE(failed(pager->evict(*any().block)));
        break;
      case 5:
        if (below(8) == 0) {
          ASSERT_FALSE(failed(pager->evictAll()));
        }
        break;
      case 6:
      case 7:
        hostAccess();
        break;
      case 8:
        changeLimits();
        break;
      case 9:
        switchStream();
        break;
      case 10:
        if (!foreign_.empty()) {
          pager->free(nullptr, foreign_.back());
          foreign_.pop_back();
        }
        break;
      default:
        runOp();
        break;
    }
  }

  std::mt19937_64 random_;
  Stream stream_;
  std::vector<Tensor> tensors_;
  Tensor pending_;
  std::vector<std::shared_ptr<Mirrored>> mirrored_; // under way
  std::vector<std::byte*> foreign_;
  std::array<OpMemory, 4> memories_;
};

TEST_P(PagerRandomTest, AgreesWithTheModel) {
  const auto seed = static_cast<std::uint64_t>(GetParam());
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  random_.seed(seed);
  open(kLargestBudget / 2, 16 * kMiB, 64, support::random_adversary(random_));
  constexpr int kSteps = 150;
  RecordProperty("random_operations", kSteps);
  for (int i = 0; i < kSteps && !HasFatalFailure(); ++i) {
    SCOPED_TRACE(::testing::Message() << "step " << i);
    step();
    check(below(16) == 0 ? 3 : 2);
    const Stats stats = pager->stats();
    ASSERT_LE(stats.resident_bytes, stats.hbm_budget);
    ASSERT_LE(stats.host_bytes, stats.host_budget);
    if (foreign_.size() > 2) {
      pager->free(nullptr, foreign_.front());
      foreign_.erase(foreign_.begin());
    }
  }
  if (!mirrored_.empty()) mirror();
  for (const Tensor& tensor : tensors_) {
    if (!tensor.written) continue;
    std::vector<std::byte> bytes(tensor.bytes.size());
    ASSERT_FALSE(failed(
        pager->read(*tensor.block, 0, bytes.data(), bytes.size(), stream_)));
    ASSERT_EQ(bytes, tensor.bytes);
  }
  for (std::byte* bytes : foreign_) pager->free(nullptr, bytes);
}

INSTANTIATE_TEST_SUITE_P(Seeds, PagerRandomTest, ::testing::Range(0, 24));

} // namespace
} // namespace chameleon::memory
