#include "tests/cpp/fuzz/parsers.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "backend/runtime/byte_size.h"
#include "backend/runtime/check.h"
#include "backend/runtime/cpu/cpu_adversary.h"
#include "backend/runtime/options.h"
#include "backend/runtime/quote.h"
#include "backend/runtime/simulated/gpu_profiles.h"
#include "backend/runtime/simulated/simulated_runtime.h"
#include "memory/policy/what_if.h"
#include "profiler/trace/trace.h"
#include "profiler/trace/trace_reader.h"
#include "profiler/trace/trace_writer.h"
#include "tests/cpp/support/host_slab.h"

namespace chameleon::fuzz {
namespace {

using runtime::Error;

constexpr std::size_t kMostSentenceBytes = 1000;
constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 62;

void check_sentence(const Error& error) {
  const std::string& text = error.message();
  CHAMELEON_CHECK(!text.empty() && text.size() <= kMostSentenceBytes,
                  "an error is a sentence");
  CHAMELEON_CHECK(runtime::is_utf8(text), "an error is text");
  CHAMELEON_CHECK(
      std::none_of(text.begin(), text.end(),
                   [](char c) { return static_cast<unsigned char>(c) < 0x20; }),
      "an error has one line");
}

// The first byte chooses the key.
void parse_option(std::string_view text) {
  if (text.empty()) return;
  const auto specs = runtime::option_specs();
  const runtime::OptionSpec& spec =
      specs[static_cast<unsigned char>(text.front()) % specs.size()];
  text.remove_prefix(1);
  runtime::reset_options_for_testing();
  const std::optional<std::string> before = runtime::option_text(spec.key);
  if (const Error error = runtime::set_option(spec.key, text)) {
    check_sentence(error);
    CHAMELEON_CHECK(runtime::option_text(spec.key) == before,
                    "a refused value changes nothing");
    return;
  }
  const std::optional<std::string> now = runtime::option_text(spec.key);
  if (now) {
    CHAMELEON_CHECK(runtime::set_option(spec.key, *now).ok() &&
                        runtime::option_text(spec.key) == now,
                    "what an option says can be set again");
  }
  if (spec.kind == runtime::OptionKind::kBytes) {
    const auto bytes = runtime::option_bytes(spec.key);
    CHAMELEON_CHECK(!bytes || (*bytes > 0 && *bytes <= kMostBytes),
                    "bytes are in their range");
  }
  if (spec.kind == runtime::OptionKind::kNumber) {
    const auto number = runtime::option_number(spec.key);
    CHAMELEON_CHECK(
        !number || (*number >= spec.minimum && *number <= spec.maximum),
        "a number is in its range");
  }
}

void parse_key(std::string_view text) {
  if (const Error error = runtime::set_option(text, "1")) {
    check_sentence(error);
  }
  runtime::reset_options_for_testing();
}

void parse_bytes(std::string_view text) {
  runtime::Result<std::size_t> bytes = runtime::parse_bytes(text);
  if (!bytes.ok()) return check_sentence(bytes.error());
  CHAMELEON_CHECK(*bytes <= kMostBytes, "bytes are in their range");
  (void)runtime::format_bytes(*bytes);
}

// What is accepted carries a device: some work takes a finite time on it.
void parse_profile(std::string_view text) {
  auto profile = runtime::parse_gpu_profile(text);
  if (!profile.ok()) return check_sentence(profile.error());
  const auto good = [](double figure) {
    return std::isfinite(figure) && figure > 0;
  };
  CHAMELEON_CHECK(good(profile->hbm_bytes_per_s) &&
                      good(profile->link_in_bytes_per_s) &&
                      good(profile->link_out_bytes_per_s) &&
                      good(profile->link_both_bytes_per_s) &&
                      std::all_of(profile->flops_per_s.begin(),
                                  profile->flops_per_s.end(), good),
                  "figures are finite");
  const auto made = runtime::make_simulated_runtime(*profile);
  constexpr std::size_t kBytes = std::size_t{1} << 20;
  auto range = made->reserve(kBytes);
  auto host = support::allocate_slab(*made, kBytes);
  if (!range.ok() || !host.ok()) return; // the profile has less
  const runtime::Copy copy{*range, *host, kBytes};
  auto copied = made->copy(made->copyInStream(), {&copy, 1});
  auto event = made->record(made->copyInStream());
  CHAMELEON_CHECK(copied.ok() && event.ok() && made->synchronize(*event).ok(),
                  "a copy runs");
  CHAMELEON_CHECK(made->now_ns() >= 0, "time goes on");
  support::free_slab(*made, *host, kBytes);
}

void parse_adversary(std::string_view text) {
  const auto adversary = runtime::parse_cpu_adversary(text);
  if (!adversary.ok()) check_sentence(adversary.error());
}

// A trace that can be read can be written, read again, and planned for.
void parse_trace(std::string_view text) {
  auto trace = profiler::read_trace(text);
  if (!trace.ok()) return check_sentence(trace.error());
  auto again = profiler::read_trace(profiler::write_trace(*trace));
  CHAMELEON_CHECK(again.ok() && again->ops.size() == trace->ops.size() &&
                      again->step_ends == trace->step_ends,
                  "a trace survives being written");
  for (std::size_t step = 0; step < trace->step_ends.size(); ++step) {
    const auto cycle = profiler::make_cycle(*trace, step);
    if (!cycle.ok()) check_sentence(cycle.error());
  }
  constexpr std::array<std::uint64_t, 4> kBudgets{1, 1 << 20, 1 << 30,
                                                  UINT64_MAX};
  const auto what = memory::what_if(*trace, kBudgets);
  if (!what.ok()) check_sentence(what.error());
}

const std::string kTrace =
    R"({"trace":1,"name":"x","hbm_budget":4096,"bw_in":1e9,"bw_out":1e9,)"
    R"("bw_both":1.5e9,"copy_latency_ns":7})"
    "\n"
    R"({"op":"mm","t":0,"dur_ns":5,"in":[[1,512],[4,1024]],)"
    R"("out":[[2,1024]],"write":[2],"free":[]})"
    "\n"
    R"({"op":"relu","t":5,"dur_ns":50,"in":[[2,1024]],"out":[[3,2048]],)"
    R"("write":[3],"free":[2],"workspace":512})"
    "\n"
    R"({"op":"add_","t":60,"dur_ns":1,"in":[[1,512],[3,2048],[4,1024]],)"
    R"("out":[[5,512]],"write":[1,4,5],"free":[3,5],"over":[4],"fresh":[5],"may_rerun":1})"
    "\n{\"step\":1}\n";

const std::vector<std::string> kNumbers{"0",
                                        "-1",
                                        "1e308",
                                        "1e-320",
                                        "nan",
                                        "inf",
                                        "2^62",
                                        "1.5",
                                        "1e",
                                        "0x10",
                                        "4611686018427387905",
                                        "18446744073709551616",
                                        "1000000000000",
                                        ".",
                                        "+7"};

std::vector<std::string> with_numbers(std::vector<std::string> words) {
  words.insert(words.end(), kNumbers.begin(), kNumbers.end());
  return words;
}

} // namespace

std::span<const Parser> parsers() {
  static const auto* const all = new std::vector<Parser>{
      {"option",
       &parse_option,
       {std::string(1, '\0') + "512MiB",
        "\x01"
        "4.0",
        "\x03"
        "cpu",
        "\x04"
        "base=h200, memory=96GiB",
        "\x06"
        "lru",
        "\x09"
        "100"},
       with_numbers({"none", "GiB", "auto", "simulated", "base=", " "})},
      {"key", &parse_key, {"hbm_budget", "debug", "policy"}, {"_", "budget"}},
      {"bytes",
       &parse_bytes,
       {"8GiB", "512", " 0.5 tb"},
       with_numbers({"KiB", "MB", "TiB", "B", "e"})},
      {"profile",
       &parse_profile,
       {"h200", "base=h200, memory=96GiB",
        "base=rtx4090,link_in=1GB/s,link_out=2GB/s,link_both=2.5GB/s,"
        "launch_ns=0,flash_attention=0",
        "base=a100-40gb, fp32=1TFLOP/s, compute_fraction=0.5, name=mine"},
       with_numbers({"=", ",", "TFLOP/s", "PFLOP/s", "GB/s", "TiB",
                     "host_memory=", "hbm_bandwidth=", "fp16=", "tf32=",
                     "bandwidth_fraction=", "copy_latency_ns=", "link_in=",
                     "link_out=", "link_both=", "memory="})},
      {"adversary",
       &parse_adversary,
       {"seed=3,copies=late,compute_delay=8,poison=1"},
       with_numbers({"copies=", "on_await", "reordered", ",", "="})},
      {"trace",
       &parse_trace,
       {kTrace},
       with_numbers({"\"in\":", "\"out\":", "\"write\":", "\"free\":",
                     "\"fresh\":", "\"over\":", "\"workspace\":", "[[1,512]]",
                     "\\u0041", "\n", "{\"step\":2}\n", "]", "[", "}", ","})}};
  return *all;
}

} // namespace chameleon::fuzz
