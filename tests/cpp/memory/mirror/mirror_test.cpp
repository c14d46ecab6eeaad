// Copies of blocks as they were at one moment, whatever happens afterwards.
#include "memory/mirror/mirror.h"

#include <gtest/gtest.h>
#include <thread>

#include "memory/pager.h"
#include "tests/cpp/memory/fake_runtime.h"
#include "tests/cpp/memory/pager_fixture.h"

namespace chameleon::memory {
namespace {

constexpr std::size_t kBytes = 64 * kKiB;

class MirrorTest : public PagerTest {
 protected:
  // True: it is to be copied, or was. False: the bytes are there.
  bool mirror(Block* block, std::vector<std::byte>& destination,
              BlockValue had = {}) {
    destination.resize(block->bytes);
    runtime::Result<BlockValue> value = pager->mirror(
        {block, 0, block->bytes, destination.data()}, had, kStream);
    EXPECT_TRUE(value.ok()) << value.error().message();
    value_ = value.ok() ? *value : BlockValue{};
    return !(had == value_) || value_.identity == 0;
  }

  void finish() {
    runtime::Result<bool> all = pager->finishMirror();
    ASSERT_TRUE(all.ok()) << all.error().message();
    EXPECT_TRUE(*all);
  }

  BlockValue value_; // of the block that was mirrored last
};

TEST_F(MirrorTest, HasWhatABlockWasAndNotWhatItBecomes) {
  open(kMiB);
  Block* const block = filled(kBytes, 1);
  std::vector<std::byte> destination;
  EXPECT_TRUE(mirror(block, destination));
  EXPECT_TRUE(block->isMirrored());
  EXPECT_FALSE(failed(fill(block, 2)));
  EXPECT_FALSE(block->isMirrored());
  finish();
  EXPECT_EQ(destination, pattern(kBytes, 1));
  EXPECT_FALSE(failed(expect(block, 2)));
  EXPECT_EQ(pager->stats().mirrored_bytes, static_cast<std::int64_t>(kBytes));
}

TEST_F(MirrorTest, AReaderLeavesItForLater) {
  open(kMiB);
  Block* const block = filled(kBytes, 1);
  std::vector<std::byte> destination;
  EXPECT_TRUE(mirror(block, destination));
  EXPECT_FALSE(failed(expect(block, 1)));
  EXPECT_TRUE(block->isMirrored());
  finish();
  EXPECT_FALSE(block->isMirrored());
  EXPECT_EQ(destination, pattern(kBytes, 1));
}

// From HBM, from the host, and between the two.
TEST_F(MirrorTest, WhereverTheBytesAre) {
  open(kMiB);
  for (const bool evicted_before : {false, true}) {
    for (const bool evicted_after : {false, true}) {
      for (const bool fetched : {false, true}) {
        for (const bool written : {false, true}) {
          Block* const block = filled(kBytes, 3);
          std::vector<std::byte> destination;
          if (evicted_before) {
            EXPECT_FALSE(failed(pager->evict(*block)));
          }
          EXPECT_TRUE(mirror(block, destination));
          if (evicted_after) {
            EXPECT_FALSE(failed(pager->evict(*block)));
          }
          if (fetched) {
            EXPECT_FALSE(failed(expect(block, 3)));
          }
          if (written) {
            EXPECT_FALSE(failed(fill(block, 4)));
          }
          check();
          finish();
          EXPECT_EQ(destination, pattern(kBytes, 3));
          EXPECT_FALSE(failed(expect(block, written ? 4 : 3)));
          pager->release(block);
        }
      }
    }
  }
}

TEST_F(MirrorTest, AHostThreadWritesAfterTheCopy) {
  open(kMiB);
  for (const bool evicted : {false, true}) {
    Block* const block = filled(kBytes, 1);
    if (evicted) {
      EXPECT_FALSE(failed(pager->evict(*block)));
    }
    std::vector<std::byte> destination;
    EXPECT_TRUE(mirror(block, destination));
    const std::vector<std::byte> bytes = pattern(kBytes, 2);
    EXPECT_FALSE(
        failed(pager->write(*block, 0, bytes.data(), kBytes, kStream)));
    finish();
    EXPECT_EQ(destination, pattern(kBytes, 1));
    EXPECT_FALSE(failed(expect(block, 2)));
  }
}

TEST_F(MirrorTest, WhatIsUnchangedIsNotCopiedAgain) {
  open(kMiB);
  Block* const block = filled(kBytes, 1);
  std::vector<std::byte> destination;
  EXPECT_TRUE(mirror(block, destination));
  const BlockValue first = value_;
  finish();
  EXPECT_FALSE(failed(pager->evict(*block)));
  EXPECT_FALSE(mirror(block, destination, first));
  EXPECT_FALSE(block->isMirrored());
  finish();
  EXPECT_EQ(pager->stats().mirrored_bytes, static_cast<std::int64_t>(kBytes));
  EXPECT_FALSE(failed(fill(block, 2)));
  EXPECT_TRUE(mirror(block, destination, first));
  finish();
  EXPECT_EQ(destination, pattern(kBytes, 2));
  const BlockValue second = value_;
  const std::vector<std::byte> bytes = pattern(1, 3);
  EXPECT_FALSE(failed(pager->write(*block, 0, bytes.data(), 1, kStream)));
  EXPECT_TRUE(mirror(block, destination, second));
  finish();
  EXPECT_EQ(destination[0], bytes[0]);
}

// Another block has the place of one that died.
TEST_F(MirrorTest, AnotherBlockIsNotUnchanged) {
  open(kMiB);
  Block* const block = filled(kBytes, 1);
  std::vector<std::byte> destination;
  EXPECT_TRUE(mirror(block, destination));
  const BlockValue had = value_;
  finish();
  pager->release(block);
  pager->trim();
  Block* const other = filled(kBytes, 2);
  EXPECT_EQ(other, block);
  EXPECT_TRUE(mirror(other, destination, had));
  finish();
  EXPECT_EQ(destination, pattern(kBytes, 2));
}

TEST_F(MirrorTest, PartsOfABlockAreCopiesOfTheirOwn) {
  open(kMiB);
  Block* const block = filled(kBytes, 1);
  std::vector<std::byte> destination(kBytes);
  for (std::size_t i = 0; i < 4; ++i) {
    const std::size_t at = i * kBytes / 4;
    ASSERT_TRUE(pager
                    ->mirror({block, at, kBytes / 4, destination.data() + at},
                             {}, kStream)
                    .ok());
  }
  EXPECT_FALSE(failed(fill(block, 2)));
  finish();
  EXPECT_EQ(destination, pattern(kBytes, 1));
}

// One that is in use is copied at once.
TEST_F(MirrorTest, APinnedBlockIsReadAtOnce) {
  open(kMiB);
  Block* const block = filled(kBytes, 1);
  Call call;
  EXPECT_FALSE(failed(pin(call, block)));
  pager->keepPins(call);
  std::vector<std::byte> destination;
  EXPECT_TRUE(mirror(block, destination));
  EXPECT_FALSE(block->isMirrored());
  EXPECT_EQ(value_, BlockValue{}); // it may change while it is pinned
  EXPECT_EQ(destination, pattern(kBytes, 1));
  pager->end(call);
  finish();
}

TEST_F(MirrorTest, ABlockThatDiesIsCopiedFirst) {
  open(kMiB);
  Block* const block = filled(kBytes, 1);
  std::vector<std::byte> destination;
  EXPECT_TRUE(mirror(block, destination));
  pager->release(block);
  for (std::uint64_t seed = 10; seed < 14; ++seed) {
    pager->release(filled(kBytes, seed)); // none gets its bytes
  }
  finish();
  EXPECT_EQ(destination, pattern(kBytes, 1));
  pager->trim();
  EXPECT_EQ(pager->levels().resident_bytes, 0u);
}

// Much more than fits, while ops run and another thread finishes.
TEST_F(MirrorTest, OpsRunBesideIt) {
  constexpr std::size_t kBlocks = 24;
  open(8 * kBytes);
  std::vector<Block*> blocks;
  for (std::size_t i = 0; i < kBlocks; ++i) blocks.push_back(filled(kBytes, i));
  std::vector<std::vector<std::byte>> destinations(kBlocks);
  for (std::uint64_t round = 0; round < 8; ++round) {
    for (std::size_t i = 0; i < kBlocks; ++i) {
      EXPECT_TRUE(mirror(blocks[i], destinations[i]));
    }
    std::thread finishing([&] { finish(); });
    for (std::size_t i = 0; i < kBlocks; ++i) {
      EXPECT_FALSE(failed(expect(blocks[i], 100 * round + i)));
      EXPECT_FALSE(failed(fill(blocks[i], 100 * (round + 1) + i)));
    }
    finishing.join();
    for (std::size_t i = 0; i < kBlocks; ++i) {
      EXPECT_EQ(destinations[i], pattern(kBytes, 100 * round + i)) << i;
    }
  }
}

// While its copy is under way a block leaves HBM, which needs no other copy,
// and an op writes what takes its place.
TEST(MirrorOrder, WhoGetsABlocksPlaceWaitsForItsCopy) {
  FakeRuntime device;
  {
    std::unique_ptr<Pager> pager =
        Pager::create(device, {kBytes, kMiB, 64}, "lru").value();
    const std::vector<std::byte> values[] = {pattern(kBytes, 1),
                                             pattern(kBytes, 2)};
    const auto op = [&](Block* block, Access access, std::size_t stream) {
      const Operand operand{block, access};
      Call call;
      ASSERT_TRUE(pager
                      ->begin(call, FakeRuntime::compute(stream), {&operand, 1},
                              nullptr, "op", false)
                      .ok());
      if (access == Access::kWrite) {
        const runtime::Copy copy{block->device_address, values[stream].data(),
                                 kBytes};
        ASSERT_TRUE(device.copy(FakeRuntime::compute(stream), {&copy, 1}).ok());
      }
      pager->end(call);
    };
    Block* const block = pager->createBlock(kBytes).value();
    op(block, Access::kWrite, 0);
    ASSERT_TRUE(pager->evict(*block).ok());
    op(block, Access::kRead, 0); // clean, and in HBM
    device.runAll();
    std::vector<std::byte> destination(kBytes);
    ASSERT_TRUE(pager
                    ->mirror({block, 0, kBytes, destination.data()}, {},
                             FakeRuntime::compute(0))
                    .ok());
    Block* other = nullptr;
    device.before_synchronize = [&] {
      const std::byte* const place = block->device_address;
      ASSERT_TRUE(pager->evict(*block).ok());
      other = pager->createBlock(kBytes).value();
      op(other, Access::kWrite, 1);
      ASSERT_EQ(other->device_address, place);
      device.run(FakeRuntime::compute(1));
    };
    EXPECT_TRUE(pager->finishMirror().value());
    EXPECT_EQ(destination, values[0]);
    pager->release(block);
    pager->release(other);
  }
}

// The value is the one after what was deferred, and not an older one.
TEST_F(MirrorTest, ADeferredOpIsWaitedFor) {
  open(kMiB);
  Block* const block = filled(kBytes, 1);
  Block* const other = filled(kBytes, 5);
  std::vector<std::byte> destination;
  std::vector<std::byte> elsewhere;
  block->has_deferred_op = true;
  EXPECT_TRUE(mirror(block, destination));
  EXPECT_EQ(value_, BlockValue{});
  EXPECT_TRUE(mirror(other, elsewhere));
  EXPECT_FALSE(block->isMirrored());
  runtime::Result<bool> all = pager->finishMirror();
  ASSERT_TRUE(all.ok());
  EXPECT_FALSE(*all);
  EXPECT_FALSE(other->isMirrored());
  EXPECT_EQ(elsewhere, pattern(kBytes, 5));
  EXPECT_FALSE(failed(fill(block, 2))); // what was deferred
  pager->deferredOpDone(*block);
  block->has_deferred_op = false;
  EXPECT_TRUE(block->isMirrored());
  EXPECT_FALSE(failed(fill(block, 3)));
  finish();
  EXPECT_EQ(destination, pattern(kBytes, 2));
  EXPECT_EQ(elsewhere, pattern(kBytes, 5));
}

// A copy that fails costs the mirror, and nothing else.
TEST_F(MirrorTest, ACopyThatFailsIsSaidAtTheEnd) {
  open(kMiB);
  Block* const block = filled(kBytes, 1);
  std::vector<std::byte> destination;
  EXPECT_TRUE(mirror(block, destination));
  using runtime::FaultInjection;
  FaultInjection::instance().arm(runtime::FaultPoint::kCopy, 1, false);
  EXPECT_FALSE(failed(fill(block, 2)));
  FaultInjection::instance().disarmAll();
  EXPECT_FALSE(pager->finishMirror().ok());
  EXPECT_FALSE(block->isMirrored());
  EXPECT_FALSE(failed(expect(block, 2)));
  EXPECT_TRUE(mirror(block, destination));
  finish();
  EXPECT_EQ(destination, pattern(kBytes, 2));
}

} // namespace
} // namespace chameleon::memory
