#include "backend/runtime/address_space.h"

#include <cstddef>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

namespace chameleon::runtime {
namespace {

class AddressSpace
    : public ::testing::TestWithParam<void (*)(std::byte*, std::size_t)> {};

TEST_P(AddressSpace, PopulatedMemoryHasItsPagesAndKeepsItsBytes) {
  const auto page = static_cast<std::size_t>(getpagesize());
  constexpr std::size_t kPages = 8;
  std::byte* const memory = map_memory(kPages * page).value();
  (void)madvise(memory, kPages * page, MADV_NOHUGEPAGE); // pages one by one
  const auto present = [&] {
    std::vector<unsigned char> pages(kPages);
    EXPECT_EQ(mincore(memory, kPages * page, pages.data()), 0);
    std::size_t count = 0;
    for (const unsigned char each : pages) count += each & 1;
    return count;
  };
  memory[3 * page] = std::byte{7};
  EXPECT_EQ(present(), 1u);
  GetParam()(memory, (kPages - 1) * page);
  EXPECT_EQ(present(), kPages - 1);
  EXPECT_EQ(memory[3 * page], std::byte{7});
  EXPECT_EQ(memory[4 * page], std::byte{0});
  unmap_memory(memory, kPages * page);
}

TEST(AddressSpaceDeathTest, PartsAreOpenedAndClosed) {
  constexpr std::size_t kPages = 8;
  std::byte* const base =
      reserve_address_space(kPages * kPageBytes, kPageBytes).value();
  std::byte* const part = base + 2 * kPageBytes;
  for (int round = 0; round < 2; ++round) {
    ASSERT_TRUE(open_address_space(part, 4 * kPageBytes).ok());
    for (std::size_t i = 0; i < 4 * kPageBytes; ++i) {
      ASSERT_EQ(part[i], std::byte{0});
      part[i] = std::byte{7};
    }
    close_address_space(part + kPageBytes, 3 * kPageBytes);
    EXPECT_EQ(part[kPageBytes - 1], std::byte{7});
    EXPECT_DEATH(part[kPageBytes] = std::byte{1}, "");
    close_address_space(part, kPageBytes);
    EXPECT_DEATH(part[0] = std::byte{1}, "");
  }
  // Nobody else gets the addresses.
  EXPECT_TRUE(open_address_space(base, kPages * kPageBytes).ok());
  unmap_memory(base, kPages * kPageBytes);
  EXPECT_FALSE(open_address_space(base, kPageBytes).ok());
}

INSTANTIATE_TEST_SUITE_P(Ways, AddressSpace,
                         ::testing::Values(&populate_memory, &touch_memory));

} // namespace
} // namespace chameleon::runtime
