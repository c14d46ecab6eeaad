#include "backend/runtime/options.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <utility>

#include "backend/runtime/byte_size.h"
#include "backend/runtime/check.h"
#include "backend/runtime/quote.h"
#include "backend/runtime/ranked_mutex.h"

namespace chameleon::runtime {

namespace {

Error check_gpu(std::string_view text) {
  Result<GpuProfile> profile = parse_gpu_profile(text);
  return profile.ok() ? Error() : profile.takeError();
}

// One row an option; everything else follows from it.
constexpr std::array kSpecs = {
    OptionSpec{"hbm_budget", OptionKind::kBytes, "", "CHAMELEON_HBM_BUDGET", "",
               false,
               "Device memory that tensors may occupy at a time; none: 90 % of "
               "free HBM (cuda), 1 GiB (cpu), the card's memory (simulated). "
               "Processes that torchrun starts share it, where they share the "
               "memory (cpu, one GPU)."},
    OptionSpec{"oversubscription", OptionKind::kNumber, "4.0",
               "CHAMELEON_OVERSUBSCRIPTION", "", false,
               "Tensor memory that may be live at a time, as a multiple of "
               "hbm_budget.",
               1.0, 1e6},
    OptionSpec{"host_budget", OptionKind::kBytes, "", "CHAMELEON_HOST_BUDGET",
               "", false,
               "Hard cap on host memory for evicted tensors; none: 80 % of "
               "what is available, and of what the machine gains later "
               "(simulated: of the profile's host). Processes that torchrun "
               "starts on one machine share it."},
    OptionSpec{"physical_device", OptionKind::kChoice, "auto",
               "CHAMELEON_PHYSICAL_DEVICE", "auto|cuda|cpu|simulated", true,
               "What carries the device."},
    OptionSpec{"simulated_gpu", OptionKind::kText, "h200",
               "CHAMELEON_SIMULATED_GPU", "", true,
               "Which GPU is simulated: h200, h100, a100-80gb, a100-40gb, "
               "l40s, rtx4090, rtx5090, rtx3090, v100-16gb, v100-32gb, t4, "
               "a10, l4, rtx4080, rtx4070, or figures such as "
               "\"base=h200, memory=96GiB\" (in Python: a dict).",
               0, 0, &check_gpu},
    OptionSpec{"simulated_reads", OptionKind::kChoice, "zeros",
               "CHAMELEON_SIMULATED_READS", "zeros|raise", false,
               "What reading values from a simulated device does: it has "
               "none."},
    OptionSpec{"simulated_share", OptionKind::kNumber, "1",
               "CHAMELEON_SIMULATED_SHARE", "", false,
               "Where a size depends on values (`nonzero`, masks, `unique`), "
               "which a simulated device does not have: the fraction of the "
               "largest size that is taken.",
               1e-9, 1},
    OptionSpec{
        "policy", OptionKind::kChoice, "forecast", "CHAMELEON_POLICY",
        "forecast|lru", false,
        "What chooses which tensors leave device memory: `forecast` plans "
        "ahead from what was learned of the step; `lru` the least recently "
        "used."},
    OptionSpec{"recompute", OptionKind::kChoice, "auto", "CHAMELEON_RECOMPUTE",
               "auto|off", false,
               "Whether plans may drop tensors and run again the ops that made "
               "them, where that is faster than to move them."},
    OptionSpec{"step_marks", OptionKind::kChoice, "auto",
               "CHAMELEON_STEP_MARKS", "auto|manual|off", false,
               "What ends a step of the training: `auto` the optimizer's step "
               "(a backward pass where there is none), or "
               "torch_chameleon.step() where it is called; `manual` "
               "only the latter; `off` neither: steps are found where ops "
               "repeat."},
    OptionSpec{"max_slowdown", OptionKind::kNumber, "",
               "CHAMELEON_MAX_SLOWDOWN", "", false,
               "As many times its time without waits for bytes may a step "
               "take; where three in a row take longer, the next op raises "
               "torch_chameleon.SlowdownError. None: there is one warning.",
               1.0, 1e6},
    OptionSpec{"compile", OptionKind::kChoice, "error", "CHAMELEON_COMPILE",
               "error|eager", false,
               "What torch.compile's default back end does with this device's "
               "tensors: `error` says in one sentence what to use in its "
               "place; `eager` uses it: backend \"aot_eager\", with one "
               "warning."},
    OptionSpec{"mirror_steps", OptionKind::kCount, "1",
               "CHAMELEON_MIRROR_STEPS", "", false,
               "Each n-th torch_chameleon.elastic.State.commit() is kept, as "
               "it is when the State is made: rarer ones cost less, and a "
               "failure up to n steps.",
               1, 1e9},
    OptionSpec{"debug", OptionKind::kNumber, "0", "CHAMELEON_DEBUG", "", true,
               "For bug reports: n > 0 checks all book-keeping after every "
               "n-th op; on `cpu` freed memory is poisoned too, copies come "
               "in random order, and operands are watched. 0: off.",
               0, 1e9},
};

struct OptionValue {
  std::optional<std::string> text; // nullopt: the default
  std::size_t bytes = 0;           // kBytes
  double number = 0;               // kNumber
};

struct Table {
  RankedMutex<LockRank::kOptions> mutex;
  std::array<OptionValue, kSpecs.size()> values; // guarded by mutex
  std::optional<std::string> first_use;          // guarded by mutex
};

// Leaked: threads may read options while the process exits.
Table& table() {
  static Table* const instance = new Table;
  return *instance;
}

std::size_t row_of(std::string_view key) {
  for (std::size_t row = 0; row < kSpecs.size(); ++row) {
    if (kSpecs[row].key == key) return row;
  }
  return kSpecs.size();
}

std::size_t known_row(std::string_view key) {
  const std::size_t row = row_of(key);
  CHAMELEON_CHECK(row < kSpecs.size(), "no option has this key");
  return row;
}

Error invalid(std::string_view key, std::string_view text,
              const std::string& allowed) {
  return {ErrorCode::kInvalidArgument,
          std::string(key) + " = " + quote(text) + ": " + allowed};
}

std::string alternatives(std::string_view choices) {
  std::string list;
  while (!choices.empty()) {
    const std::size_t bar = std::min(choices.find('|'), choices.size());
    if (!list.empty()) list += ", ";
    list += choices.substr(0, bar);
    choices.remove_prefix(std::min(bar + 1, choices.size()));
  }
  return list;
}

bool has_choice(std::string_view choices, std::string_view text) {
  while (!choices.empty()) {
    const std::size_t bar = std::min(choices.find('|'), choices.size());
    if (choices.substr(0, bar) == text) return true;
    choices.remove_prefix(std::min(bar + 1, choices.size()));
  }
  return false;
}

Result<OptionValue> parse(const OptionSpec& spec, std::string_view text) {
  OptionValue value{std::string(text)};
  switch (spec.kind) {
    case OptionKind::kBytes: {
      const Result<std::size_t> bytes = read_bytes(text);
      if (!bytes.ok()) {
        return invalid(spec.key, text, bytes.error().message());
      }
      if (bytes.value() == 0) {
        return invalid(spec.key, text, "must be more than 0 bytes");
      }
      value.bytes = bytes.value();
      break;
    }
    case OptionKind::kNumber:
    case OptionKind::kCount: {
      std::string_view rest = text;
      const std::optional<double> number = take_decimal(rest);
      const bool is_count = spec.kind == OptionKind::kCount;
      if (!number || !rest.empty() || *number < spec.minimum ||
          *number > spec.maximum ||
          (is_count && *number != std::floor(*number))) {
        char allowed[96];
        std::snprintf(allowed, sizeof allowed, "must be a %s from %g to %g",
                      is_count ? "whole number" : "number", spec.minimum,
                      spec.maximum);
        return invalid(spec.key, text, allowed);
      }
      value.number = *number;
      break;
    }
    case OptionKind::kChoice:
      if (!has_choice(spec.choices, text)) {
        return invalid(spec.key, text,
                       "must be one of " + alternatives(spec.choices));
      }
      break;
    case OptionKind::kText:
      if (spec.check == nullptr) break;
      if (const Error error = spec.check(text)) {
        return invalid(spec.key, text, error.message());
      }
      break;
  }
  return value;
}

// The value in force, defaults included. REQUIRES table().mutex.
OptionValue in_force(std::size_t row) {
  const OptionValue& set = table().values[row];
  const std::string_view fallback = kSpecs[row].default_text;
  if (set.text || fallback.empty()) return set;
  Result<OptionValue> value = parse(kSpecs[row], fallback);
  CHAMELEON_CHECK(value.ok(), "the default of an option is not allowed");
  return std::move(value).value();
}

} // namespace

std::span<const OptionSpec> option_specs() { return kSpecs; }

const OptionSpec* find_option(std::string_view key) {
  const std::size_t row = row_of(key);
  return row < kSpecs.size() ? &kSpecs[row] : nullptr;
}

std::optional<std::string> option_text(std::string_view key) {
  const std::size_t row = known_row(key);
  const std::lock_guard lock(table().mutex);
  return in_force(row).text;
}

std::optional<std::size_t> option_bytes(std::string_view key) {
  const std::size_t row = known_row(key);
  CHAMELEON_CHECK(kSpecs[row].kind == OptionKind::kBytes, "not a size");
  const std::lock_guard lock(table().mutex);
  const OptionValue value = in_force(row);
  if (!value.text) return std::nullopt;
  return value.bytes;
}

std::optional<double> option_number(std::string_view key) {
  const std::size_t row = known_row(key);
  CHAMELEON_CHECK(kSpecs[row].kind == OptionKind::kNumber, "not a number");
  const std::lock_guard lock(table().mutex);
  const OptionValue value = in_force(row);
  if (!value.text) return std::nullopt;
  return value.number;
}

Error set_option(std::string_view key, std::optional<std::string_view> text) {
  const std::size_t row = row_of(key);
  if (row == kSpecs.size()) {
    std::string known;
    for (const OptionSpec& spec : kSpecs) {
      known += (known.empty() ? "" : ", ") + std::string(spec.key);
    }
    return {ErrorCode::kInvalidArgument,
            "there is no option " + quote(key) + "; there are " + known};
  }
  const OptionSpec& spec = kSpecs[row];
  OptionValue value;
  const std::string_view given = text ? trimmed(*text) : std::string_view();
  const bool none = !text || (spec.kind != OptionKind::kText &&
                              equal_ignoring_case(given, "none"));
  if (!none) {
    Result<OptionValue> parsed = parse(spec, given);
    if (!parsed.ok()) return parsed.takeError();
    value = std::move(parsed).value();
  }

  Table& options = table();
  const std::lock_guard lock(options.mutex);
  const OptionValue before = options.values[row];
  if (!spec.before_first_use || !options.first_use) {
    options.values[row] = std::move(value);
    return {};
  }
  const std::optional<std::string> old_text = in_force(row).text;
  options.values[row] = std::move(value);
  const std::optional<std::string> new_text = in_force(row).text;
  if (old_text == new_text) return {};
  options.values[row] = before;
  return {ErrorCode::kInvalidArgument,
          std::string(key) + " = " + quote(new_text.value_or("none")) +
              ": it was fixed as " + quote(old_text.value_or("none")) +
              " when the device was first used (" + *options.first_use +
              "); set it before that"};
}

Error load_options_from_environment() {
  Error first;
  for (const OptionSpec& spec : kSpecs) {
    const char* text = std::getenv(spec.environment.data());
    if (text == nullptr || trimmed(text).empty()) continue;
    Error error = set_option(spec.key, text);
    if (error && !first) {
      first = Error(error.code(), "environment variable " +
                                      std::string(spec.environment) + ": " +
                                      error.message());
    }
  }
  return first;
}

void freeze_options(std::string_view what) {
  const std::lock_guard lock(table().mutex);
  if (!table().first_use) table().first_use = std::string(what);
}

bool options_frozen() {
  const std::lock_guard lock(table().mutex);
  return table().first_use.has_value();
}

void reset_options_for_testing() {
  const std::lock_guard lock(table().mutex);
  table().values = {};
  table().first_use.reset();
}

Result<GpuProfile> chosen_gpu_profile() {
  return parse_gpu_profile(option_text("simulated_gpu").value_or("h200"));
}

} // namespace chameleon::runtime
