// Sizes in bytes as text: a user's, and those of messages.
//
// Thread safety: functions of their arguments.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "backend/runtime/result.h"

namespace chameleon::runtime {

// "512MiB" -> bytes. Accepts a plain count, decimals ("1.5GiB"), KB/MB/GB/TB
// (powers of 1000) and KiB/MiB/GiB/TiB, also as K/M/G/T (powers of 1024), any
// case, spaces.
// Fractions of a byte are cut off. kInvalidArgument: negative, not finite,
// above 2^62, or no such text.
Result<std::size_t> parse_bytes(std::string_view text);
// The same; a message does not say what the text was.
Result<std::size_t> read_bytes(std::string_view text);

std::string format_bytes(std::size_t bytes);    // "1.50 GiB", for messages
std::string format_bytes_up(std::size_t bytes); // no less than that, to be set

} // namespace chameleon::runtime
