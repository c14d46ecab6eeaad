// The pager on the cuda runtime and an emulated driver, kernels asynchronous
// like copies: random ops against a model, and mistakes planted in the
// driver's table, each of which must be found. CHAMELEON_TEST_OPERATIONS
// makes the random part longer.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <gtest/gtest.h>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "memory/pager.h"
#include "tests/cpp/support/emulated_runtime.h"

namespace chameleon::memory {
namespace {

using runtime::ByteRange;
using runtime::CudaDriver;
using runtime::Error;
using runtime::Event;
using runtime::Stream;
using support::EmulatedDriver;
using support::EmulatedRuntime;
using support::EmulatedRuntimeOptions;
using support::Lateness;

constexpr std::size_t kKiB = 1024;
constexpr std::size_t kBudget = 512 * kKiB;
constexpr std::size_t kLargest = 40 * kKiB;

std::uint64_t operations() {
  const char* const text = std::getenv("CHAMELEON_TEST_OPERATIONS");
  return text != nullptr ? std::strtoull(text, nullptr, 10) : 2000;
}

// What a kernel writes: words that its seed determines.
std::uint64_t next_word(std::uint64_t& state) {
  state = (state ^ (state >> 29)) * 0xbf58476d1ce4e5b9;
  return state;
}

void fill(std::byte* to, std::size_t bytes, std::uint64_t seed) {
  std::uint64_t state = seed | 1;
  for (std::size_t at = 0; at < bytes; at += 8) {
    const std::uint64_t word = next_word(state);
    std::memcpy(to + at, &word, std::min<std::size_t>(8, bytes - at));
  }
}

bool holds(const std::byte* from, std::size_t bytes, std::uint64_t seed) {
  std::uint64_t state = seed | 1;
  for (std::size_t at = 0; at < bytes; at += 8) {
    const std::uint64_t word = next_word(state);
    if (std::memcmp(from + at, &word, std::min<std::size_t>(8, bytes - at)) !=
        0) {
      return false;
    }
  }
  return true;
}

// A user's program: tensors that several streams use, ordered by nobody but
// the user's own waits when a tensor is written, and the pager's.
class Program {
 public:
  explicit Program(EmulatedRuntimeOptions options, std::uint64_t seed)
      : random_(seed), keeps_buffers_(options.plant != nullptr) {
    options.inline_kernels = false;
    options.driver.seed = seed;
    options.driver.on_misuse = [this](const std::string& sentence) {
      misuses_.push_back(sentence);
    };
    device_ = std::make_unique<EmulatedRuntime>(std::move(options));
    pager_ =
        Pager::create(*device_, {kBudget, std::size_t{64} << 20, 64}, "lru")
            .value();
  }

  // False: an error, or wrong bytes.
  bool run(std::uint64_t count) {
    for (std::uint64_t i = 0; i < count && good_; ++i) {
      step();
      if (below(256) == 0) pager_->invariants().check(2);
    }
    return good_;
  }

  // All is read back, all is given back.
  bool finish() {
    for (const Tensor& tensor : tensors_) {
      if (good_) read(tensor);
      pager_->release(tensor.block);
    }
    tensors_.clear();
    if (good_) pager_->invariants().check(3);
    pager_.reset();
    device_->runAll();
    good_ = good_ && wrong_kernels_ == 0;
    device_.reset(); // reports leaks
    return good_;
  }

  // From now on calls may fail: an op that does is not done, and the program
  // goes on with what it has.
  void expectErrors(bool expects) { expects_errors_ = expects; }
  std::uint64_t errors() const { return errors_; }

  EmulatedRuntime& device() { return *device_; }
  Pager& pager() { return *pager_; }
  const std::vector<std::string>& misuses() const { return misuses_; }
  const std::string& error() const { return error_; }

 private:
  struct Tensor {
    Block* block;
    std::uint64_t seed;   // of its bytes
    std::uint64_t stream; // the one that uses it
  };

  std::uint64_t below(std::uint64_t bound) { return random_() % bound; }
  Tensor& any() { return tensors_[below(tensors_.size())]; }

  // False: it failed.
  bool must(const Error& error) {
    if (error.ok()) return true;
    ++errors_;
    const bool excused =
        expects_errors_ && error.code() != runtime::ErrorCode::kLost;
    if (!excused) good_ = false;
    error_ = error.message();
    return false;
  }

  void step() {
    while (tensors_.size() > 80) releaseOne();
    switch (tensors_.size() < 24 ? 0 : below(16)) {
      case 0:
      case 1:
        create();
        break;
      case 2:
      case 3:
        releaseOne();
        break;
      case 4:
        must(pager_->evict(*any().block));
        break;
      case 5:
        if (below(16) == 0) must(pager_->evictAll());
        break;
      case 6:
        if (below(4) == 0) read(any());
        break;
      case 7:
        if (below(16) == 0) {
          (void)pager_->budgets()
              .setHbmBudget(kBudget - below(kBudget / 2))
              .ok();
        }
        break;
      case 8:
        follow(any(), below(3));
        break;
      default:
        op();
        break;
    }
  }

  void create() {
    auto block = pager_->createBlock(1 + below(kLargest));
    if (!block.ok()) {
      must(block.takeError());
      return;
    }
    tensors_.push_back({*block, 0, below(3)});
    if (write(tensors_.back())) return;
    pager_->release(*block);
    tensors_.pop_back();
  }

  void releaseOne() {
    const std::size_t index = below(tensors_.size());
    pager_->release(tensors_[index].block);
    tensors_[index] = tensors_.back();
    tensors_.pop_back();
  }

  // From now on another stream uses the tensor, as a user has it who knows.
  void follow(Tensor& tensor, std::uint64_t stream) {
    auto event = device_->record({tensor.stream});
    if (!event.ok()) {
      must(event.takeError());
      return;
    }
    const bool ordered = must(device_->wait({stream}, *event));
    device_->destroy(*event);
    if (ordered) tensor.stream = stream;
  }

  // A kernel that reads some tensors of its stream, and writes one of them or
  // a new one, perhaps by way of a workspace.
  void op() {
    Tensor& first = any();
    const std::uint64_t stream = first.stream;
    std::vector<Tensor*> inputs{&first};
    std::vector<Operand> operands{{first.block, Access::kRead}};
    for (int i = 0; i < 2; ++i) {
      Tensor& other = any();
      if (other.stream != stream) continue;
      inputs.push_back(&other);
      operands.push_back({other.block, Access::kRead});
    }
    Tensor& last = any();
    const bool in_place = below(2) == 0 && last.stream == stream;
    if (in_place) operands.push_back({last.block, Access::kWrite});
    const std::size_t output_bytes = in_place ? 0 : 1 + below(kLargest);
    const std::size_t work_bytes = below(3) == 0 ? 1 + below(kLargest) : 0;
    const std::uint64_t seed = random_();

    Call call;
    OpMemory& memory = memory_[in_place ? 0 : 1];
    for (;;) {
      if (!must(pager_->begin(call, {stream}, operands, &memory, "op",
                              !in_place))) {
        return;
      }
      std::vector<ByteRange> reads;
      std::vector<std::uint64_t> seeds;
      for (const Tensor* input : inputs) {
        reads.push_back({input->block->device_address, input->block->bytes});
        seeds.push_back(input->seed);
      }
      std::vector<ByteRange> writes;
      std::byte* work = nullptr;
      std::byte* output = nullptr;
      bool enough = true;
      if (work_bytes > 0) enough = allocate(call, work_bytes, work, writes);
      if (enough && output_bytes > 0) {
        enough = allocate(call, output_bytes, output, writes);
      }
      if (in_place) {
        writes.push_back({last.block->device_address, last.block->bytes});
      }
      if (enough) launch(stream, reads, std::move(seeds), writes, seed);
      if (work != nullptr) pager_->free(&call, work);
      Block* made = nullptr;
      if (enough && output != nullptr) {
        made = pager_->adopt(call, output, output_bytes).value();
      } else if (output != nullptr) {
        pager_->free(&call, output);
      }
      pager_->end(call);
      if (in_place && enough) last.seed = seed;
      if (made != nullptr) tensors_.push_back({made, seed, stream});
      if (enough) return;
      if (!call.worthRetrying()) {
        must(std::move(no_room_));
        return;
      }
    }
  }

  bool write(Tensor& tensor) {
    const std::uint64_t seed = random_();
    const Operand operand{tensor.block, Access::kWrite};
    Call call;
    if (!must(pager_->begin(call, {tensor.stream}, {&operand, 1}, nullptr,
                            "fill", false))) {
      return false;
    }
    launch(tensor.stream, {}, {},
           {{tensor.block->device_address, tensor.block->bytes}}, seed);
    pager_->end(call);
    tensor.seed = seed;
    return true;
  }

  void read(const Tensor& tensor) {
    if (!keeps_buffers_) buffers_.clear();
    std::vector<std::byte>& bytes = buffers_.emplace_back(tensor.block->bytes);
    if (must(pager_->read(*tensor.block, 0, bytes.data(), bytes.size(),
                          {tensor.stream})) &&
        !holds(bytes.data(), bytes.size(), tensor.seed)) {
      must({runtime::ErrorCode::kLost, "a tensor has other bytes"});
    }
  }

  bool allocate(Call& call, std::size_t bytes, std::byte*& address,
                std::vector<ByteRange>& writes) {
    auto result = pager_->allocate(call, bytes);
    if (!result.ok()) {
      no_room_ = result.takeError();
      return false;
    }
    address = *result;
    writes.push_back({address, bytes});
    return true;
  }

  void launch(std::uint64_t stream, const std::vector<ByteRange>& reads,
              std::vector<std::uint64_t> seeds,
              const std::vector<ByteRange>& writes, std::uint64_t seed) {
    device_->launch(
        {stream}, reads, writes,
        [this, reads, seeds = std::move(seeds), writes, seed] {
          for (std::size_t i = 0; i < reads.size(); ++i) {
            wrong_kernels_ += !holds(reads[i].begin, reads[i].bytes, seeds[i]);
          }
          for (const ByteRange range : writes) {
            fill(const_cast<std::byte*>(range.begin), range.bytes, seed);
          }
        });
  }

  std::mt19937_64 random_;
  std::vector<std::string> misuses_;
  std::uint64_t wrong_kernels_ = 0;
  // Where reads go. With a mistake they may be under way for ever.
  const bool keeps_buffers_;
  std::deque<std::vector<std::byte>> buffers_;
  std::unique_ptr<EmulatedRuntime> device_;
  std::unique_ptr<Pager> pager_;
  std::vector<Tensor> tensors_;
  OpMemory memory_[2];
  Error no_room_; // of the last kernel that had none
  bool good_ = true;
  bool expects_errors_ = false;
  std::uint64_t errors_ = 0;
  std::string error_;
};

class PagerCudaTest : public ::testing::TestWithParam<Lateness> {};

TEST_P(PagerCudaTest, RandomOpsAreRightWithoutMisuse) {
  RecordProperty("random_operations", static_cast<int>(operations() / 3));
  for (std::uint64_t seed = 1; seed <= 2; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    EmulatedRuntimeOptions options;
    options.driver.lateness = GetParam();
    options.register_in_background = seed % 2 == 0;
    Program program(options, seed);
    EXPECT_TRUE(program.run((operations() + 5) / 6)) << program.error();
    EXPECT_GT(program.pager().stats().faults, 20);
    EXPECT_TRUE(program.finish()) << program.error();
    EXPECT_EQ(program.misuses(), std::vector<std::string>{});
  }
}

TEST_P(PagerCudaTest, SoItIsWithoutMappingBatchesAndPinning) {
  EmulatedRuntimeOptions options;
  options.driver.lateness = GetParam();
  options.driver.maps_memory = false;
  options.driver.device_bytes = std::size_t{64} << 20;
  options.driver.copies_batches = false;
  options.driver.register_limit = 0;
  Program program(options, 3);
  EXPECT_TRUE(program.run(300)) << program.error();
  EXPECT_GT(program.device().cuda().transferGaps().pageable_bytes, 0u);
  EXPECT_EQ(program.device().cuda().stats().registered_host_bytes, 0u);
  EXPECT_GT(program.pager().stats().pageable_bytes, 0);
  EXPECT_GT(program.pager().stats().pinning_refusals, 0);
  program.pager().resetStats();
  EXPECT_EQ(program.pager().stats().pageable_bytes, 0);
  EXPECT_EQ(program.pager().stats().pinning_refusals, 0);
  EXPECT_TRUE(program.finish()) << program.error();
  EXPECT_EQ(program.misuses(), std::vector<std::string>{});
}

INSTANTIATE_TEST_SUITE_P(Schedules, PagerCudaTest,
                         ::testing::Values(Lateness::kPrompt, Lateness::kRandom,
                                           Lateness::kLate));

// ---- calls that fail
// ---------------------------------------------------------

using support::DriverCall;

struct FailingCall {
  const char* name;
  DriverCall call;
  CUresult result;
};

void PrintTo(const FailingCall& failing, std::ostream* out) {
  *out << failing.name;
}

class PagerCudaFaults : public ::testing::TestWithParam<FailingCall> {};

// Some call fails, once or for a while: every tensor keeps its bytes, no wait
// is forgotten, and afterwards no op fails.
TEST_P(PagerCudaFaults, LeavesEveryTensorRight) {
  std::uint64_t errors = 0;
  int injected = 0;
  for (const bool for_a_while : {false, true}) {
    for (std::uint64_t nth = 1; nth <= 41; nth += 8) {
      SCOPED_TRACE(::testing::Message()
                   << GetParam().name << " call " << nth
                   << (for_a_while ? " and later ones" : ""));
      EmulatedRuntimeOptions options;
      options.driver.lateness = Lateness::kLate;
      options.driver.copies_batches = nth % 16 == 1;
      Program program(options, nth);
      ASSERT_TRUE(program.run(60)) << program.error();
      EmulatedDriver& driver = program.device().driver();
      driver.failCall(GetParam().call, nth, GetParam().result, for_a_while);
      program.expectErrors(true);
      ASSERT_TRUE(program.run(60)) << program.error();
      driver.failCall(GetParam().call, 0, CUDA_SUCCESS);
      program.expectErrors(false);
      errors += program.errors();
      ++injected;
      ASSERT_TRUE(program.run(40)) << program.error();
      ASSERT_TRUE(program.finish()) << program.error();
      ASSERT_EQ(program.misuses(), std::vector<std::string>{});
    }
  }
  RecordProperty("errors", static_cast<int>(errors));
  RecordProperty("faults_injected", injected);
}

constexpr FailingCall kFailing[] = {
    {"Copy", DriverCall::cuMemcpyAsync, CUDA_ERROR_UNKNOWN},
    {"Batch", DriverCall::cuMemcpyBatchAsync, CUDA_ERROR_UNKNOWN},
    {"Wait", DriverCall::cuStreamWaitEvent, CUDA_ERROR_OUT_OF_MEMORY},
    {"Record", DriverCall::cuEventRecord, CUDA_ERROR_OUT_OF_MEMORY},
    {"CreateEvent", DriverCall::cuEventCreate, CUDA_ERROR_OUT_OF_MEMORY},
    {"Query", DriverCall::cuEventQuery, CUDA_ERROR_UNKNOWN},
    {"Synchronize", DriverCall::cuEventSynchronize, CUDA_ERROR_UNKNOWN},
    {"Create", DriverCall::cuMemCreate, CUDA_ERROR_OUT_OF_MEMORY},
    {"Map", DriverCall::cuMemMap, CUDA_ERROR_OUT_OF_MEMORY},
    {"SetAccess", DriverCall::cuMemSetAccess, CUDA_ERROR_OUT_OF_MEMORY},
    {"Register", DriverCall::cuMemHostRegister, CUDA_ERROR_OUT_OF_MEMORY},
};

INSTANTIATE_TEST_SUITE_P(Calls, PagerCudaFaults, ::testing::ValuesIn(kFailing),
                         [](const auto& failing) {
                           return failing.param.name;
                         });

// A kernel of the user's broke the context: every op that needs the driver says
// in one sentence that the GPU is lost, none hangs, and the end is an orderly
// one.
TEST(PagerCudaLost, OpsSayThatTheGpuIsLost) {
  for (const Lateness lateness : {Lateness::kPrompt, Lateness::kLate}) {
    EmulatedRuntimeOptions options;
    options.driver.lateness = lateness;
    Program program(options, 7);
    ASSERT_TRUE(program.run(120)) << program.error();
    EmulatedDriver& driver = program.device().driver();
    driver.loseContext(CUDA_ERROR_ASSERT);
    program.expectErrors(true);
    ASSERT_TRUE(program.run(300)) << program.error();
    EXPECT_GT(program.errors(), 100u);
    EXPECT_NE(program.error().find("the GPU is lost to this process"),
              std::string::npos)
        << program.error();
    program.pager().invariants().check(3);
    (void)program.finish(); // (nothing can be given back to such a GPU)
  }
}

// The queue of copies out has not run when the value is there.
TEST(PagerCudaReads, ASmallOneDoesNotWaitForEvictions) {
  EmulatedRuntimeOptions options;
  options.driver.lateness = Lateness::kLate;
  EmulatedRuntime device(options);
  auto pager = Pager::create(device, {64 << 20, 1 << 28, 4}, "lru").value();
  const auto filled = [&](std::size_t bytes, int value) {
    Block* const block = pager->createBlock(bytes).value();
    const Operand operand{block, Access::kWrite};
    Call call;
    EXPECT_TRUE(
        pager->begin(call, {0}, {&operand, 1}, nullptr, "fill", false).ok());
    std::memset(block->device_address, value, bytes);
    pager->end(call);
    return block;
  };
  Block* const large = filled(16 << 20, 1);
  Block* const loss = filled(4, 7);
  ASSERT_TRUE(pager->evict(*large).ok());
  const Event evicted = device.record(device.copyOutStream()).value();
  std::uint32_t value = 0;
  ASSERT_TRUE(
      pager->read(*loss, 0, reinterpret_cast<std::byte*>(&value), 4, {0}).ok());
  EXPECT_EQ(value, 0x07070707u);
  EXPECT_FALSE(device.query(evicted));
  device.destroy(evicted);
  pager->release(large);
  pager->release(loss);
}

// ---- planted mistakes -------------------------------------------------------

struct Mistake {
  const char* name;
  void (*plant)(CudaDriver&);
  const char* found_as; // part of a sentence
};

void PrintTo(const Mistake& mistake, std::ostream* out) {
  *out << mistake.name;
}

class PagerMistakeTest : public ::testing::TestWithParam<Mistake> {};

// The first sentence that names the mistake, or all of them.
TEST_P(PagerMistakeTest, IsFound) {
  EmulatedRuntimeOptions options;
  options.driver.lateness = Lateness::kLate;
  options.plant = GetParam().plant;
  Program program(options, 5);
  // Until it shows; the bytes may be wrong by then.
  for (int i = 0; i < 40 && program.misuses().empty(); ++i) {
    if (!program.run(20)) break;
  }
  (void)program.finish();
  std::set<std::string> others;
  for (const std::string& sentence : program.misuses()) {
    if (sentence.find(GetParam().found_as) != std::string::npos) return;
    others.insert(sentence);
  }
  ADD_FAILURE() << GetParam().name << " was not found; " << others.size()
                << " other sentences, first: "
                << (others.empty() ? "none" : *others.begin());
}

constexpr Mistake kMistakes[] = {
    {"MissingWait",
     [](CudaDriver& driver) {
       driver.cuStreamWaitEvent = [](CUstream, CUevent, unsigned) {
         return CUDA_SUCCESS;
       };
     },
     "no wait orders them"},
    // Every event looks complete: memory is reused before its event.
    {"EarlyReuse",
     [](CudaDriver& driver) {
       driver.cuEventQuery = [](CUevent) { return CUDA_SUCCESS; };
     },
     "no wait orders them"},
    {"LeakedEvents",
     [](CudaDriver& driver) {
       driver.cuEventDestroy = [](CUevent) { return CUDA_SUCCESS; };
     },
     "events leaked"},
    {"LeakedMemory",
     [](CudaDriver& driver) {
       driver.cuMemRelease = [](CUmemGenericAllocationHandle) {
         return CUDA_SUCCESS;
       };
     },
     "physical allocations leaked"},
    {"LeakedPinnedMemory",
     [](CudaDriver& driver) {
       driver.cuMemHostUnregister = [](void*) { return CUDA_SUCCESS; };
     },
     "registrations of host memory leaked"},
    {"LeakedStreams",
     [](CudaDriver& driver) {
       driver.cuStreamDestroy = [](CUstream) { return CUDA_SUCCESS; };
     },
     "streams leaked"},
};

INSTANTIATE_TEST_SUITE_P(Planted, PagerMistakeTest,
                         ::testing::ValuesIn(kMistakes),
                         [](const auto& mistake) {
                           return mistake.param.name;
                         });

// One wait of all that a program makes. Some say what others imply, so not
// each of them matters.
std::uint64_t g_dropped_wait; // counted from 1
std::uint64_t g_waits;
PFN_cuStreamWaitEvent_v3020 g_wait;

TEST(PagerCudaWaits, OneThatIsMissingIsFound) {
  std::uint64_t found = 0;
  std::uint64_t dropped = 0;
  for (g_dropped_wait = 2; g_dropped_wait <= 80; g_dropped_wait += 2) {
    g_waits = 0;
    EmulatedRuntimeOptions options;
    options.driver.lateness = Lateness::kLate;
    options.plant = [](CudaDriver& driver) {
      g_wait = driver.cuStreamWaitEvent;
      driver.cuStreamWaitEvent = [](CUstream stream, CUevent event,
                                    unsigned flags) {
        if (++g_waits == g_dropped_wait) return CUDA_SUCCESS;
        return g_wait(stream, event, flags);
      };
    };
    Program program(options, g_dropped_wait);
    program.run(200);
    dropped += g_waits >= g_dropped_wait;
    program.finish();
    found += !program.misuses().empty();
  }
  EXPECT_EQ(dropped, 40u);
  EXPECT_GE(found, 24u);
}

} // namespace
} // namespace chameleon::memory
