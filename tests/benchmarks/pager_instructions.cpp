// Instructions that an op costs in the pager, by how many blocks are alive: a
// cost that grows with them would make large models slow on the host.
//
//   cmake -S . -B build -DCHAMELEON_BUILD_TORCH=OFF -DCHAMELEON_BUILD_TESTS=ON
//   cmake --build build --target pager_instructions
//   valgrind --tool=callgrind --collect-atstart=no
//     --toggle-collect='*run_steps*'
//     build/tests/cpp/pager_instructions lru 1000
//
// A step reads each of so many blocks in turn, of 512 bytes to 8 KiB, and makes
// one that lives for an op. What callgrind counts is of 10,000 ops, on their
// own thread. Arguments: a mode, and how many blocks.
//
//   resident   all of them fit
//   steady     half of them fit, the order repeats, and a plan is followed
//   lru        the same without a plan
//   varying    half of them fit, and each step has another order
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <string_view>
#include <utility>
#include <vector>

#include "backend/runtime/simulated/simulated_runtime.h"
#include "memory/pager.h"
#include "profiler/op_names.h"

namespace {

using chameleon::memory::Access;
using chameleon::memory::Block;
using chameleon::memory::Call;
using chameleon::memory::Operand;
using chameleon::memory::OpIdentity;
using chameleon::memory::OpMemory;
using chameleon::memory::Pager;
namespace profiler = chameleon::profiler;
namespace runtime = chameleon::runtime;

constexpr std::size_t kOps = 10'000; // that are counted
constexpr std::size_t kResultBytes = 4096;
// Before these: plans are made and tried, or there are none.
constexpr int kWarmSteps = 3;
constexpr int kPlannedSteps = 40;

void fail(const runtime::Error& error) {
  if (!error) return;
  std::fprintf(stderr, "pager_instructions: %s\n", error.message().c_str());
  std::exit(EXIT_FAILURE);
}

// Little address space, of which valgrind has not much.
runtime::GpuProfile small_gpu() {
  runtime::GpuProfile gpu = runtime::parse_gpu_profile("base=h200").value();
  gpu.memory_bytes = std::size_t{1} << 30;
  gpu.host_memory_bytes = std::size_t{4} << 30;
  return gpu;
}

class Step {
 public:
  Step(std::string_view mode, std::size_t blocks)
      : varies_(mode == "varying"),
        name_(profiler::op_names().add("op")),
        runtime_(runtime::make_simulated_runtime(small_gpu())) {
    std::size_t all_bytes = 0;
    for (std::size_t i = 0; i < blocks; ++i) {
      bytes_.push_back(std::size_t{512} << random_() % 5);
      all_bytes += bytes_.back();
      order_.push_back(i);
    }
    const bool fits = mode == "resident";
    const std::size_t budget =
        (fits ? 2 * all_bytes : all_bytes / 2) + 16 * kResultBytes;
    pager_ =
        Pager::create(*runtime_,
                      {budget & ~std::size_t{511}, std::size_t{2} << 30, 4.0},
                      mode == "lru" ? "lru" : "forecast")
            .value();
    for (const std::size_t bytes : bytes_) {
      blocks_.push_back(pager_->createBlock(bytes).value());
      fail(pager_->write(*blocks_.back(), 0, nullptr, bytes, {}));
      profiler::TokenHasher hasher(name_);
      hasher.add(blocks_.size()); // each op is one of its own
      tokens_.push_back(hasher.token());
    }
  }
  ~Step() {
    for (Block* const block : blocks_) pager_->release(block);
  }
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;

  // `ops` of them, over as many steps as that takes.
  void run(std::size_t ops) {
    for (; ops > 0; --ops) {
      if (at_ == order_.size()) end();
      one(order_[at_++]);
    }
  }
  void end() {
    pager_->meter().step({});
    if (varies_) std::shuffle(order_.begin(), order_.end(), random_);
    at_ = 0;
  }
  std::int64_t evictions() const { return pager_->stats().evictions; }

 private:
  void one(std::size_t i) {
    const Operand operand{blocks_[i], Access::kRead};
    const OpIdentity identity = OpIdentity::of(name_, tokens_[i]);
    Call call;
    fail(pager_->begin(call, {}, {&operand, 1}, &memory_, "op",
                       /*may_retry=*/true, &identity));
    std::byte* const address = pager_->allocate(call, kResultBytes).value();
    Block* const result = pager_->adopt(call, address, kResultBytes).value();
    fail(runtime_->computed({}, {.flops = 1, .bytes = 1e6}));
    pager_->end(call);
    pager_->release(result);
  }

  const bool varies_;
  const std::uint32_t name_;
  std::mt19937_64 random_{1}; // NOLINT(cert-msc51-cpp): each run is the same
  std::unique_ptr<runtime::DeviceRuntime> runtime_;
  std::unique_ptr<Pager> pager_;
  OpMemory memory_;
  std::vector<std::size_t> bytes_;
  std::vector<Block*> blocks_;
  std::vector<profiler::Token> tokens_;
  std::vector<std::size_t> order_;
  std::size_t at_ = 0;
};

__attribute__((noinline)) void run_steps(Step& step) { step.run(kOps); }

} // namespace

int main(int argc, char** argv) {
  const std::string_view mode = argc > 1 ? argv[1] : "lru";
  const std::size_t blocks =
      std::strtoul(argc > 2 ? argv[2] : "1000", nullptr, /*base=*/10);
  Step step(mode, blocks);
  const bool plans = mode == "steady" || mode == "resident";
  for (int i = 0; i < (plans ? kPlannedSteps : kWarmSteps); ++i) {
    step.run(blocks);
  }
  const std::int64_t before = step.evictions();
  run_steps(step);
  std::printf("%s, %zu blocks: %zu ops, %lld evictions\n", mode.data(), blocks,
              kOps, static_cast<long long>(step.evictions() - before));
  return EXIT_SUCCESS;
}
