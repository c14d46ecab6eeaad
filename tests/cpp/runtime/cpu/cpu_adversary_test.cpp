#include "backend/runtime/cpu/cpu_adversary.h"

#include <gtest/gtest.h>
#include <string>

namespace chameleon::runtime {
namespace {

TEST(CpuAdversary, EmptyTextIsInactive) {
  const auto adversary = parse_cpu_adversary("");
  ASSERT_TRUE(adversary.ok());
  EXPECT_FALSE(adversary.value().active());
}

TEST(CpuAdversary, AllParts) {
  const auto adversary =
      parse_cpu_adversary("seed=3,copies=late,compute_delay=8,poison=1");
  ASSERT_TRUE(adversary.ok()) << adversary.error().message();
  EXPECT_EQ(adversary.value().seed, 3u);
  EXPECT_EQ(adversary.value().copies, CopyTiming::kLate);
  EXPECT_EQ(adversary.value().compute_delay_ops, 8u);
  EXPECT_TRUE(adversary.value().poison);
  EXPECT_TRUE(adversary.value().active());
}

TEST(CpuAdversary, EachPartActivates) {
  for (const char* text :
       {"copies=reordered", "copies=on_await", "compute_delay=1", "poison=1"}) {
    const auto adversary = parse_cpu_adversary(text);
    ASSERT_TRUE(adversary.ok());
    EXPECT_TRUE(adversary.value().active()) << text;
  }
  EXPECT_FALSE(
      parse_cpu_adversary("seed=9,copies=prompt,poison=0").value().active());
}

TEST(CpuAdversary, Refuses) {
  for (const char* text : {"copies", "copies=soon", "seed=x", "seed=-1",
                           "compute_delay=1001", "poison=yes", "=1", "a=b"}) {
    const auto adversary = parse_cpu_adversary(text);
    ASSERT_FALSE(adversary.ok()) << text;
    EXPECT_EQ(adversary.error().message(),
              "\"" + std::string(text) +
                  "\" is no part of an adversary; allowed: seed=<number>, "
                  "copies=prompt|late|reordered|on_await, "
                  "compute_delay=<0..1000>, poison=0|1");
  }
  EXPECT_FALSE(parse_cpu_adversary("seed=1,,poison=1").ok());
}

} // namespace
} // namespace chameleon::runtime
