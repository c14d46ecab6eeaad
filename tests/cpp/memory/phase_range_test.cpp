// Phases as hooks see them: in pairs, nested, and none where nothing moves.
#include "memory/phase_range.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <string>
#include <utility>
#include <vector>

#include "tests/cpp/memory/pager_fixture.h"

namespace chameleon::memory {
namespace {

using Names = std::vector<std::string>;

// What began, and what is open, on the one thread of a test.
Names begun;
std::vector<const char*> open_ranges;
bool nobody_looks = false;

void* begin(const char* name) noexcept {
  begun.emplace_back(name);
  if (nobody_looks) return nullptr;
  open_ranges.push_back(name);
  return const_cast<char*>(name);
}

void end(void* range) noexcept {
  ASSERT_FALSE(open_ranges.empty());
  EXPECT_EQ(open_ranges.back(), range);
  open_ranges.pop_back();
}

constexpr PhaseHooks kHooks{&begin, &end};

class PhaseRangeTest : public PagerTest {
 protected:
  void SetUp() override {
    begun.clear();
    nobody_looks = false;
    PhaseRange::setHooks(&kHooks);
  }
  void TearDown() override {
    PagerTest::TearDown();
    PhaseRange::setHooks(nullptr);
    EXPECT_TRUE(open_ranges.empty());
  }
  // Since the last look. Waits depend on how far the copies are.
  static Names moves() {
    Names list = std::exchange(begun, {});
    std::erase_if(list, [](const std::string& name) {
      return name.starts_with("wait ");
    });
    return list;
  }
};

TEST_F(PhaseRangeTest, EndInReverseOrder) {
  {
    const PhaseRange outer("outer");
    const PhaseRange inner("inner");
    EXPECT_EQ(open_ranges.size(), 2u);
  }
  EXPECT_EQ(begun, (Names{"outer", "inner"}));
  EXPECT_TRUE(open_ranges.empty());
}

TEST_F(PhaseRangeTest, WhatNobodyLooksAtIsNotEnded) {
  nobody_looks = true;
  {
    const PhaseRange range("range");
  }
  EXPECT_EQ(begun, Names{"range"});
  PhaseRange::setHooks(nullptr);
  {
    const PhaseRange range("range");
  }
  EXPECT_EQ(begun, Names{"range"});
}

TEST_F(PhaseRangeTest, ARangeEndsWithTheHooksThatBeganIt) {
  {
    const PhaseRange range("range");
    PhaseRange::setHooks(nullptr);
  }
  EXPECT_TRUE(open_ranges.empty());
}

TEST_F(PhaseRangeTest, AnOpWhoseOperandsAreThereHasNone) {
  open(kMiB);
  Block* const block = filled(64 * kKiB, 1);
  begun.clear();
  EXPECT_FALSE(failed(expect(block, 1)));
  EXPECT_FALSE(failed(fill(block, 2)));
  EXPECT_EQ(begun, Names{});
  pager->release(block);
}

TEST_F(PhaseRangeTest, RoomIsMadeThenBytesAreFetched) {
  open(64 * kKiB);
  Block* const first = filled(48 * kKiB, 1);
  EXPECT_EQ(moves(), Names{"commit device memory"});
  Block* const second = filled(48 * kKiB, 2);
  EXPECT_EQ(moves(), (Names{"evict", "allocate host memory"}));
  EXPECT_FALSE(failed(expect(first, 1)));
  EXPECT_EQ(moves(), (Names{"evict", "fetch"}));
  EXPECT_FALSE(failed(expect(second, 2)));
  EXPECT_EQ(moves(), (Names{"evict", "fetch"}));
  pager->release(first);
  pager->release(second);
}

TEST_F(PhaseRangeTest, WaitsAreRanges) {
  const runtime::CpuAdversary adversary{.copies =
                                            runtime::CopyTiming::kOnAwait};
  open(kMiB, 256 * kMiB, 64, adversary);
  Block* const block = filled(48 * kKiB, 1);
  EXPECT_FALSE(failed(pager->evict(*block)));
  begun.clear();
  std::byte byte{};
  EXPECT_FALSE(failed(pager->read(*block, 0, &byte, 1, kStream)));
  EXPECT_EQ(begun, Names{"wait for the device"}); // the copy out
  begun.clear();
  EXPECT_FALSE(failed(expect(block, 1)));
  EXPECT_EQ(begun, (Names{"fetch", "wait for bytes"}));
  pager->release(block);
}

} // namespace
} // namespace chameleon::memory
