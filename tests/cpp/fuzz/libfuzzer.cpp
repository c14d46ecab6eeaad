// One parser under libFuzzer: CHAMELEON_FUZZ names it (tests/README.md).
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "tests/cpp/fuzz/parsers.h"

namespace {

const chameleon::fuzz::Parser& chosen() {
  const char* const name = std::getenv("CHAMELEON_FUZZ");
  const auto all = chameleon::fuzz::parsers();
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const auto& parser) {
        return name != nullptr && parser.name == name;
      });
  if (found != all.end()) return *found;
  std::fprintf(stderr, "CHAMELEON_FUZZ must be one of:");
  for (const auto& parser : all)
    std::fprintf(stderr, " %s", parser.name.c_str());
  std::fprintf(stderr, "\n");
  std::exit(2);
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data,
                                      std::size_t size) {
  static const chameleon::fuzz::Parser& parser = chosen();
  parser.parse({reinterpret_cast<const char*>(data), size});
  return 0;
}

// What it begins with, and the words that it inserts.
extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size,
                                        std::size_t max_size);
extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data,
                                               std::size_t size,
                                               std::size_t max_size,
                                               unsigned seed) {
  const chameleon::fuzz::Parser& parser = chosen();
  std::string text(reinterpret_cast<const char*>(data), size);
  if (size <= 1) {
    text = parser.seeds[seed % parser.seeds.size()];
  } else if (seed % 4 != 0) {
    return LLVMFuzzerMutate(data, size, max_size);
  } else {
    text.insert(seed / 4 % (size + 1),
                parser.words[seed / 64 % parser.words.size()]);
  }
  text.resize(std::min(text.size(), max_size));
  std::copy(text.begin(), text.end(), data);
  return text.size();
}
