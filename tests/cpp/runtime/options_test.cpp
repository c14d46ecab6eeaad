#include "backend/runtime/options.h"

#include <cstdlib>
#include <gtest/gtest.h>
#include <string>
#include <thread>
#include <vector>

namespace chameleon::runtime {
namespace {

class Options : public testing::Test {
 protected:
  void SetUp() override { reset_options_for_testing(); }
  void TearDown() override {
    for (const OptionSpec& spec : option_specs()) {
      unsetenv(std::string(spec.environment).c_str());
    }
    reset_options_for_testing();
  }
};

std::string failure(std::string_view key, std::string_view text) {
  const Error error = set_option(key, text);
  if (error.ok()) return "";
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  return error.message();
}

TEST_F(Options, TableIsConsistent) {
  for (const OptionSpec& spec : option_specs()) {
    EXPECT_EQ(find_option(spec.key), &spec);
    std::string environment = "CHAMELEON_";
    for (char c : spec.key) {
      environment += static_cast<char>(std::toupper(c));
    }
    EXPECT_EQ(spec.environment, environment);
    EXPECT_FALSE(spec.help.empty());
    EXPECT_EQ(spec.choices.empty(), spec.kind != OptionKind::kChoice);
    // Reading the default checks that it is allowed.
    EXPECT_EQ(option_text(spec.key).value_or(""), spec.default_text);
  }
  EXPECT_EQ(find_option("hbm_bugdet"), nullptr);
}

TEST_F(Options, Defaults) {
  EXPECT_EQ(option_bytes("hbm_budget"), std::nullopt);
  EXPECT_EQ(option_bytes("host_budget"), std::nullopt);
  EXPECT_EQ(option_number("oversubscription"), 4.0);
  EXPECT_EQ(option_text("physical_device"), "auto");
  EXPECT_EQ(option_text("policy"), "forecast");
}

TEST_F(Options, SetAndUnset) {
  ASSERT_TRUE(set_option("hbm_budget", " 512MiB ").ok());
  EXPECT_EQ(option_bytes("hbm_budget"), 512u << 20);
  EXPECT_EQ(option_text("hbm_budget"), "512MiB");
  ASSERT_TRUE(set_option("hbm_budget", std::nullopt).ok());
  EXPECT_EQ(option_bytes("hbm_budget"), std::nullopt);
  ASSERT_TRUE(set_option("hbm_budget", "1048576").ok());
  ASSERT_TRUE(set_option("hbm_budget", "None").ok());
  EXPECT_EQ(option_text("hbm_budget"), std::nullopt);

  ASSERT_TRUE(set_option("oversubscription", "1.5").ok());
  EXPECT_EQ(option_number("oversubscription"), 1.5);
  ASSERT_TRUE(set_option("oversubscription", std::nullopt).ok());
  EXPECT_EQ(option_number("oversubscription"), 4.0);
}

TEST_F(Options, RefusalsNameKeyValueAndWhatIsAllowed) {
  EXPECT_EQ(failure("oversubscription", "0.5"),
            "oversubscription = \"0.5\": must be a number from 1 to 1e+06");
  EXPECT_EQ(failure("physical_device", "tpu"),
            "physical_device = \"tpu\": must be one of auto, cuda, cpu, "
            "simulated");
  EXPECT_EQ(failure("policy", "belady"),
            "policy = \"belady\": must be one of forecast, lru");
  EXPECT_EQ(failure("hbm_budget", "0"),
            "hbm_budget = \"0\": must be more than 0 bytes");
  EXPECT_EQ(failure("hbm_budget", "8 potatoes"),
            "hbm_budget = \"8 potatoes\": must be a number of bytes, or text "
            "such as \"512MiB\" or \"8GiB\" (units: B, KB, MB, GB, TB, KiB, "
            "MiB, GiB, TiB)");
  EXPECT_EQ(failure("hbm_bugdet", "1GiB"),
            "there is no option \"hbm_bugdet\"; there are hbm_budget, "
            "oversubscription, host_budget, physical_device, simulated_gpu, "
            "simulated_reads, simulated_share, policy, recompute, step_marks, "
            "max_slowdown, compile, mirror_steps, debug");
  for (const char* text : {"0", "1.5", "x", "-1"}) {
    EXPECT_EQ(failure("mirror_steps", text),
              "mirror_steps = \"" + std::string(text) +
                  "\": must be a whole number from 1 to 1e+09");
  }
  for (const char* text : {"nan", "inf", "-2", "+4", "1e999", "4x", ""}) {
    EXPECT_NE(failure("oversubscription", text), "") << text;
  }
  EXPECT_EQ(option_number("oversubscription"), 4.0);
  EXPECT_EQ(option_bytes("hbm_budget"), std::nullopt);
}

TEST_F(Options, FreezeFixesSomeKeysOnly) {
  EXPECT_FALSE(options_frozen());
  ASSERT_TRUE(set_option("physical_device", "cpu").ok());
  freeze_options("the first allocation");
  freeze_options("something later");
  EXPECT_TRUE(options_frozen());
  EXPECT_EQ(failure("physical_device", "cuda"),
            "physical_device = \"cuda\": it was fixed as \"cpu\" when the "
            "device was first used (the first allocation); set it before "
            "that");
  EXPECT_EQ(option_text("physical_device"), "cpu");
  EXPECT_EQ(failure("physical_device", "cpu"), ""); // no change
  EXPECT_NE(failure("physical_device", "none"), "");
  EXPECT_EQ(failure("hbm_budget", "1GiB"), "");
  EXPECT_EQ(failure("oversubscription", "2"), "");
}

TEST_F(Options, Environment) {
  setenv("CHAMELEON_HBM_BUDGET", "2GiB", 1);
  setenv("CHAMELEON_HOST_BUDGET", "", 1);
  setenv("CHAMELEON_OVERSUBSCRIPTION", "lots", 1);
  setenv("CHAMELEON_POLICY", "lru", 1);
  const Error error = load_options_from_environment();
  ASSERT_FALSE(error.ok());
  EXPECT_EQ(error.message(),
            "environment variable CHAMELEON_OVERSUBSCRIPTION: "
            "oversubscription = \"lots\": must be a number from 1 to 1e+06");
  EXPECT_EQ(option_bytes("hbm_budget"), std::size_t{2} << 30);
  EXPECT_EQ(option_bytes("host_budget"), std::nullopt);
  EXPECT_EQ(option_number("oversubscription"), 4.0);
}

TEST_F(Options, Threads) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t] {
      for (int i = 0; i < 200; ++i) {
        const std::string text = std::to_string(1 + (t + i) % 7) + "MiB";
        EXPECT_TRUE(set_option("hbm_budget", text).ok());
        const auto bytes = option_bytes("hbm_budget");
        EXPECT_TRUE(bytes && *bytes % (1u << 20) == 0);
        EXPECT_EQ(option_number("oversubscription"), 4.0);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

} // namespace
} // namespace chameleon::runtime
