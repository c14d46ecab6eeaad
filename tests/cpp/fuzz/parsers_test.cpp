// The parsers on mutated text, with a fixed seed. As long as one likes:
// CHAMELEON_TEST_OPERATIONS=1000000, or libfuzzer.cpp, which is cleverer.
#include "tests/cpp/fuzz/parsers.h"

#include <algorithm>
#include <cstdlib>
#include <gtest/gtest.h>
#include <random>
#include <string>

namespace chameleon::fuzz {
namespace {

constexpr std::size_t kMostBytes = 4096;
constexpr std::uint64_t kExecutions = 10000;

class Mutator {
 public:
  Mutator(const Parser& parser, std::uint64_t seed)
      : parser_(parser), random_(seed) {}

  std::string next() {
    std::string text = pick(parser_.seeds);
    for (std::size_t edits = 1 + below(6); edits > 0; --edits) edit(text);
    text.resize(std::min(text.size(), kMostBytes));
    return text;
  }

 private:
  std::size_t below(std::size_t count) { return random_() % count; }
  const std::string& pick(const std::vector<std::string>& list) {
    return list[below(list.size())];
  }
  void edit(std::string& text) {
    const std::size_t at = below(text.size() + 1);
    const std::size_t bytes = below(std::min<std::size_t>(
        text.size() - at + 1, below(4) == 0 ? text.size() + 1 : 8));
    switch (below(7)) {
      case 0:
        text.erase(at, bytes);
        break;
      case 1:
        text.insert(at, text.substr(at, bytes));
        break;
      case 2:
        text.insert(at, 1, static_cast<char>(random_()));
        break;
      case 3:
        if (at < text.size()) text[at] ^= static_cast<char>(1U << below(8));
        break;
      case 4:
        text.insert(at, pick(parser_.words));
        break;
      case 5: {
        const std::string& other = pick(parser_.seeds);
        text.replace(at, std::string::npos, other, below(other.size() + 1));
        break;
      }
      default: { // another number in the place of one
        constexpr const char* kDigits = "0123456789";
        const std::size_t from = text.find_first_of(kDigits, at);
        if (from == std::string::npos) break;
        const std::size_t to = text.find_first_not_of(kDigits, from);
        text.replace(from, std::min(to, text.size()) - from,
                     pick(parser_.words));
      }
    }
  }

  const Parser& parser_;
  std::mt19937_64 random_;
};

class Fuzz : public testing::TestWithParam<Parser> {};

TEST_P(Fuzz, MutatedText) {
  const Parser& parser = GetParam();
  const char* const operations = std::getenv("CHAMELEON_TEST_OPERATIONS");
  const std::uint64_t executions = operations == nullptr
                                       ? kExecutions
                                       : std::strtoull(operations, nullptr, 10);
  for (const std::string& seed : parser.seeds) parser.parse(seed);
  Mutator mutator(parser, 1);
  for (std::uint64_t i = 0; i < executions; ++i) parser.parse(mutator.next());
  RecordProperty("fuzz_executions", std::to_string(executions));
}

INSTANTIATE_TEST_SUITE_P(Parsers, Fuzz, testing::ValuesIn(parsers()),
                         [](const auto& each) { return each.param.name; });

} // namespace

void PrintTo(const Parser& parser, std::ostream* out) { *out << parser.name; }

} // namespace chameleon::fuzz
