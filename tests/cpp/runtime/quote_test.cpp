#include "backend/runtime/quote.h"

#include <gtest/gtest.h>
#include <string>

namespace chameleon::runtime {
namespace {

TEST(Quote, LeavesTextAsItIs) {
  EXPECT_EQ(quote(""), "\"\"");
  EXPECT_EQ(quote("8 apples"), "\"8 apples\"");
  EXPECT_EQ(quote("\xc3\xa4pfel \xf0\x9f\x8d\x8e"),
            "\"\xc3\xa4pfel \xf0\x9f\x8d\x8e\"");
}

TEST(Quote, EscapesWhatIsNoText) {
  EXPECT_EQ(quote("\x1b[2J\n\x7f"), "\"\\x1b[2J\\x0a\\x7f\"");
  EXPECT_EQ(quote(std::string("a\0b", 3)), "\"a\\x00b\"");
  EXPECT_EQ(quote("\xc2\x9b"
                  "2J"),
            "\"\\xc2\\x9b2J\""); // as escape [
  EXPECT_EQ(quote("\xc2\xa0"), "\"\xc2\xa0\"");
  EXPECT_EQ(quote("\xff\xc3"), "\"\\xff\\xc3\"");
}

TEST(Quote, ShowsTheBeginningOfALongText) {
  const std::string shown = quote(std::string(1 << 20, 'x'));
  EXPECT_EQ(shown, "\"" + std::string(80, 'x') + "\"...");
}

TEST(Quote, KnowsUtf8) {
  for (const char* good :
       {"", "a", "\xc2\x80", "\xdf\xbf", "\xe0\xa0\x80", "\xed\x9f\xbf",
        "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf"}) {
    EXPECT_TRUE(is_utf8(good)) << quote(good);
  }
  for (const char* bad : {"\x80", "\xc0\x80", "\xc1\xbf", "\xc2",
                          "\xe0\x9f\xbf", "\xed\xa0\x80", "\xf0\x8f\xbf\xbf",
                          "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xe2\x82"}) {
    EXPECT_FALSE(is_utf8(bad)) << quote(bad);
  }
}

} // namespace
} // namespace chameleon::runtime
