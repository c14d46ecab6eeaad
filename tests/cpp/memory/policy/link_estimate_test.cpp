#include "memory/policy/link_estimate.h"

#include <gtest/gtest.h>

namespace chameleon::memory {
namespace {

using profiler::Direction;
using profiler::Durations;

constexpr std::uint64_t kMiB = 1 << 20;

void copy(Durations& durations, Direction direction, bool shared,
          double bytes_per_ns) {
  durations.addCopy(direction, shared, 4 * kMiB,
                    static_cast<std::int64_t>(4 * kMiB / bytes_per_ns));
}

TEST(LinkEstimate, WhatTheRuntimeKnowsStands) {
  Durations durations;
  const LinkEstimate link(durations, runtime::LinkSpeeds{2e9, 3e9, 4e9, 500});
  copy(durations, Direction::kIn, false, 9);
  const LinkModel now = link.now();
  EXPECT_DOUBLE_EQ(now.in_bytes_per_ns, 2);
  EXPECT_DOUBLE_EQ(now.out_bytes_per_ns, 3);
  EXPECT_DOUBLE_EQ(now.both_bytes_per_ns, 4);
  EXPECT_DOUBLE_EQ(now.latency_ns, 500);
}

TEST(LinkEstimate, OtherwiseWhatWasMeasured) {
  Durations durations;
  const LinkEstimate link(durations, std::nullopt);
  EXPECT_FALSE(differs_much(link.now(), LinkModel{}));
  copy(durations, Direction::kIn, false, 11);
  EXPECT_NEAR(link.now().in_bytes_per_ns, 11, 0.01);
  EXPECT_NEAR(link.now().out_bytes_per_ns, 11, 0.01);  // as the other way
  EXPECT_NEAR(link.now().both_bytes_per_ns, 18, 0.01); // 90 / 110
  copy(durations, Direction::kOut, false, 22);
  copy(durations, Direction::kIn, true, 8);
  copy(durations, Direction::kOut, true, 12);
  EXPECT_NEAR(link.now().out_bytes_per_ns, 22, 0.01);
  EXPECT_NEAR(link.now().both_bytes_per_ns, 22, 0.01); // not below one way
  durations.addCopy(Direction::kOut, false, 1024, 3000);
  EXPECT_DOUBLE_EQ(link.now().latency_ns, 3000);
}

TEST(LinkEstimate, WhatIsMirroredIsKnownOfBoth) {
  Durations durations;
  MirrorRate mirror;
  const LinkEstimate measured(durations, std::nullopt, &mirror);
  const LinkEstimate exact(durations, runtime::LinkSpeeds{2e9, 3e9, 4e9, 500},
                           &mirror);
  EXPECT_EQ(measured.now().mirrored_bytes, 0);
  mirror.commitBegins();
  mirror.commitEnded(600);
  EXPECT_EQ(measured.now().mirrored_bytes, 600);
  EXPECT_EQ(exact.now().mirrored_bytes, 600);
}

TEST(LinkEstimate, ApartByAQuarter) {
  const LinkModel link;
  LinkModel other = link;
  EXPECT_FALSE(differs_much(link, other));
  other.in_bytes_per_ns = 0.8 * link.in_bytes_per_ns;
  EXPECT_FALSE(differs_much(link, other));
  other.in_bytes_per_ns = 0.7 * link.in_bytes_per_ns;
  EXPECT_TRUE(differs_much(link, other));
  EXPECT_TRUE(differs_much(other, link));
  other = link;
  other.latency_ns = 4000;
  EXPECT_FALSE(differs_much(link, other));
  other.latency_ns = 3000;
  EXPECT_TRUE(differs_much(link, other));
}

} // namespace
} // namespace chameleon::memory
