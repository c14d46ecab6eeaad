#include "backend/runtime/byte_size.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <iterator>
#include <optional>

#include "backend/runtime/quote.h"

namespace chameleon::runtime {

namespace {

constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 62;

// nullopt: not a unit.
std::optional<double> unit_bytes(std::string_view unit) {
  struct ByteUnit {
    std::string_view name;
    double bytes;
  };
  static constexpr ByteUnit kUnits[] = {
      {"", 1},
      {"b", 1},
      {"kb", 1e3},
      {"mb", 1e6},
      {"gb", 1e9},
      {"tb", 1e12},
      {"k", 1024.0}, // as other programs say it
      {"m", 1024.0 * 1024},
      {"g", 1024.0 * 1024 * 1024},
      {"t", 1024.0 * 1024 * 1024 * 1024},
      {"kib", 1024.0},
      {"mib", 1024.0 * 1024},
      {"gib", 1024.0 * 1024 * 1024},
      {"tib", 1024.0 * 1024 * 1024 * 1024},
  };
  for (const ByteUnit& row : kUnits) {
    if (equal_ignoring_case(row.name, unit)) return row.bytes;
  }
  return std::nullopt;
}

// To two digits behind the point, by `round` of hundredths.
std::string format_hundredths(std::size_t bytes, double (*round)(double)) {
  static constexpr const char* kUnits[] = {"KiB", "MiB", "GiB", "TiB"};
  if (bytes < 1024) return std::to_string(bytes) + " B";
  double scaled = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  while (scaled >= 1024 && unit + 1 < std::size(kUnits)) {
    scaled /= 1024;
    ++unit;
  }
  char text[32];
  std::snprintf(text, sizeof text, "%.2f %s", round(scaled * 100) / 100,
                kUnits[unit]);
  return text;
}

} // namespace

Result<std::size_t> read_bytes(std::string_view text) {
  constexpr const char* kForm =
      "must be a number of bytes, or text such as \"512MiB\" or \"8GiB\" "
      "(units: B, KB, MB, GB, TB, KiB, MiB, GiB, TiB)";
  constexpr const char* kTooMuch = "is more bytes than any machine has";
  const auto refused = [](const char* why) {
    return Error(ErrorCode::kInvalidArgument, why);
  };
  std::string_view rest = trimmed(text);
  if (!rest.empty() && std::all_of(rest.begin(), rest.end(), is_digit)) {
    // Exact, where a double would round.
    std::uint64_t count = 0;
    const auto [end, error] =
        std::from_chars(rest.data(), rest.data() + rest.size(), count);
    if (error != std::errc() || count > kMaxBytes) {
      return refused(kTooMuch);
    }
    return static_cast<std::size_t>(count);
  }
  const std::optional<double> number = take_decimal(rest);
  if (!number) return refused(kForm);
  const std::optional<double> unit = unit_bytes(trimmed(rest));
  if (!unit) return refused(kForm);
  const double bytes = *number * *unit;
  if (bytes > static_cast<double>(kMaxBytes)) return refused(kTooMuch);
  return static_cast<std::size_t>(bytes);
}

Result<std::size_t> parse_bytes(std::string_view text) {
  Result<std::size_t> bytes = read_bytes(text);
  if (bytes.ok()) return bytes;
  return Error(bytes.error().code(),
               quote(text) + " " + bytes.error().message());
}

std::string format_bytes(std::size_t bytes) {
  return format_hundredths(bytes, [](double x) { return std::nearbyint(x); });
}

std::string format_bytes_up(std::size_t bytes) {
  return format_hundredths(bytes, [](double x) { return std::ceil(x); });
}

} // namespace chameleon::runtime
