#include "backend/runtime/byte_size.h"

#include <cstddef>
#include <gtest/gtest.h>
#include <random>
#include <string>

namespace chameleon::runtime {
namespace {

TEST(ParseBytes, Accepts) {
  const struct {
    const char* text;
    std::size_t bytes;
  } rows[] = {
      {"0", 0},
      {"1", 1},
      {"9007199254740993", 9007199254740993}, // not a double
      {"4611686018427387904", std::size_t{1} << 62},
      {"1e9", 1000000000},
      {"512MiB", 512u << 20},
      {" 8 gib ", std::size_t{8} << 30},
      {"1.5GiB", 3u << 29},
      {".5 KiB", 512},
      {"0.3KiB", 307},
      {"10B", 10},
      {"2kb", 2000},
      {"3MB", 3000000},
      {"4Gb", 4000000000},
      {"1TB", 1000000000000},
      {"1TiB", std::size_t{1} << 40},
      {"24G", std::size_t{24} << 30}, // as other programs say it
      {"512 m", 512u << 20},
      {"1.5k", 1536},
      {"2T", std::size_t{2} << 40},
  };
  for (const auto& row : rows) {
    const Result<std::size_t> bytes = parse_bytes(row.text);
    ASSERT_TRUE(bytes.ok()) << row.text << ": " << bytes.error().message();
    EXPECT_EQ(bytes.value(), row.bytes) << row.text;
  }
}

TEST(ParseBytes, Refuses) {
  for (const char* text : {"", " ", "-1", "-1GiB", "+1", "nan", "inf", "infGiB",
                           "GiB", "G", "1 2", "8Gi", "8 GiBs", "1,5GiB", "0x10",
                           "1e999", "1.2.3", "12 K iB", "1_000"}) {
    const Result<std::size_t> bytes = parse_bytes(text);
    ASSERT_FALSE(bytes.ok()) << text;
    EXPECT_EQ(bytes.error().code(), ErrorCode::kInvalidArgument);
  }
  for (const char* text : {"999999999TiB", "4611686018427387905",
                           "18446744073709551616", "1e300GiB"}) {
    const Result<std::size_t> bytes = parse_bytes(text);
    ASSERT_FALSE(bytes.ok()) << text;
    EXPECT_EQ(bytes.error().message(), "\"" + std::string(text) +
                                           "\" is more bytes than any "
                                           "machine has");
  }
}

TEST(ParseBytes, RandomTextNeverDoesHarm) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  const std::string letters = "0123456789.eE+-kKmMgGtTiIbB xn\t\0\xff";
  for (int round = 0; round < 20000; ++round) {
    std::string text(random() % 12, ' ');
    for (char& c : text) c = letters[random() % letters.size()];
    const Result<std::size_t> bytes = parse_bytes(text);
    if (bytes.ok()) {
      EXPECT_LE(bytes.value(), std::size_t{1} << 62) << text;
    }
  }
}

TEST(FormatBytes, RoundTripsUnits) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1024), "1.00 KiB");
  EXPECT_EQ(format_bytes(3u << 29), "1.50 GiB");
  EXPECT_EQ(format_bytes(std::size_t{5} << 40), "5.00 TiB");
  EXPECT_EQ(format_bytes(std::size_t{5} << 50), "5120.00 TiB");
  EXPECT_EQ(format_bytes_up(3u << 29), "1.50 GiB");
  EXPECT_EQ(format_bytes_up((3u << 29) + 1), "1.51 GiB");
  EXPECT_EQ(format_bytes_up(11097088), "10.59 MiB");
}

} // namespace
} // namespace chameleon::runtime
