// The option table: every option of torch_chameleon.config with its default,
// unit, environment variable and effect. This table is the truth; Python, the
// python/docs/configuration.md and error messages are made from it.
//
// Thread safety: all functions may be called from any thread. Values are read
// when they are used, so a change takes effect at the next use; keys marked
// `before_first_use` are fixed by freeze().
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "backend/runtime/result.h"
#include "backend/runtime/simulated/gpu_profiles.h"

namespace chameleon::runtime {

enum class OptionKind : std::uint8_t {
  kBytes,  // int, or text such as "512MiB", "8GiB", "1e9", or none
  kNumber, // positive real number, or none
  kCount,  // whole number
  kChoice, // one of `choices`
  kText,
};

struct OptionSpec {
  std::string_view key; // "hbm_budget"
  OptionKind kind;
  std::string_view default_text; // "" = none
  std::string_view environment;  // "CHAMELEON_HBM_BUDGET"
  std::string_view choices;      // "auto|cuda|cpu|simulated", or ""
  bool before_first_use;         // fixed once the device was used
  std::string_view help;         // one sentence for tables
  double minimum = 0;            // kNumber, kCount: what is allowed
  double maximum = 0;
  Error (*check)(std::string_view text) = nullptr; // kText
};

std::span<const OptionSpec> option_specs();
const OptionSpec* find_option(std::string_view key);

// Text form of the value in force; nullopt: none. REQUIRES: a known key.
std::optional<std::string> option_text(std::string_view key);
// Value of a kBytes option. nullopt: none ("derive it").
std::optional<std::size_t> option_bytes(std::string_view key);
std::optional<double> option_number(std::string_view key);

// Checks and stores. nullopt (and the text "none") sets "none" where the
// default is none, else the default. kInvalidArgument names key, value and
// what is allowed; for a frozen key, unless the value stays the same, it names
// the first use. On failure nothing has changed.
Error set_option(std::string_view key, std::optional<std::string_view> text);

// Reads CHAMELEON_<KEY> from the environment; call it once, at load. An empty
// variable counts as unset. A bad value is an Error naming the variable; the
// good ones are in force all the same.
Error load_options_from_environment();

// The device was used: `what` ("the first allocation") goes into messages.
void freeze_options(std::string_view what);
bool options_frozen();
// Everything back to its default and not frozen; for tests.
void reset_options_for_testing();

// The card of the option `simulated_gpu`, as it is now.
Result<GpuProfile> chosen_gpu_profile();

} // namespace chameleon::runtime
