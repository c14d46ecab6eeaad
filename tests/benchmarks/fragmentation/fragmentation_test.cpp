// What the pager moves within the smallest budget that moves nothing over the
// link, just below it, and within the live peak: exact counters. Whoever
// changes them writes results/fragmentation.md anew (run.py).
#include <cstddef>
#include <cstdint>
#include <gtest/gtest.h>
#include <string>

#include "profiler/trace/trace_reader.h"
#include "tests/benchmarks/fragmentation/hbm_use.h"
#include "tests/benchmarks/policy/traced_step.h"

namespace chameleon::benchmarks {
namespace {

constexpr std::size_t kParts = 2000; // of the live peak, as run.py has them

struct Golden {
  std::size_t parts; // of the budget, above the peak
  std::int64_t link_bytes;
  std::int64_t moved_bytes; // both of 12 steps
};

// The peak is that of the page.
void check(const std::string& name, std::size_t peak_bytes, Golden golden) {
  auto trace =
      profiler::read_trace(unpacked(CHAMELEON_TRACES "/" + name + ".jsonl.gz"));
  ASSERT_TRUE(trace.ok()) << trace.error().message();
  const std::size_t more_bytes = peak_bytes * golden.parts / kParts;
  const std::size_t budget_bytes =
      (peak_bytes + more_bytes) & ~std::size_t{511};
  const HbmUse use = hbm_use(*trace, budget_bytes);
  EXPECT_EQ(use.steps, 12);
  EXPECT_EQ(use.link_bytes, golden.link_bytes);
  EXPECT_EQ(use.moved_bytes, golden.moved_bytes);
  EXPECT_EQ(use.commits, 0);
  EXPECT_LE(use.resident_bytes, static_cast<std::int64_t>(budget_bytes));
}

constexpr std::size_t kResNet50Bytes = 11'410'321'408;
constexpr std::size_t kLlamaFusedBytes = 56'685'147'136;

TEST(Fragmentation, ResNet50Smallest) {
  check("resnet50_b256", kResNet50Bytes, {3, 0, 870'296'960});
}
TEST(Fragmentation, ResNet50TooSmall) {
  check("resnet50_b256", kResNet50Bytes, {2, 56'885'248, 1'355'345'280});
}
TEST(Fragmentation, ResNet50AtPeak) {
  check("resnet50_b256", kResNet50Bytes, {0, 157'679'616, 1'176'270'336});
}
TEST(Fragmentation, LlamaFusedSmallest) {
  check("llama_1.3b_fused_adamw", kLlamaFusedBytes, {4, 0, 34'121'203'712});
}
TEST(Fragmentation, LlamaFusedTooSmall) {
  check("llama_1.3b_fused_adamw", kLlamaFusedBytes,
        {3, 524'288'000, 44'508'315'648});
}
TEST(Fragmentation, LlamaFusedAtPeak) {
  check("llama_1.3b_fused_adamw", kLlamaFusedBytes,
        {0, 6'291'456'000, 20'378'285'056});
}

// With room for all nothing moves, and resident is what is live.
TEST(Fragmentation, NothingMovesWithRoomForAll) {
  auto trace = profiler::read_trace(
      unpacked(CHAMELEON_TRACES "/resnet50_b256.jsonl.gz"));
  ASSERT_TRUE(trace.ok()) << trace.error().message();
  const HbmUse use = hbm_use(*trace, 2 * kResNet50Bytes);
  EXPECT_EQ(use.resident_bytes, static_cast<std::int64_t>(kResNet50Bytes));
  EXPECT_EQ(use.link_bytes, 0);
  EXPECT_EQ(use.moved_bytes, 0);
  EXPECT_EQ(use.commits, 0); // a steady step maps nothing
}

} // namespace
} // namespace chameleon::benchmarks
