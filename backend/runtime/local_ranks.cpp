#include "backend/runtime/local_ranks.h"

#include <charconv>
#include <cstdlib>
#include <optional>
#include <string>
#include <system_error>

#include "backend/runtime/quote.h"

namespace chameleon::runtime {

namespace {

std::string_view variable(const char* name) {
  const char* const text = std::getenv(name);
  return text == nullptr ? std::string_view() : std::string_view(text);
}

std::optional<int> whole_number(std::string_view text) {
  int number = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || stop != end) return std::nullopt;
  return number;
}

Error invalid(const char* name, std::string_view text,
              const std::string& allowed) {
  return {ErrorCode::kInvalidArgument,
          "environment variable " + std::string(name) + " = " + quote(text) +
              ": " + allowed +
              ", as torchrun sets it; where no launcher started this process, "
              "unset LOCAL_WORLD_SIZE"};
}

} // namespace

Result<LocalRanks> read_local_ranks() {
  return parse_local_ranks(variable("LOCAL_WORLD_SIZE"), variable("LOCAL_RANK"),
                           variable("CUDA_VISIBLE_DEVICES"));
}

Result<LocalRanks> parse_local_ranks(std::string_view world_size,
                                     std::string_view rank,
                                     std::string_view visible_cards) {
  LocalRanks ranks;
  world_size = trimmed(world_size);
  if (world_size.empty()) return ranks;
  const auto count = whole_number(world_size);
  if (!count || *count < 1) {
    return invalid("LOCAL_WORLD_SIZE", world_size,
                   "must be a whole number, 1 or more");
  }
  ranks.count = *count;
  rank = trimmed(rank);
  if (!rank.empty()) {
    const auto number = whole_number(rank);
    if (!number || *number < 0 || *number >= *count) {
      return invalid("LOCAL_RANK", rank,
                     "must be a whole number from 0 to " +
                         std::to_string(*count - 1) +
                         ", with LOCAL_WORLD_SIZE = " + std::to_string(*count));
    }
    ranks.rank = *number;
  }
  visible_cards = trimmed(visible_cards);
  ranks.sees_one_card = !visible_cards.empty() &&
                        visible_cards.find(',') == std::string_view::npos;
  return ranks;
}

int ranks_on_a_card(const LocalRanks& ranks, int cards) {
  if (cards <= 1) return ranks.sees_one_card ? 1 : ranks.count;
  return (ranks.count - 1) / cards + 1;
}

} // namespace chameleon::runtime
