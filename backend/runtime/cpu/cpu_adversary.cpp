#include "backend/runtime/cpu/cpu_adversary.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <string>

#include "backend/runtime/quote.h"

namespace chameleon::runtime {

namespace {

std::optional<CopyTiming> timing_of(std::string_view name) {
  if (name == "prompt") return CopyTiming::kPrompt;
  if (name == "late") return CopyTiming::kLate;
  if (name == "reordered") return CopyTiming::kReordered;
  if (name == "on_await") return CopyTiming::kOnAwait;
  return std::nullopt;
}

std::optional<std::uint64_t> number_of(std::string_view text,
                                       std::uint64_t maximum) {
  std::uint64_t number = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || stop != end || number > maximum) {
    return std::nullopt;
  }
  return number;
}

// False: not an allowed "key=value".
bool apply(CpuAdversary& adversary, std::string_view part) {
  const std::size_t equals = part.find('=');
  if (equals == std::string_view::npos) return false;
  const std::string_view key = part.substr(0, equals);
  const std::string_view value = part.substr(equals + 1);
  if (key == "copies") {
    const auto timing = timing_of(value);
    if (timing) adversary.copies = *timing;
    return timing.has_value();
  }
  if (key == "seed") {
    const auto seed = number_of(value, UINT64_MAX);
    if (seed) adversary.seed = *seed;
    return seed.has_value();
  }
  if (key == "compute_delay") {
    const auto ops = number_of(value, 1000);
    if (ops) adversary.compute_delay_ops = static_cast<unsigned>(*ops);
    return ops.has_value();
  }
  if (key == "poison") {
    const auto flag = number_of(value, 1);
    if (flag) adversary.poison = *flag == 1;
    return flag.has_value();
  }
  return false;
}

} // namespace

Result<CpuAdversary> parse_cpu_adversary(std::string_view text) {
  CpuAdversary adversary;
  while (!text.empty()) {
    const std::size_t comma = std::min(text.find(','), text.size());
    const std::string_view part = text.substr(0, comma);
    if (!apply(adversary, part)) {
      return Error(ErrorCode::kInvalidArgument,
                   quote(part) +
                       " is no part of an adversary; allowed: seed=<number>, "
                       "copies=prompt|late|reordered|on_await, "
                       "compute_delay=<0..1000>, poison=0|1");
    }
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  return adversary;
}

} // namespace chameleon::runtime
