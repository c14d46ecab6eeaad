// What the pager moves within the live peak, and within 1 % less: exact
// counters. Whoever changes them writes results/fragmentation.md anew (run.py).
#include <cstddef>
#include <cstdint>
#include <gtest/gtest.h>
#include <string>

#include "profiler/trace/trace_reader.h"
#include "tests/benchmarks/fragmentation/hbm_use.h"
#include "tests/benchmarks/policy/traced_step.h"

namespace chameleon::benchmarks {
namespace {

constexpr std::int64_t kParts = 2000; // of the live peak, as run.py has them

struct Golden {
  std::int64_t parts; // of the budget, above the peak
  std::int64_t link_bytes;
  std::int64_t moved_bytes; // both of 12 steps
};

// The peak is that of the page.
void check(const std::string& name, std::int64_t peak_bytes, Golden golden) {
  auto trace =
      profiler::read_trace(unpacked(CHAMELEON_TRACES "/" + name + ".jsonl.gz"));
  ASSERT_TRUE(trace.ok()) << trace.error().message();
  const std::int64_t more_bytes = peak_bytes * golden.parts / kParts;
  const auto budget_bytes =
      static_cast<std::size_t>(peak_bytes + more_bytes) & ~std::size_t{511};
  const HbmUse use = hbm_use(*trace, budget_bytes);
  EXPECT_EQ(use.steps, 12);
  EXPECT_EQ(use.link_bytes, golden.link_bytes);
  EXPECT_EQ(use.moved_bytes, golden.moved_bytes);
  EXPECT_EQ(use.commits, 0);
  EXPECT_LE(use.resident_bytes, static_cast<std::int64_t>(budget_bytes));
}

constexpr std::int64_t kResNet50Bytes = 11'410'321'408;
constexpr std::int64_t kLlamaFusedBytes = 56'685'147'136;

// Nothing leaves, and as results lie where it is planned, nothing moves.
TEST(Fragmentation, ResNet50AtPeak) {
  check("resnet50_b256", kResNet50Bytes, {0, 0, 0});
}
TEST(Fragmentation, ResNet50BelowPeak) {
  check("resnet50_b256", kResNet50Bytes, {-20, 4'315'938'816, 1'541'406'720});
}
TEST(Fragmentation, LlamaFusedAtPeak) {
  check("llama_1.3b_fused_adamw", kLlamaFusedBytes, {0, 0, 0});
}
TEST(Fragmentation, LlamaFusedBelowPeak) {
  check("llama_1.3b_fused_adamw", kLlamaFusedBytes,
        {-20, 20'384'317'440, 27'062'104'064});
}

// With room for all nothing moves, and resident is what is live.
TEST(Fragmentation, NothingMovesWithRoomForAll) {
  auto trace = profiler::read_trace(
      unpacked(CHAMELEON_TRACES "/resnet50_b256.jsonl.gz"));
  ASSERT_TRUE(trace.ok()) << trace.error().message();
  const HbmUse use = hbm_use(*trace, 2 * kResNet50Bytes);
  EXPECT_EQ(use.resident_bytes, kResNet50Bytes);
  EXPECT_EQ(use.link_bytes, 0);
  EXPECT_EQ(use.moved_bytes, 0);
  EXPECT_EQ(use.commits, 0); // a steady step maps nothing
}

} // namespace
} // namespace chameleon::benchmarks
