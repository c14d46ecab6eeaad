// The pager on the cuda runtime and an emulated driver, kernels asynchronous
// like copies: random ops against a model, and mistakes planted in the
// driver's table, each of which must be found. CHAMELEON_TEST_OPERATIONS
// makes the random part longer.
#include <cstdlib>
#include <gtest/gtest.h>
#include <set>
#include <string>
#include <vector>

#include "tests/cpp/memory/cuda_program.h"

namespace chameleon::memory {
namespace {

using runtime::CudaDriver;
using runtime::Event;
using support::EmulatedDriver;
using support::EmulatedRuntime;
using support::EmulatedRuntimeOptions;
using support::Lateness;

std::uint64_t operations() {
  const char* const text = std::getenv("CHAMELEON_TEST_OPERATIONS");
  return text != nullptr ? std::strtoull(text, nullptr, 10) : 2000;
}

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
