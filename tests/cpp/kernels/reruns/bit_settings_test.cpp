// What an op that runs again finds in force, and who else may see it.
#include "kernels/reruns/bit_settings.h"

#include <atomic>
#include <functional>
#include <gtest/gtest.h>
#include <thread>
#include <vector>

#include <ATen/Parallel.h>
#include <c10/core/DefaultDtype.h>

namespace chameleon::kernels {
namespace {

at::Context& context() { return at::globalContext(); }

float half_of_a_denormal() {
  volatile float denormal = 1e-39F;
  return denormal * 0.5F;
}

// A setting that a user may change between an op and its re-run.
struct Setting {
  std::function<void(bool)> change; // to what it is at first, or otherwise
  std::function<bool()> is_changed;
};

const Setting kSettings[] = {
    {[](bool on) { context().setUserEnabledNNPACK(!on); },
     [] { return !context().userEnabledNNPACK(); }},
    {[](bool on) { context().setUserEnabledMkldnn(!on); },
     [] { return !context().userEnabledMkldnn(); }},
    {[](bool on) { context().setUserEnabledCuDNN(!on); },
     [] { return !context().userEnabledCuDNN(); }},
    {[](bool on) { context().setBenchmarkLimitCuDNN(on ? 3 : 10); },
     [] { return context().benchmarkLimitCuDNN() == 3; }},
    {[](bool on) { context().setDeterministicAlgorithms(on, false); },
     [] { return context().deterministicAlgorithms(); }},
    {[](bool on) {
       context().setFloat32Precision(
           at::Float32Backend::CUDA, at::Float32Op::MATMUL,
           on ? at::Float32Precision::TF32 : at::Float32Precision::IEEE);
     },
     [] {
       return context().float32Precision(at::Float32Backend::CUDA,
                                         at::Float32Op::MATMUL) ==
              at::Float32Precision::TF32;
     }},
    {[](bool on) {
       c10::set_default_dtype(
           c10::scalarTypeToTypeMeta(on ? c10::kDouble : c10::kFloat));
     },
     [] { return c10::get_default_dtype_as_scalartype() == c10::kDouble; }},
};

TEST(BitSettingsTest, AReRunFindsThemAsTheyWere) {
  for (const Setting& setting : kSettings) {
    ASSERT_FALSE(setting.is_changed());
    const BitSettings before = BitSettings::now();
    setting.change(true);
    ASSERT_TRUE(setting.is_changed());
    {
      const WithBitSettings with(before);
      EXPECT_FALSE(setting.is_changed());
    }
    EXPECT_TRUE(setting.is_changed()); // what the user has set stays
    setting.change(false);
  }
}

TEST(BitSettingsTest, DenormalsAreFlushedAsTheyWereInAnyThread) {
  if (!at::Context::setFlushDenormal(true)) {
    GTEST_SKIP() << "this processor has no such flag";
  }
  const BitSettings flushed = BitSettings::now();
  at::Context::setFlushDenormal(false);
  const BitSettings kept = BitSettings::now();
  EXPECT_FALSE(flushed == kept);
  const auto check = [&] {
    EXPECT_NE(half_of_a_denormal(), 0);
    {
      const WithBitSettings with(flushed);
      EXPECT_EQ(half_of_a_denormal(), 0);
    }
    EXPECT_NE(half_of_a_denormal(), 0);
    at::Context::setFlushDenormal(true);
    {
      const WithBitSettings with(kept);
      EXPECT_NE(half_of_a_denormal(), 0);
    }
    EXPECT_EQ(half_of_a_denormal(), 0);
    at::Context::setFlushDenormal(false);
  };
  check();
  std::thread(check).join();
}

// Threads that run ops again find their own settings, and the user's are there
// afterwards.
TEST(BitSettingsTest, ReRunsOfTwoThreadsDoNotSeeEachOthers) {
  const BitSettings first = BitSettings::now();
  context().setUserEnabledNNPACK(false);
  const BitSettings second = BitSettings::now();
  const bool users = false; // the latest
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (const bool enabled : {true, false, true, false}) {
    threads.emplace_back([&, enabled] {
      for (int i = 0; i < 300; ++i) {
        const WithBitSettings with(enabled ? first : second);
        for (int look = 0; look < 20; ++look) {
          if (context().userEnabledNNPACK() != enabled) ++wrong;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(context().userEnabledNNPACK(), users);
  context().setUserEnabledNNPACK(true);
}

} // namespace
} // namespace chameleon::kernels
