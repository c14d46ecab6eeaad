// Everything that the torch-free core reads of what a user wrote, behind one
// door each: takes any bytes, and aborts with a sentence if what must hold of
// the outcome does not. An error is one sentence: no control characters, no
// broken text, not longer than a paragraph.
//
// parsers_test.cpp feeds them with a fixed seed in the default run;
// libfuzzer.cpp as long as one likes.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace chameleon::fuzz {

struct Parser {
  std::string name;
  void (*parse)(std::string_view text);
  std::vector<std::string> seeds; // good ones
  std::vector<std::string> words; // that mean something in it
};

std::span<const Parser> parsers();

} // namespace chameleon::fuzz
