#include "backend/runtime/simulated/gpu_profiles.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <string>

#include "backend/runtime/options.h"

namespace chameleon::runtime {
namespace {

constexpr std::size_t kGiB = std::size_t{1} << 30;

std::string failure(const std::string& text) {
  const auto profile = parse_gpu_profile(text);
  return profile.ok() ? "no failure" : profile.error().message();
}

const std::string kAll =
    "name=mine, capability=8.9, multiprocessors=100, memory=10GiB, "
    "host_memory=20GiB, hbm_bandwidth=1TB/s, "
    "fp64=1TFLOP/s, fp32=2e12, tf32=3e12, fp16=4e12, bf16=0.005PFLOP/s, "
    "compute_fraction=0.5, bandwidth_fraction=1, launch_ns=2000, "
    "link_in=10GB/s, link_out=11e9, link_both=15GB/s, copy_latency_ns=500, "
    "flash_attention=1, efficient_attention=0";

TEST(GpuProfiles, Names) {
  std::string names;
  for (const GpuProfile& profile : gpu_profiles()) names += profile.name + " ";
  EXPECT_EQ(names,
            "h200 h100 a100-80gb a100-40gb l40s rtx4090 rtx5090 rtx3090 "
            "v100-16gb v100-32gb t4 a10 l4 rtx4080 rtx4070 ");
}

TEST(GpuProfiles, EveryFigureIsThere) {
  for (const GpuProfile& profile : gpu_profiles()) {
    EXPECT_GE(profile.memory_bytes, 12 * kGiB) << profile.name;
    EXPECT_GT(profile.host_memory_bytes, profile.memory_bytes) << profile.name;
    for (const double rate : profile.flops_per_s) {
      EXPECT_GT(rate, 0.25e12) << profile.name;
    }
    EXPECT_GT(profile.compute_fraction, 0.5);
    EXPECT_LE(profile.compute_fraction, 1);
    EXPECT_GT(profile.bandwidth_fraction, 0.5);
    EXPECT_LE(profile.bandwidth_fraction, 1);
    EXPECT_GE(
        profile.link_both_bytes_per_s,
        std::max(profile.link_in_bytes_per_s, profile.link_out_bytes_per_s));
    EXPECT_LE(profile.link_both_bytes_per_s,
              profile.link_in_bytes_per_s + profile.link_out_bytes_per_s);
  }
}

TEST(GpuProfiles, BeforeAmpereThereIsNoFlashAttention) {
  for (const GpuProfile& profile : gpu_profiles()) {
    const bool is_old =
        profile.name == "t4" || profile.name.starts_with("v100");
    EXPECT_NE(profile.flash_attention, is_old) << profile.name;
    EXPECT_EQ(profile.capability.major < 8, is_old) << profile.name;
    EXPECT_TRUE(profile.efficient_attention) << profile.name;
  }
}

TEST(GpuProfiles, EccInTheMemoryTakesASixteenth) {
  EXPECT_EQ(parse_gpu_profile("a10")->memory_bytes, 24 * kGiB / 16 * 15);
  EXPECT_EQ(parse_gpu_profile("l40s")->memory_bytes, 48 * kGiB / 16 * 15);
}

TEST(GpuProfiles, WhatKernelsReach) {
  const GpuProfile h200 = parse_gpu_profile("h200").value();
  EXPECT_DOUBLE_EQ(h200.flopsPerSecond(MathType::kBf16), 700e12);
  EXPECT_DOUBLE_EQ(h200.bytesPerSecond(), 4.0e12);
  const GpuProfile rtx4090 = parse_gpu_profile("rtx4090").value();
  EXPECT_DOUBLE_EQ(rtx4090.flopsPerSecond(MathType::kBf16), 160e12);
  EXPECT_DOUBLE_EQ(rtx4090.bytesPerSecond(), 1.0e12);
  EXPECT_EQ(rtx4090.link_both_bytes_per_s, 40e9);
}

TEST(GpuProfiles, WhatJoinsGpus) {
  const GpuProfile h100 = parse_gpu_profile("h100").value();
  EXPECT_DOUBLE_EQ(h100.nvlink_bytes_per_s, 370.8e9);
  EXPECT_TRUE(h100.nvlink_reduces);
  EXPECT_DOUBLE_EQ(h100.network_bytes_per_s, 50e9);
  const GpuProfile rtx4090 = parse_gpu_profile("rtx4090").value();
  EXPECT_EQ(rtx4090.nvlink_bytes_per_s, 0);
  EXPECT_FALSE(rtx4090.peer_access);
  EXPECT_DOUBLE_EQ(rtx4090.network_bytes_per_s, 1.25e9);
  EXPECT_TRUE(parse_gpu_profile("l40s")->peer_access);
  const GpuProfile mine = parse_gpu_profile(
                              "base=rtx4090, nvlink=56GB/s, nvlink_reduces=0, "
                              "peer_access=1, network=12.5GB/s")
                              .value();
  EXPECT_EQ(mine.nvlink_bytes_per_s, 56e9);
  EXPECT_TRUE(mine.peer_access);
  EXPECT_EQ(mine.network_bytes_per_s, 12.5e9);
  // Who gives all other figures may leave them out.
  EXPECT_EQ(parse_gpu_profile(kAll)->nvlink_bytes_per_s, 0);
  EXPECT_EQ(parse_gpu_profile(kAll)->network_bytes_per_s, 1.25e9);
}

TEST(GpuProfiles, AllFiguresOfAUser) {
  const GpuProfile mine = parse_gpu_profile(kAll).value();
  EXPECT_EQ(mine.name, "mine");
  EXPECT_EQ(mine.capability.major, 8);
  EXPECT_EQ(mine.capability.minor, 9);
  EXPECT_EQ(mine.multiprocessors, 100);
  EXPECT_EQ(mine.memory_bytes, 10 * kGiB);
  EXPECT_EQ(mine.host_memory_bytes, 20 * kGiB);
  EXPECT_EQ(mine.hbm_bytes_per_s, 1e12);
  EXPECT_EQ(mine.flops_per_s,
            (std::array<double, kMathTypes>{1e12, 2e12, 3e12, 4e12, 5e12}));
  EXPECT_EQ(mine.compute_fraction, 0.5);
  EXPECT_EQ(mine.bandwidth_fraction, 1);
  EXPECT_EQ(mine.launch_ns, 2000);
  EXPECT_EQ(mine.link_in_bytes_per_s, 10e9);
  EXPECT_EQ(mine.link_out_bytes_per_s, 11e9);
  EXPECT_EQ(mine.link_both_bytes_per_s, 15e9);
  EXPECT_EQ(mine.copy_latency_ns, 500);
  EXPECT_TRUE(mine.flash_attention);
  EXPECT_FALSE(mine.efficient_attention);
}

TEST(GpuProfiles, SomeFiguresOverABase) {
  const GpuProfile mine =
      parse_gpu_profile(" memory = 96GiB,base=h200 ").value();
  EXPECT_EQ(mine.memory_bytes, 96 * kGiB);
  EXPECT_EQ(mine.name, "h200");
  EXPECT_EQ(mine.launch_ns, 3000);
}

TEST(GpuProfiles, RefusalsInOneSentence) {
  EXPECT_EQ(failure("h300"),
            "must be one of h200, h100, a100-80gb, a100-40gb, l40s, rtx4090, "
            "rtx5090, rtx3090, v100-16gb, v100-32gb, t4, a10, l4, rtx4080, "
            "rtx4070, or figures such as \"base=h200, "
            "memory=96GiB\"");
  EXPECT_EQ(failure(""), failure("h300"));
  EXPECT_EQ(failure("base=h300"),
            "base = \"h300\" must be one of h200, h100, a100-80gb, a100-40gb, "
            "l40s, rtx4090, rtx5090, rtx3090, v100-16gb, v100-32gb, t4, a10, "
            "l4, rtx4080, rtx4070");
  EXPECT_EQ(failure("base=h200, memroy=1GiB").substr(0, 32),
            "there is no figure \"memroy\"; the");
  EXPECT_EQ(failure("base=h200, memory=1GiB, memory=2GiB"),
            "\"memory\" is given twice");
  EXPECT_EQ(failure("base=h200, memory=96W"),
            "memory = \"96W\" must be bytes, such as \"96GiB\"");
  EXPECT_EQ(failure("base=h200, link_in=7us"),
            "link_in = \"7us\" must be bytes per second from 1e6 to 1e18, such "
            "as 55e9 or "
            "\"55GB/s\"");
  EXPECT_NE(failure("base=h200, bf16=1e300PFLOP/s"), ""); // infinite
  EXPECT_NE(failure("base=h200, bf16=1e9PFLOP/s"), "");
  EXPECT_EQ(failure("base=h200, bf16=1e3PFLOP/s"), "no failure");
  EXPECT_EQ(failure("base=h200, bf16=989GB/s"),
            "bf16 = \"989GB/s\" must be floating point operations per second "
            "from 1e6 to 1e18, "
            "such as 989e12 or \"989TFLOP/s\"");
  // Of memory G is GiB; of a rate it would be 1e9, so nobody guesses.
  EXPECT_EQ(failure("base=h200, memory=96G"), "no failure");
  EXPECT_NE(failure("base=h200, link_in=55G/s"), "no failure");
  EXPECT_NE(failure("base=h200, link_in=55g"), "no failure");
  EXPECT_EQ(failure("base=h200, compute_fraction=70"),
            "compute_fraction = \"70\" must be a fraction, more than 0 and at "
            "most 1");
  EXPECT_EQ(failure("base=h200, launch_ns=3us"),
            "launch_ns = \"3us\" must be nanoseconds, a number from 0 to 1e9");
  EXPECT_EQ(failure("base=h200, flash_attention=yes"),
            "flash_attention = \"yes\" must be 0 or 1");
  EXPECT_EQ(failure("base=h200, link_both=200GB/s"),
            "link_both must lie between the larger of link_in and link_out and "
            "their sum");
  EXPECT_EQ(failure("memory=1GiB, host_memory=1GiB").substr(0, 27),
            "missing: hbm_bandwidth, fp6");
}

TEST(GpuProfiles, TheOption) {
  reset_options_for_testing();
  EXPECT_EQ(chosen_gpu_profile().value().name, "h200");
  ASSERT_TRUE(set_option("simulated_gpu", "base=l40s, memory=24GiB").ok());
  EXPECT_EQ(chosen_gpu_profile().value().memory_bytes, 24 * kGiB);
  const Error error = set_option("simulated_gpu", "base=l40s, memory=24W");
  ASSERT_FALSE(error.ok());
  EXPECT_EQ(error.message(),
            "simulated_gpu = \"base=l40s, memory=24W\": memory = \"24W\" must "
            "be bytes, such as \"96GiB\"");
  EXPECT_EQ(chosen_gpu_profile().value().name, "l40s");
  reset_options_for_testing();
}

} // namespace
} // namespace chameleon::runtime
