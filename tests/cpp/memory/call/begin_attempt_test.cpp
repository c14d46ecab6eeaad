// The ladder: reuse, evict, compact, wait, fail; and what failures leave.
#include "memory/pager.h"
#include "tests/cpp/memory/pager_fixture.h"

namespace chameleon::memory {
namespace {

using runtime::Error;
using runtime::ErrorCode;

constexpr std::size_t kUnit = 64 * kKiB;

TEST_F(PagerTest, ReuseComesFirst) {
  open(4 * kUnit);
  Block* const first = filled(kUnit, 1);
  std::byte* const address = first->device_address;
  pager->release(first);
  Block* const second = filled(kUnit, 2);
  EXPECT_EQ(second->device_address, address);
  EXPECT_EQ(pager->stats().evictions, 0);
  EXPECT_EQ(pager->stats().compactions, 0);
}

// What an op writes first goes where the op before it left room: the copy out
// of what was there earlier may take long yet. What is copied in goes where
// the oldest left.
TEST_F(PagerTest, WhoWritesFirstChoosesTheRoom) {
  runtime::CpuAdversary adversary;
  adversary.copies = runtime::CopyTiming::kOnAwait;
  adversary.compute_delay_ops = 8;
  open(4 * kUnit, 256 * kMiB, 64, adversary);
  Block* const evicted = filled(kUnit, 1);
  Block* const dead = filled(kUnit, 2);
  for (int i = 3; i < 5; ++i) filled(kUnit, i);
  const std::byte* const by_copy = evicted->device_address;
  const std::byte* const by_op = dead->device_address;
  ASSERT_FALSE(failed(pager->evict(*evicted)));
  pager->release(dead);
  pager->trim(); // room that is free, not a spare block
  Block* const fresh = filled(kUnit, 5);
  EXPECT_EQ(fresh->device_address, by_op);
  EXPECT_FALSE(failed(expect(evicted, 1)));
  EXPECT_EQ(evicted->device_address, by_copy);
  EXPECT_EQ(pager->stats().evictions, 1);
  EXPECT_FALSE(failed(expect(fresh, 5)));
}

TEST_F(PagerTest, EvictsNoMoreThanNeeded) {
  open(8 * kUnit);
  for (int i = 0; i < 8; ++i) filled(kUnit, i);
  Block* const big = filled(3 * kUnit, 9);
  EXPECT_EQ(pager->stats().evictions, 3);
  EXPECT_EQ(pager->stats().compactions, 0);
  EXPECT_FALSE(failed(expect(big, 9)));
}

// Holes at 0, 2, 4, 6: enough for 3 units, in pieces. Sliding is cheaper than
// evicting, and takes the window with the fewest bytes to move.
TEST_F(PagerTest, CompactsRatherThanEvicts) {
  for (const runtime::CopyTiming copies :
       {runtime::CopyTiming::kPrompt, runtime::CopyTiming::kOnAwait}) {
    runtime::CpuAdversary adversary;
    adversary.copies = copies;
    adversary.compute_delay_ops =
        copies == runtime::CopyTiming::kPrompt ? 0 : 3;
    open(8 * kUnit, 256 * kMiB, 64, adversary);
    std::vector<Block*> blocks;
    for (int i = 0; i < 8; ++i) blocks.push_back(filled(kUnit, i));
    for (int i = 0; i < 8; i += 2) pager->release(blocks[i]);
    Block* const big = filled(3 * kUnit, 9);
    EXPECT_EQ(pager->stats().evictions, 0);
    EXPECT_EQ(pager->stats().compactions, 1);
    check();
    EXPECT_FALSE(failed(expect(big, 9)));
    for (int i = 1; i < 8; i += 2) {
      EXPECT_EQ(blocks[i]->state(), BlockState::kResident);
      EXPECT_FALSE(failed(expect(blocks[i], i)));
      EXPECT_FALSE(failed(expect(blocks[i], i, {5}))); // another stream
    }
  }
}

// Two units are free, one on each side of a large block; the next victim is a
// small one, for which there is no other place. Beside its bytes each copy, and
// what is needed, counts as 2 MiB: 32 units.
TEST_F(PagerTest, MovesUpToSixteenTimesWhatIsNeeded) {
  static_assert(32 * kUnit == 2 * kMiB);
  for (const std::size_t units : {512, 513}) {
    open((units + 4) * kUnit);
    Block* const victim = filled(2 * kUnit, 0);
    Block* const low = filled(kUnit, 1);
    Block* const large = filled(units * kUnit, 2);
    Block* const high = filled(kUnit, 3);
    pager->release(low);
    pager->release(high);
    Block* const block = filled(2 * kUnit, 4);
    const bool moves = units == 512;
    EXPECT_EQ(pager->stats().compactions, moves ? 1 : 0);
    EXPECT_EQ(pager->stats().evictions, moves ? 0 : 1);
    EXPECT_FALSE(failed(expect(block, 4)));
    EXPECT_FALSE(failed(expect(large, 2)));
    check();
    pager->release(victim);
    pager->release(block);
    pager->release(large);
  }
}

// The same where the large block is the next victim.
TEST_F(PagerTest, MovesUpToSixteenTimesWhatWouldLeave) {
  constexpr std::size_t kLarge = 513 * kUnit;
  open(kLarge + 2 * kUnit);
  Block* const low = filled(kUnit, 1);
  Block* const large = filled(kLarge, 2);
  Block* const high = filled(kUnit, 3);
  pager->release(low);
  pager->release(high);
  Block* const block = filled(2 * kUnit, 4);
  EXPECT_EQ(pager->stats().compactions, 1);
  EXPECT_EQ(pager->stats().evictions, 0);
  EXPECT_FALSE(failed(expect(block, 4)));
  EXPECT_FALSE(failed(expect(large, 2)));
  check();
}

TEST_F(PagerTest, MovesWhateverItTakesWhereNothingCanBeEvicted) {
  open(22 * kUnit);
  Block* const low = filled(kUnit, 1);
  Block* const large = filled(20 * kUnit, 2);
  Block* const high = filled(kUnit, 3);
  pager->release(low);
  pager->release(high);
  Block* const block = create(2 * kUnit);
  Call call;
  const Operand operands[] = {{large, Access::kRead}, {block, Access::kWrite}};
  ASSERT_FALSE(
      failed(pager->begin(call, kStream, operands, nullptr, "both", false)));
  EXPECT_EQ(pager->stats().compactions, 1);
  EXPECT_EQ(pager->stats().evictions, 0);
  EXPECT_TRUE(holds(large->device_address, large->bytes, 2));
  pager->end(call);
}

TEST_F(PagerTest, CompactionGoesAroundPins) {
  open(8 * kUnit);
  std::vector<Block*> blocks;
  for (int i = 0; i < 8; ++i) blocks.push_back(filled(kUnit, i));
  const Operand pinned{blocks[3], Access::kRead};
  Call call;
  ASSERT_FALSE(
      failed(pager->begin(call, kStream, {&pinned, 1}, nullptr, "op", true)));
  std::byte* const address = blocks[3]->device_address;
  for (int i : {0, 2, 5, 7}) pager->release(blocks[i]);
  // 0 and 2 lie below the pin, 5 and 7 above.
  runtime::Result<std::byte*> bytes = pager->allocate(call, 2 * kUnit);
  ASSERT_TRUE(bytes.ok());
  EXPECT_EQ(pager->stats().evictions, 0);
  EXPECT_EQ(pager->stats().compactions, 1);
  EXPECT_EQ(blocks[3]->device_address, address);
  EXPECT_TRUE(holds(address, kUnit, 3));
  check(2);
  pager->free(&call, *bytes);
  // Below the pin are 3 units, above 4: for more than that nothing helps.
  runtime::Result<std::byte*> more = pager->allocate(call, 5 * kUnit);
  ASSERT_FALSE(more.ok());
  EXPECT_NE(more.error().message().find("in one piece 256.00 KiB"),
            std::string::npos)
      << more.error().message();
  pager->end(call);
  for (int i : {1, 3, 4, 6}) EXPECT_FALSE(failed(expect(blocks[i], i)));
}

// Blocks of 3 and 2 units are in the way of a hole of 6. The first leaves 3
// units, which would suit the second better than the hole of 4 elsewhere.
TEST_F(PagerTest, WhatMakesWayDoesNotMoveIntoWhatAnotherLeft) {
  open(17 * kUnit);
  Block* const first = filled(3 * kUnit, 1);
  Block* const gap = filled(kUnit, 2);
  Block* const second = filled(2 * kUnit, 3);
  std::vector<Block*> walls;
  std::vector<Block*> holes;
  for (const std::size_t units : {3, 4}) {
    walls.push_back(filled(kUnit, 4));
    holes.push_back(filled(units * kUnit, 5));
  }
  walls.push_back(filled(2 * kUnit, 6));
  std::vector<Operand> pinned;
  for (Block* wall : walls) pinned.push_back({wall, Access::kRead});
  Call call;
  ASSERT_FALSE(
      failed(pager->begin(call, kStream, pinned, nullptr, "op", true)));
  pager->release(gap);
  for (Block* hole : holes) pager->release(hole);
  runtime::Result<std::byte*> bytes = pager->allocate(call, 6 * kUnit);
  ASSERT_TRUE(bytes.ok());
  EXPECT_EQ(pager->stats().evictions, 0);
  EXPECT_EQ(pager->stats().compactions, 1);
  check(2);
  pager->end(call);
  EXPECT_FALSE(failed(expect(first, 1)));
  EXPECT_FALSE(failed(expect(second, 3)));
}

// The resident operand lies in the middle: the call may move it as long as
// nobody else has it pinned.
TEST_F(PagerTest, OperandsOfTheCallItselfMove) {
  open(4 * kUnit);
  Block* const low = filled(kUnit, 1);
  Block* const middle = filled(kUnit, 2);
  pager->release(low);
  Block* const big = create(3 * kUnit);
  const Operand operands[] = {{middle, Access::kRead}, {big, Access::kWrite}};
  Call call;
  ASSERT_FALSE(
      failed(pager->begin(call, kStream, operands, nullptr, "op", false)));
  EXPECT_TRUE(holds(middle->device_address, kUnit, 2));
  check(2);
  pager->end(call);
  EXPECT_EQ(pager->stats().compactions, 1);
}

TEST_F(PagerTest, KernelThatWritesFindsItsRoomBeforehand) {
  open(8 * kUnit);
  std::vector<Block*> blocks;
  for (int i = 0; i < 8; ++i) blocks.push_back(filled(kUnit, i));
  const Operand operands[] = {{blocks[3], Access::kWrite}};
  OpMemory memory;
  memory.peak_bytes = 6 * kUnit;
  memory.known = true;
  Call call;
  ASSERT_FALSE(
      failed(pager->begin(call, kStream, operands, &memory, "op", false)));
  check(2);
  EXPECT_TRUE(holds(blocks[3]->device_address, kUnit, 3));
  runtime::Result<std::byte*> bytes = pager->allocate(call, 6 * kUnit);
  EXPECT_TRUE(bytes.ok());
  pager->free(&call, *bytes);
  pager->end(call);
  for (int i = 0; i < 8; ++i) EXPECT_FALSE(failed(expect(blocks[i], i)));
}

// A small allocation falls into the smallest hole, in the middle of the only
// run that has room for the large one. The second attempt takes its room as one
// hole beforehand.
TEST_F(PagerTest, RetriedKernelDoesNotSplitItsOwnRoom) {
  open(16 * kUnit);
  std::vector<Block*> blocks;
  for (int i = 0; i < 16; ++i) blocks.push_back(filled(kUnit, i));
  for (int i : {1, 2, 3, 4, 5, 7, 9, 10, 11, 12}) pager->release(blocks[i]);
  const Operand operands[] = {{blocks[0], Access::kRead}};
  OpMemory memory;
  memory.known = true; // of another shape, which needs nothing
  Call call;
  int attempts = 0;
  for (bool done = false; !done;) {
    ++attempts;
    ASSERT_FALSE(
        failed(pager->begin(call, kStream, operands, &memory, "op", true)));
    runtime::Result<std::byte*> small = pager->allocate(call, kUnit);
    ASSERT_TRUE(small.ok());
    runtime::Result<std::byte*> large = pager->allocate(call, 9 * kUnit);
    done = large.ok();
    if (done) pager->free(&call, *large);
    pager->free(&call, *small);
    pager->end(call);
    ASSERT_TRUE(done || call.worthRetrying()) << large.error().message();
  }
  EXPECT_EQ(attempts, 2);
  EXPECT_EQ(pager->stats().evictions, 0);
  for (int i : {0, 6, 8, 13, 14, 15}) {
    EXPECT_FALSE(failed(expect(blocks[i], i)));
  }
}

TEST_F(PagerTest, AllOrNothing) {
  open(4 * kUnit);
  std::vector<Block*> blocks;
  for (int i = 0; i < 4; ++i) blocks.push_back(filled(kUnit, i));
  blocks.push_back(filled(2 * kUnit, 4)); // two of the others are out now
  std::vector<Operand> operands;
  for (Block* block : blocks) operands.push_back({block, Access::kWrite});
  Call call;
  const Error error =
      pager->begin(call, kStream, operands, nullptr, "stack", false);
  ASSERT_TRUE(failed(error));
  EXPECT_EQ(error.code(), ErrorCode::kOutOfDeviceMemory);
  EXPECT_NE(error.message().find("stack needs 384.00 KiB of HBM (operands "
                                 "384.00 KiB, inside the kernel 0 B); budget "
                                 "256.00 KiB"),
            std::string::npos)
      << error.message();
  for (Block* block : blocks) EXPECT_EQ(block->pins(), 0u);
  check();
  for (int i = 0; i < 5; ++i) EXPECT_FALSE(failed(expect(blocks[i], i)));
}

// The operands fit by their bytes but a foreign extent splits the arena.
TEST_F(PagerTest, FragmentedForGood) {
  open(4 * kUnit);
  Call call;
  ASSERT_FALSE(failed(pager->begin(call, kStream, {}, nullptr, "op", true)));
  runtime::Result<std::byte*> low = pager->allocate(call, 2 * kUnit);
  runtime::Result<std::byte*> kept = pager->allocate(call, kUnit);
  ASSERT_TRUE(low.ok() && kept.ok());
  pager->free(&call, *low);
  pager->end(call);
  Block* const big = create(3 * kUnit);
  Block* const other = filled(kUnit, 1);
  const Error error = fill(big, 2);
  ASSERT_TRUE(failed(error));
  EXPECT_EQ(error.code(), ErrorCode::kOutOfDeviceMemory);
  check();
  EXPECT_FALSE(failed(expect(other, 1)));
  pager->free(nullptr, *kept);
  EXPECT_FALSE(failed(fill(big, 2)));
}

// ---- the host side ---------------------------------------------------------

TEST_F(PagerTest, HostFull) {
  open(4 * kUnit, 2 * kUnit);
  std::vector<Block*> blocks;
  for (int i = 0; i < 6; ++i) blocks.push_back(filled(kUnit, i));
  EXPECT_EQ(pager->stats().host_bytes, 2 * kUnit);
  Block* const more = create(kUnit);
  const Error error = fill(more, 6);
  ASSERT_TRUE(failed(error));
  EXPECT_EQ(error.code(), ErrorCode::kOutOfHostMemory);
  EXPECT_NE(error.message().find("host_budget"), std::string::npos);
  EXPECT_NE(error.message().find("host use 128.00 KiB of 128.00 KiB"),
            std::string::npos)
      << error.message();
  check();
  EXPECT_EQ(pager->evictAll().code(), ErrorCode::kOutOfHostMemory);
  EXPECT_EQ(pager->evict(*blocks[5]).code(), ErrorCode::kOutOfHostMemory);
  for (int i = 2; i < 6; ++i) EXPECT_FALSE(failed(expect(blocks[i], i)));
  pager->release(blocks[0]); // one place is free again
  EXPECT_FALSE(failed(fill(more, 6)));
  EXPECT_LE(pager->stats().peak_host_bytes, pager->stats().host_budget);
}

TEST_F(PagerTest, CleanCopiesMakeWay) {
  open(4 * kUnit, 2 * kUnit);
  Block* const first = filled(kUnit, 1);
  Block* const second = filled(kUnit, 2);
  for (Block* block : {first, second}) {
    EXPECT_FALSE(failed(pager->evict(*block)));
  }
  EXPECT_FALSE(failed(expect(first, 1)));
  EXPECT_FALSE(failed(expect(second, 2)));
  Block* const dirty = filled(kUnit, 3);
  EXPECT_EQ(pager->stats().host_bytes, 2 * kUnit);
  EXPECT_FALSE(failed(pager->evict(*dirty)));
  EXPECT_FALSE(first->hasHostCopy()); // the oldest copy
  EXPECT_TRUE(second->hasHostCopy());
  check();
  EXPECT_FALSE(failed(expect(first, 1)));
  EXPECT_FALSE(failed(expect(second, 2)));
  EXPECT_FALSE(failed(expect(dirty, 3)));
}

TEST_F(PagerTest, FullHostStillEvictsCleanBlocks) {
  open(2 * kUnit, kUnit);
  Block* const clean = filled(kUnit, 1);
  EXPECT_FALSE(failed(pager->evict(*clean)));
  EXPECT_FALSE(failed(expect(clean, 1)));
  EXPECT_FALSE(failed(pager->evict(*clean))); // its copy fills the host
  Block* const dirty = filled(kUnit, 2);
  EXPECT_FALSE(failed(expect(clean, 1)));
  EXPECT_FALSE(failed(expect(dirty, 2))); // clean is the older one
  Block* const more = filled(kUnit, 3);
  EXPECT_EQ(clean->device, nullptr);
  EXPECT_EQ(pager->stats().bytes_out, kUnit);
  EXPECT_FALSE(failed(expect(dirty, 2)));
  EXPECT_FALSE(failed(expect(more, 3)));
}

// ---- injected failures ------------------------------------------------------

class PagerFaultTest : public PagerTest {
 protected:
  using Point = runtime::FaultPoint;
  runtime::FaultInjection& faults = runtime::FaultInjection::instance();

  // What one round does: faults, dirty and clean evictions, compaction,
  // in-call memory, host access. Reports the first error.
  Error round(std::uint64_t seed) {
    for (Block* block : {blocks_[0], blocks_[1], blocks_[2]}) {
      if (Error error = expectModel(block)) return error;
    }
    if (Error error = fillModel(blocks_[1], seed)) return error;
    if (Error error = fillModel(blocks_[3], seed + 1)) return error;
    if (Error error = expectModel(blocks_[0])) return error;
    const Operand operand{blocks_[2], Access::kRead};
    OpMemory memory;
    Call call;
    do {
      if (Error error =
              pager->begin(call, kStream, {&operand, 1}, &memory, "op", true)) {
        return error;
      }
      runtime::Result<std::byte*> bytes = pager->allocate(call, 3 * kUnit / 2);
      if (bytes.ok()) pager->free(&call, *bytes);
      pager->end(call);
      if (!bytes.ok() && !call.worthRetrying()) return bytes.takeError();
    } while (call.worthRetrying());
    for (const auto& [block, value] : model_) {
      if (Error error = pager->read(*block, 0, data_.data(), kUnit, kStream)) {
        return error;
      }
      EXPECT_TRUE(holds(data_.data(), kUnit, value));
    }
    fill_pattern(data_.data(), kUnit, seed + 2);
    if (Error error =
            pager->write(*blocks_[0], 0, data_.data(), kUnit, kStream)) {
      // The bytes that a failed write was to write are lost.
      (void)fillModel(blocks_[0], seed + 2).ok();
      return error;
    }
    model_[blocks_[0]] = seed + 2;
    return {};
  }

  void start() {
    open(3 * kUnit, 6 * kUnit);
    model_.clear();
    blocks_.clear();
    for (std::uint64_t i = 0; i < 4; ++i) {
      blocks_.push_back(create(kUnit));
      ASSERT_FALSE(failed(fillModel(blocks_.back(), i)));
    }
  }

  Error fillModel(Block* block, std::uint64_t seed) {
    Error error = fill(block, seed);
    if (!error) model_[block] = seed;
    return error;
  }
  Error expectModel(Block* block) { return expect(block, model_[block]); }

  std::vector<Block*> blocks_;
  std::map<Block*, std::uint64_t> model_;
  // Outlives the copies of a round whose waits failed.
  std::vector<std::byte> data_ = std::vector<std::byte>(kUnit);
};

// Every pass of every point fails once, and for ever for a while: no block
// loses a bit, no pin stays, and afterwards everything works.
TEST_F(PagerFaultTest, EveryFailureLeavesTheBitsIntact) {
  for (const Point point :
       {Point::kCommit, Point::kAllocateHost, Point::kCopy, Point::kEvent}) {
    start();
    faults.arm(point, 0, false);
    ASSERT_FALSE(failed(round(100)));
    const std::uint64_t passes = faults.passes(point) + 2;
    for (const bool for_ever : {false, true}) {
      std::uint64_t errors = 0;
      for (std::uint64_t nth = 1; nth <= passes; ++nth) {
        SCOPED_TRACE(::testing::Message()
                     << "point " << static_cast<int>(point) << " pass " << nth
                     << (for_ever ? " for ever" : ""));
        start();
        faults.arm(point, nth, for_ever);
        if (round(1000 * nth)) ++errors;
        pager->invariants().check(2);
        for (Block* block : blocks_) EXPECT_EQ(block->pins(), 0u);
        faults.disarmAll();
        check();
        for (Block* block : blocks_) {
          EXPECT_FALSE(failed(expectModel(block)));
        }
        EXPECT_FALSE(failed(round(1000 * nth + 500)));
        check();
      }
      if (point == Point::kCopy) {
        EXPECT_GT(errors, 0u);
      }
    }
  }
}

TEST_F(PagerTest, CommitFailureSaysSo) {
  open(64 * kMiB);
  Block* const block = create(8 * kMiB);
  runtime::FaultInjection::instance().arm(runtime::FaultPoint::kCommit, 1,
                                          false);
  const Error error = fill(block, 1);
  ASSERT_TRUE(failed(error));
  EXPECT_EQ(block->state(), BlockState::kUnbacked);
  check();
  EXPECT_FALSE(failed(fill(block, 1)));
}

} // namespace
} // namespace chameleon::memory
