#include "backend/runtime/quote.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>

namespace chameleon::runtime {

namespace {

constexpr std::size_t kMostBytes = 80; // shown

constexpr bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

// Bytes of the character at the start; 0: it is none (RFC 3629).
std::size_t character_bytes(std::string_view text) {
  const auto byte = [&](std::size_t i) {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U;
  };
  const unsigned first = byte(0);
  if (first < 0x80) return 1;
  const std::size_t bytes = first >= 0xf5   ? 0
                            : first >= 0xf0 ? 4
                            : first >= 0xe0 ? 3
                            : first >= 0xc2 ? 2
                                            : 0;
  for (std::size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  // Longer than need be, a surrogate, or past the last character.
  const unsigned second = byte(1);
  const bool bad =
      (first == 0xe0 && second < 0xa0) || (first == 0xed && second >= 0xa0) ||
      (first == 0xf0 && second < 0x90) || (first == 0xf4 && second >= 0x90);
  return bad ? 0 : bytes;
}

// Of those before a space, of those before a no-break space, or none.
bool is_control(std::string_view character) {
  if (character.empty()) return true;
  const auto first = static_cast<unsigned char>(character[0]);
  return first < 0x20 || first == 0x7f ||
         (first == 0xc2 && static_cast<unsigned char>(character[1]) < 0xa0);
}

constexpr char lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

} // namespace

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

bool equal_ignoring_case(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](char x, char y) { return lower(x) == lower(y); });
}

std::optional<double> take_decimal(std::string_view& text) {
  // from_chars would also take "inf", "nan" and a sign.
  if (text.empty() || !(is_digit(text.front()) || text.front() == '.')) {
    return std::nullopt;
  }
  double number = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || !std::isfinite(number)) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return number;
}

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const std::size_t bytes = character_bytes(text);
    if (bytes == 0) return false;
    text.remove_prefix(bytes);
  }
  return true;
}

std::string quote(std::string_view text) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string shown = "\"";
  while (!text.empty() && shown.size() <= kMostBytes) {
    const auto first = static_cast<unsigned char>(text.front());
    const std::size_t bytes = character_bytes(text);
    if (is_control(text.substr(0, bytes))) {
      // Byte by byte, where it is no character either.
      shown += {'\\', 'x', kDigits[first >> 4], kDigits[first & 15]};
      text.remove_prefix(1);
    } else {
      shown += text.substr(0, bytes);
      text.remove_prefix(bytes);
    }
  }
  return shown + (text.empty() ? "\"" : "\"...");
}

} // namespace chameleon::runtime
