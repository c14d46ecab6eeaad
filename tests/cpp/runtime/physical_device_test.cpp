#include "backend/runtime/physical_device.h"

#include <gtest/gtest.h>
#include <string>

#include "backend/runtime/options.h"
#ifdef CHAMELEON_WITH_CUDA
#include "tests/cpp/support/emulated_driver.h"
#endif
#include "tests/cpp/support/refusing_runtime.h"

namespace chameleon::runtime {
namespace {

class PhysicalDevice : public testing::Test {
 protected:
  void SetUp() override { reset_options_for_testing(); }
  void TearDown() override {
    reset_options_for_testing();
    set_cpu_runtime_options({});
    set_cuda_support(std::nullopt);
  }
};

TEST_F(PhysicalDevice, AutoAndCpu) {
  for (const char* kind : {"auto", "cpu"}) {
    ASSERT_TRUE(set_option("physical_device", kind).ok());
    const auto runtime = make_runtime(0);
    ASSERT_TRUE(runtime.ok());
    EXPECT_EQ(runtime.value()->name(), "cpu");
    EXPECT_FALSE(runtime.value()->checksCallers());
  }
}

TEST_F(PhysicalDevice, DebuggingMakesTheCpuAnAdversary) {
  EXPECT_EQ(debug_interval(), 0U);
  ASSERT_TRUE(set_option("debug", "100").ok());
  EXPECT_EQ(debug_interval(), 100U);
  const auto runtime = make_runtime(0);
  ASSERT_TRUE(runtime.ok());
  EXPECT_TRUE(runtime.value()->checksCallers());
  ASSERT_TRUE(set_option("debug", "0.5").ok());
  EXPECT_EQ(debug_interval(), 1U);
}

TEST_F(PhysicalDevice, WhatIsNotThereSaysSo) {
  ASSERT_TRUE(set_option("physical_device", "cuda").ok());
  const auto runtime = make_runtime(0);
  ASSERT_FALSE(runtime.ok());
  EXPECT_EQ(runtime.error().code(), ErrorCode::kUnavailable);
  EXPECT_EQ(runtime.error().message(),
            "physical_device = \"cuda\" is not in this build; set it to "
            "\"auto\", \"cpu\" or \"simulated\"");
}

TEST_F(PhysicalDevice, SimulatedHasTheProfilesMemory) {
  ASSERT_TRUE(set_option("physical_device", "simulated").ok());
  ASSERT_TRUE(set_option("simulated_gpu", "rtx4090").ok());
  const auto runtime = make_runtime(0);
  ASSERT_TRUE(runtime.ok());
  constexpr std::size_t kGiB = std::size_t{1} << 30;
  EXPECT_EQ(runtime.value()->name(), "simulated");
  EXPECT_EQ(default_hbm_budget_bytes(*runtime.value()), 24 * kGiB);
  EXPECT_EQ(default_host_budget_bytes(*runtime.value(), 24 * kGiB),
            64 * kGiB / 100 * 80);
}

TEST_F(PhysicalDevice, Indices) {
  for (int index : {-1, physical_device_count()}) {
    const auto runtime = make_runtime(index);
    ASSERT_FALSE(runtime.ok());
    EXPECT_EQ(runtime.error().code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(runtime.error().message(),
              "there is no device chameleon:" + std::to_string(index) +
                  "; there is 1");
  }
}

TEST_F(PhysicalDevice, WithoutAGpuThereIsOneForEachRank) {
  const LocalRanks ranks{.rank = 1, .count = 3};
  for (const char* kind : {"cpu", "simulated"}) {
    ASSERT_TRUE(set_option("physical_device", kind).ok());
    EXPECT_EQ(physical_device_count(ranks), 3);
    EXPECT_EQ(make_runtime(2, ranks).value()->name(), kind);
    EXPECT_EQ(make_runtime(3, ranks).error().message(),
              "there is no device chameleon:3; there are 3");
  }
  ASSERT_TRUE(set_option("physical_device", "cpu").ok());
  CpuRuntimeOptions several;
  several.devices = 4;
  set_cpu_runtime_options(several);
  EXPECT_EQ(physical_device_count(ranks), 4);
}

TEST_F(PhysicalDevice, TestsSetAnAdversary) {
  set_cpu_runtime_options({parse_cpu_adversary("poison=1").value(), {}});
  EXPECT_TRUE(make_runtime(0).value()->checksCallers());
}

#ifdef CHAMELEON_WITH_CUDA
TEST_F(PhysicalDevice, CudaWhereItIsSupported) {
  support::EmulatedDriverOptions gpus;
  gpus.devices = 3;
  gpus.device_bytes = std::size_t{100} << 20;
  support::EmulatedDriver emulated(gpus);
  const CudaDriver driver = emulated.table();
  CudaSupport offer;
  offer.driver = &driver;
  offer.device_count = []() noexcept { return 3; };
  set_cuda_support(offer);
  for (const char* kind : {"auto", "cuda"}) {
    ASSERT_TRUE(set_option("physical_device", kind).ok());
    EXPECT_EQ(physical_device_count(), 3);
    EXPECT_EQ(physical_device_count({.rank = 0, .count = 8}), 3);
    const auto runtime = make_runtime(2);
    ASSERT_TRUE(runtime.ok());
    EXPECT_EQ(runtime.value()->name(), "cuda");
    EXPECT_EQ(default_hbm_budget_bytes(*runtime.value()),
              (std::size_t{100} << 20) / 100 * 90);
    EXPECT_FALSE(make_runtime(3).ok());
  }
  ASSERT_TRUE(set_option("physical_device", "cpu").ok());
  EXPECT_EQ(physical_device_count(), 1);
  EXPECT_EQ(make_runtime(0).value()->name(), "cpu");
}

TEST_F(PhysicalDevice, AutoIsCpuWhereNoGpuWorks) {
  support::EmulatedDriver emulated;
  const CudaDriver driver = emulated.table();
  emulated.failCall(support::DriverCall::cuDevicePrimaryCtxRetain, 1,
                    CUDA_ERROR_NO_DEVICE, /*for_ever=*/true);
  CudaSupport offer;
  offer.driver = &driver;
  set_cuda_support(offer);
  EXPECT_EQ(make_runtime(0).value()->name(), "cpu");
  ASSERT_TRUE(set_option("physical_device", "cuda").ok());
  const auto runtime = make_runtime(0);
  ASSERT_FALSE(runtime.ok());
  EXPECT_EQ(runtime.error().code(), ErrorCode::kDevice);
}
#endif

// A runtime that only says what memory there is.
class Sizes final : public support::RefusingRuntime {
 public:
  Sizes(std::string_view name, std::size_t device, std::size_t host)
      : name_(name), device_(device), host_(host) {}
  std::string_view name() const noexcept override { return name_; }
  MemoryInfo deviceMemory() const noexcept override {
    return {device_, 2 * device_};
  }
  MemoryInfo hostMemory() const noexcept override { return {host_, 2 * host_}; }

 private:
  std::string_view name_;
  std::size_t device_;
  std::size_t host_;
};

TEST_F(PhysicalDevice, DefaultBudgets) {
  constexpr std::size_t kGiB = std::size_t{1} << 30;
  const Sizes gpu("cuda", 100 * kGiB, 200 * kGiB);
  EXPECT_EQ(default_hbm_budget_bytes(gpu), 100 * kGiB / 100 * 90);
  EXPECT_EQ(default_host_budget_bytes(gpu, 90 * kGiB), 200 * kGiB / 100 * 80);

  const Sizes cpu("cpu", 10 * kGiB, 10 * kGiB);
  EXPECT_EQ(default_hbm_budget_bytes(cpu), kGiB);
  EXPECT_EQ(default_host_budget_bytes(cpu, kGiB), 10 * kGiB / 100 * 80 - kGiB);
  // Never nothing, even if the device budget is more than the machine has.
  EXPECT_EQ(default_host_budget_bytes(cpu, 64 * kGiB), 10 * kGiB / 100 * 10);
}

TEST_F(PhysicalDevice, DefaultBudgetsAreShared) {
  constexpr std::size_t kGiB = std::size_t{1} << 30;
  const Sizes gpu("cuda", 100 * kGiB, 200 * kGiB);
  EXPECT_EQ(default_hbm_budget_bytes(gpu, 2), 100 * kGiB / 100 * 90 / 2);
  EXPECT_EQ(default_host_budget_bytes(gpu, 90 * kGiB, 8),
            200 * kGiB / 8 / 100 * 80);

  // All of them together take what one would.
  const Sizes cpu("cpu", 10 * kGiB, 10 * kGiB);
  EXPECT_EQ(default_hbm_budget_bytes(cpu, 4), kGiB / 4);
  EXPECT_EQ(default_host_budget_bytes(cpu, kGiB / 4, 4),
            10 * kGiB / 4 / 100 * 80 - kGiB / 4);
  EXPECT_EQ(default_host_budget_bytes(cpu, 64 * kGiB, 4),
            10 * kGiB / 4 / 100 * 10);
}

TEST_F(PhysicalDevice, Sharers) {
  const Sizes gpu("cuda", 0, 0);
  const Sizes cpu("cpu", 0, 0);
  ASSERT_TRUE(set_option("physical_device", "simulated").ok());
  const auto simulated = make_runtime(0).value();
  struct Case {
    const DeviceRuntime* runtime;
    int ranks, devices, of_device_memory, of_host_memory;
  };
  for (const Case& it : {
           Case{&gpu, 1, 1, 1, 1},
           Case{&gpu, 1, 4, 1, 4}, // any of its devices
           Case{&gpu, 8, 8, 1, 8}, // its own
           Case{&gpu, 2, 8, 1, 2},
           Case{&gpu, 4, 2, 2, 4},
           Case{&cpu, 1, 1, 1, 1},
           Case{&cpu, 1, 2, 1, 2},
           Case{&cpu, 2, 2, 2, 2},
           Case{simulated.get(), 2, 2, 1, 2},
       }) {
    const MemorySharers sharers =
        memory_sharers(*it.runtime, {.rank = 0, .count = it.ranks}, it.devices);
    const std::string where = std::string(it.runtime->name()) + ", " +
                              std::to_string(it.ranks) + " ranks, " +
                              std::to_string(it.devices) + " devices";
    EXPECT_EQ(sharers.of_device_memory, it.of_device_memory) << where;
    EXPECT_EQ(sharers.of_host_memory, it.of_host_memory) << where;
  }
}

} // namespace
} // namespace chameleon::runtime
