// A user's text, as it is read and as messages show it. It may be anything:
// longer than a screen, with escapes for the terminal, or no text at all.
//
// Thread safety: functions of their arguments.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace chameleon::runtime {

// Without white space at either end.
std::string_view trimmed(std::string_view text);

constexpr bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Of ASCII letters alone.
bool equal_ignoring_case(std::string_view a, std::string_view b);

// A non-negative decimal at the start of `text`; what follows is left in it.
std::optional<double> take_decimal(std::string_view& text);

bool is_utf8(std::string_view text);

// In quotes; control characters, and whatever is not UTF-8, as \x1b; of a long
// text the beginning.
std::string quote(std::string_view text);

} // namespace chameleon::runtime
