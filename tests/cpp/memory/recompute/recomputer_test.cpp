// Blocks that are dropped and made again: which bytes come back, what is kept
// for it and for how long, and what may not be dropped.
#include <map>
#include <string>

#include "tests/cpp/memory/recompute/rerun_fixture.h"

namespace chameleon::memory {
namespace {

using runtime::Error;
using runtime::ErrorCode;

constexpr std::size_t kBytes = 4 * kKiB;
constexpr Access R = Access::kRead;
constexpr Access W = Access::kWrite;
constexpr Access O = Access::kOverwrite;

TEST_F(PagerRerunTest, ComesBackWhenAnOpNeedsIt) {
  const Handle x = leaf(kBytes, 1);
  const Handle y = unary({x}, kBytes);
  const std::int64_t resident = stats().resident_bytes;
  const std::int64_t logical = stats().logical_bytes;
  const std::int64_t ops = stats().ops;
  ASSERT_TRUE(pager->recomputer().drop(*y->block));
  EXPECT_TRUE(isDropped(y));
  check();
  EXPECT_EQ(stats().resident_bytes, resident - 4096);
  EXPECT_EQ(stats().dropped_bytes, 4096);
  EXPECT_EQ(stats().rerun_ops, 0);
  const Handle z = unary({y}, kBytes);
  expectBytes(z);
  EXPECT_FALSE(isDropped(y));
  EXPECT_EQ(stats().rerun_ops, 1);
  EXPECT_EQ(stats().ops, ops + 1); // re-runs are no ops
  EXPECT_GT(stats().rerun_ns, 0);
  EXPECT_EQ(stats().logical_bytes, logical + 4096);
  EXPECT_EQ(stats().peak_logical_bytes, logical + 4096);
  expectBytes(y);
  pager->resetStats();
  EXPECT_EQ(stats().dropped_bytes + stats().rerun_ops + stats().rerun_ns, 0);
}

TEST_F(PagerRerunTest, ATimelineShowsThemApart) {
  const Handle x = leaf(kBytes, 1);
  const Handle y = unary({x}, kBytes);
  ASSERT_TRUE(pager->recomputer().drop(*y->block));
  pager->meter().recordTimeline(true);
  const Handle z = unary({y}, kBytes);
  expectBytes(z);
  pager->meter().recordTimeline(false);
  std::map<profiler::Lane, int> lanes;
  for (const profiler::Interval& interval :
       pager->meter().timeline().intervals()) {
    ++lanes[interval.lane];
  }
  EXPECT_EQ(lanes[profiler::Lane::kReruns], 1);
  EXPECT_EQ(lanes[profiler::Lane::kCompute], 1);
}

TEST_F(PagerRerunTest, EachRecordRunsOnce) {
  const Handle x = leaf(kBytes, 1);
  const Handle y = unary({x}, kBytes);
  EXPECT_EQ(alive, 1);
  ASSERT_TRUE(pager->recomputer().drop(*y->block));
  expectBytes(y);
  EXPECT_EQ(alive, 0); // the record, and its hold on x
  EXPECT_FALSE(pager->recomputer().drop(*y->block));
  pager->release(x->block); // nothing is held
  EXPECT_EQ(stats().held_bytes, 0);
  *x = {create(kBytes), {}};
}

// Kernels that run again count as running for a while, as any do.
TEST_F(PagerRerunTest, OtherStreamsWaitForWhatIsMadeAgain) {
  open(kMiB, 256 * kMiB, 64, {.compute_delay_ops = 64});
  recordAll();
  const Handle x = leaf(kBytes, 1);
  std::vector<Handle> made;
  for (int i = 0; i < 8; ++i) made.push_back(unary({x}, kBytes));
  pager->recomputer().dropAll();
  for (const Handle& y : made) {
    EXPECT_TRUE(isDropped(y));
    (void)unary({y}, kBytes); // makes it, on this stream
    EXPECT_FALSE(isDropped(y));
  }
  stream = runtime::Stream{1}; // where nothing else makes it wait
  std::vector<Handle> read;
  for (std::size_t i = made.size(); i-- > 0;) {
    read.push_back(unary({made[i]}, kBytes));
  }
  for (const Handle& z : read) expectBytes(z);
}

TEST_F(PagerRerunTest, ReadsOfTheHostBringItBack) {
  const Handle x = leaf(kBytes, 1);
  const Handle y = unary({x}, kBytes);
  ASSERT_TRUE(pager->recomputer().drop(*y->block));
  expectBytes(y);
  EXPECT_EQ(stats().rerun_ops, 1);
}

TEST_F(PagerRerunTest, WritesOfTheHostBringBackWhatTheyLeave) {
  const Handle x = leaf(kBytes, 1);
  const Handle y = unary({x}, kBytes);
  ASSERT_TRUE(pager->recomputer().drop(*y->block));
  const Bytes piece = pattern(100, 77);
  ASSERT_FALSE(failed(pager->write(*y->block, 50, piece.data(), 100, stream)));
  std::copy(piece.begin(), piece.end(), y->bytes.begin() + 50);
  expectBytes(y);
  EXPECT_FALSE(
      pager->recomputer().drop(*y->block)); // another value than recorded
  EXPECT_EQ(alive, 0);
}

// A host write to an operand, in HBM and on the host.
TEST_F(PagerRerunTest, WritesOfTheHostToOperandsWaitForTheReruns) {
  for (const bool away : {false, true}) {
    const Handle x = leaf(kBytes, 1);
    const Handle y = unary({x}, kBytes);
    ASSERT_TRUE(pager->recomputer().drop(*y->block));
    if (away) {
      ASSERT_FALSE(failed(pager->evict(*x->block)));
    }
    const Bytes other = pattern(kBytes, 5);
    ASSERT_FALSE(
        failed(pager->write(*x->block, 0, other.data(), kBytes, stream)));
    x->bytes = other;
    EXPECT_FALSE(isDropped(y));
    expectBytes(y);
    expectBytes(x);
    EXPECT_EQ(alive, 0);
    check();
  }
}

TEST_F(PagerRerunTest, DropsWhatIsOnTheHost) {
  const Handle x = leaf(kBytes, 1);
  for (const bool fetched : {false, true}) {
    const Handle y = unary({x}, kBytes);
    ASSERT_FALSE(failed(pager->evict(*y->block)));
    if (fetched) {
      unary({y}, kBytes);
    }
    ASSERT_TRUE(pager->recomputer().drop(*y->block));
    EXPECT_EQ(stats().host_bytes, 0);
    check();
    expectBytes(y);
  }
}

TEST_F(PagerRerunTest, ChainsComeBackInOrder) {
  const Handle x = leaf(kBytes, 1);
  std::vector<Handle> chain{x};
  for (int i = 0; i < 20; ++i) chain.push_back(unary({chain.back()}, kBytes));
  for (std::size_t i = 1; i < chain.size(); ++i) {
    ASSERT_TRUE(pager->recomputer().drop(*chain[i]->block));
  }
  check();
  expectBytes(chain.back());
  EXPECT_EQ(stats().rerun_ops, 20);
  for (const Handle& each : chain) expectBytes(each);
  EXPECT_EQ(stats().rerun_ops, 20);
  EXPECT_EQ(alive, 0);
}

TEST_F(PagerRerunTest, DeadOperandsAreHeldAndTemporariesFreedAtOnce) {
  Handle a = leaf(kBytes, 1);
  Handle b = unary({a}, 2 * kBytes);
  Handle c = unary({b}, 3 * kBytes);
  const Handle d = unary({c}, 4 * kBytes);
  Block* const held = b->block;
  a.reset();
  b.reset();
  c.reset();
  EXPECT_EQ(stats().logical_bytes, 4 * 4096);
  EXPECT_EQ(stats().held_bytes, 6 * 4096);
  // What can be made again is dropped when it dies.
  EXPECT_EQ(held->state(), BlockState::kDropped);
  EXPECT_EQ(stats().resident_bytes, 5 * 4096);
  check();
  ASSERT_TRUE(pager->recomputer().drop(*d->block));
  ASSERT_FALSE(failed(pager->evictAll()));
  check();
  expectBytes(d);
  EXPECT_EQ(stats().rerun_ops, 3);
  EXPECT_EQ(stats().held_bytes, 0);
  EXPECT_EQ(stats().resident_bytes, 4 * 4096);
  EXPECT_EQ(stats().peak_logical_bytes, 10 * 4096);
}

TEST_F(PagerRerunTest, RecordsGoWithWhatTheyMake) {
  Handle a = leaf(kBytes, 1);
  Handle b = unary({a}, kBytes);
  Handle c = unary({b}, kBytes);
  b.reset();
  a.reset();
  ASSERT_TRUE(pager->recomputer().drop(*c->block));
  EXPECT_EQ(stats().held_bytes, 2 * 4096);
  c.reset(); // nobody asks for it any more
  EXPECT_EQ(stats().held_bytes, 0);
  EXPECT_EQ(stats().resident_bytes, 0);
  EXPECT_EQ(stats().rerun_ops, 0);
  EXPECT_EQ(alive, 0);
}

// Neither making nor freeing may recurse.
TEST_F(PagerRerunTest, ChainsMayBeLong) {
  open(8 * kMiB);
  recordAll();
  constexpr std::size_t kLength = 1000;
  Handle last = leaf(512, 1);
  for (std::size_t i = 0; i < kLength; ++i) last = unary({last}, 512);
  EXPECT_EQ(alive, static_cast<int>(kLength));
  EXPECT_EQ(stats().held_bytes, static_cast<std::int64_t>(kLength * 512));
  last.reset();
  EXPECT_EQ(stats().held_bytes, 0);
  EXPECT_EQ(alive, 0);
}

TEST_F(PagerRerunTest, ClosuresAreBounded) {
  open(8 * kMiB);
  recordAll();
  std::vector<Handle> chain{leaf(512, 1)};
  const std::size_t length = 3 * RecomputeRecords::kMaxClosure;
  for (std::size_t i = 0; i < length; ++i) {
    chain.push_back(unary({chain.back()}, 512));
  }
  std::size_t dropped = 0;
  for (std::size_t i = 1; i < chain.size(); ++i) {
    if (pager->recomputer().drop(*chain[i]->block)) ++dropped;
  }
  EXPECT_EQ(dropped, length - 2); // each border keeps its bytes
  expectBytes(chain.back());
  EXPECT_LE(stats().rerun_ops,
            static_cast<std::int64_t>(RecomputeRecords::kMaxClosure));
  for (const Handle& each : chain) expectBytes(each);
}

TEST_F(PagerRerunTest, AllResultsOfAnOpComeBackTogether) {
  const Handle x = leaf(kBytes, 1);
  std::vector<Handle> y = run({9, {R}, {100, 5000, 512}, {}}, {x});
  ASSERT_TRUE(pager->recomputer().drop(*y[0]->block));
  ASSERT_TRUE(pager->recomputer().drop(*y[2]->block));
  y[2].reset(); // dropped and dead
  expectBytes(y[0]);
  EXPECT_EQ(stats().rerun_ops, 1);
  expectBytes(y[1]);
  EXPECT_FALSE(pager->recomputer().drop(*y[1]->block));
}

TEST_F(PagerRerunTest, InPlaceWritersFinishTheValue) {
  const Handle x = leaf(kBytes, 1);
  const Handle z = leaf(kBytes, 2);
  const Handle y = unary({x}, kBytes);
  inPlace({y});
  inPlace({y, z});
  inPlace({y, x});
  EXPECT_EQ(alive, 4);
  ASSERT_TRUE(pager->recomputer().drop(*y->block));
  const Handle other = unary({y}, kBytes);
  EXPECT_EQ(stats().rerun_ops, 4);
  expectBytes(y);
  expectBytes(other);
}

TEST_F(PagerRerunTest, OverwritersBeginAValue) {
  const Handle x = leaf(kBytes, 1);
  const Handle y = leaf(kBytes, 2);
  run({50, {O, R}, {}, {}}, {y, x}); // y = f(x)
  inPlace({y, x});
  ASSERT_TRUE(pager->recomputer().drop(*y->block));
  expectBytes(y);
  EXPECT_EQ(stats().rerun_ops, 2);
  // Two at once, and what was dropped before it is overwritten.
  const Handle a = unary({x}, kBytes);
  const Handle b = leaf(100, 3);
  ASSERT_TRUE(pager->recomputer().drop(*a->block));
  run({51, {O, O, R}, {}, {}}, {a, b, x});
  ASSERT_TRUE(pager->recomputer().drop(*a->block));
  ASSERT_TRUE(pager->recomputer().drop(*b->block));
  check();
  expectBytes(a);
  expectBytes(b);
}

TEST_F(PagerRerunTest, SideEffectsGoToOtherMemory) {
  const Handle x = leaf(kBytes, 1);
  const Handle statistics = leaf(128, 2);
  const MixOp norm{60, {R, W}, {kBytes, 64}, {false, true}};
  const Handle y = run(norm, {x, statistics})[0];
  inPlace({y});
  inPlace({statistics}); // its value does not matter
  ASSERT_TRUE(pager->recomputer().drop(*y->block));
  expectBytes(y);
  expectBytes(statistics);
  EXPECT_EQ(stats().rerun_ops, 2);
}

TEST_F(PagerRerunTest, WritingAnOperandBringsBackWhatWasMadeOfIt) {
  const Handle x = leaf(kBytes, 1);
  const Handle y = unary({x}, kBytes);
  const Handle z = unary({y}, kBytes);
  const Handle kept = unary({x}, kBytes);
  ASSERT_TRUE(pager->recomputer().drop(*y->block));
  ASSERT_TRUE(pager->recomputer().drop(*z->block));
  inPlace({x}); // as an optimizer does
  EXPECT_FALSE(isDropped(y));
  EXPECT_TRUE(isDropped(z)); // needs y alone
  EXPECT_FALSE(pager->recomputer().drop(*y->block));
  EXPECT_FALSE(pager->recomputer().drop(*kept->block)); // void
  for (const Handle& each : {x, y, z, kept}) expectBytes(each);
}

TEST_F(PagerRerunTest, WritesThatAreNotRecordedEndARecord) {
  const Handle x = leaf(kBytes, 1);
  const Handle y = unary({x}, kBytes);
  pager->stress().setDropStress(DropStress::kNever);
  inPlace({y});
  recordAll();
  EXPECT_EQ(alive, 0);
  EXPECT_FALSE(pager->recomputer().drop(*y->block));
  inPlace({y}); // a writer without a maker
  EXPECT_FALSE(pager->recomputer().drop(*y->block));
  expectBytes(y);
}

// A1 += f(A2), where A1 and A2 are results of one op: A1 cannot need itself.
TEST_F(PagerRerunTest, RecordsFormNoCircle) {
  const Handle x = leaf(kBytes, 1);
  std::vector<Handle> a = run({70, {R}, {kBytes, kBytes}, {}}, {x});
  const Handle b = unary({a[1]}, kBytes);
  const Handle c = unary({b}, kBytes);
  inPlace({a[0], c});
  EXPECT_FALSE(pager->recomputer().drop(*a[0]->block));
  ASSERT_TRUE(pager->recomputer().drop(*a[1]->block));
  ASSERT_TRUE(pager->recomputer().drop(*b->block));
  ASSERT_TRUE(pager->recomputer().drop(*c->block));
  for (const Handle& each : {a[0], c, b, a[1]}) expectBytes(each);
  // Without that dependence it is a step as any other.
  a = run({71, {R}, {kBytes, kBytes}, {}}, {x});
  const Handle d = unary({a[1]}, kBytes);
  const Handle e = unary({x}, kBytes);
  inPlace({a[0], e, a[1]});
  ASSERT_TRUE(pager->recomputer().drop(*a[0]->block));
  ASSERT_TRUE(pager->recomputer().drop(*a[1]->block));
  ASSERT_TRUE(pager->recomputer().drop(*d->block));
  for (const Handle& each : {d, a[0], a[1]}) expectBytes(each);
}

TEST_F(PagerRerunTest, NothingIsDroppedThatAnybodyUses) {
  const Handle x = leaf(kBytes, 1);
  const Handle y = unary({x}, kBytes);
  EXPECT_FALSE(
      pager->recomputer().drop(*x->block)); // nobody knows how it was made
  Call call;
  const Operand operand{y->block, R};
  ASSERT_FALSE(
      failed(pager->begin(call, stream, {&operand, 1}, nullptr, "pin", true)));
  EXPECT_FALSE(pager->recomputer().drop(*y->block));
  pager->end(call);
  EXPECT_TRUE(pager->recomputer().drop(*y->block));
}

TEST_F(PagerRerunTest, NothingIsRecordedThatAnotherCallMayWrite) {
  const Handle x = leaf(kBytes, 1);
  Call call;
  const Operand operand{x->block, W};
  ASSERT_FALSE(
      failed(pager->begin(call, stream, {&operand, 1}, nullptr, "pin", true)));
  pager->keepPins(call);
  const Handle y = unary({x}, kBytes);
  EXPECT_FALSE(pager->recomputer().drop(*y->block));
  EXPECT_EQ(alive, 0);
  pager->end(call);
  check();
}

TEST_F(PagerRerunTest, AThreadInsideACallMayMakeThem) {
  const Handle x = leaf(kBytes, 1);
  const Handle y = unary({x}, kBytes);
  ASSERT_TRUE(pager->recomputer().drop(*y->block));
  Call call;
  const Operand operand{x->block, R};
  ASSERT_FALSE(
      failed(pager->begin(call, stream, {&operand, 1}, nullptr, "pin", true)));
  expectBytes(y);
  pager->end(call);
}

TEST_F(PagerRerunTest, FailuresLeaveEverythingAsItWas) {
  const Handle x = leaf(kBytes, 1);
  std::vector<Handle> y = run({80, {R}, {kBytes, kBytes}, {}}, {x});
  inPlace({y[0], x});
  const Handle z = unary({y[0]}, kBytes);
  for (const Handle& each : {y[0], y[1], z}) {
    ASSERT_TRUE(pager->recomputer().drop(*each->block));
  }
  for (int fail_at = 0; fail_at < 3; ++fail_at) {
    int runs = 0;
    before_rerun = [&]() -> Error {
      if (runs++ < fail_at) return {};
      return {ErrorCode::kOutOfDeviceMemory, "no room."};
    };
    const std::int64_t resident = stats().resident_bytes;
    Bytes bytes(kBytes);
    const Error error = pager->read(*z->block, 0, bytes.data(), kBytes, stream);
    ASSERT_EQ(error.code(), ErrorCode::kOutOfDeviceMemory);
    EXPECT_EQ(std::string(error.message()),
              "no room. (This op was to run again, to make an operand of a "
              "copy to the host.)");
    EXPECT_TRUE(isDropped(z));
    check();
    // What was made on the way stays.
    EXPECT_EQ(stats().resident_bytes,
              fail_at < 2 ? resident : resident + 2 * 4096);
    pager->resetStats();
  }
  before_rerun = nullptr;
  for (const Handle& each : {z, y[0], y[1]}) expectBytes(each);
}

TEST_F(PagerRerunTest, OutOfMemoryOnTheWayLosesNothing) {
  open(16 * kKiB, 8 * kKiB); // four blocks, and two on the host
  recordAll();
  const Handle x = leaf(kBytes, 1);
  const Handle y = unary({x}, kBytes);
  ASSERT_TRUE(pager->recomputer().drop(*y->block));
  {
    std::vector<Handle> others;
    std::vector<Operand> operands;
    for (std::uint64_t i = 0; i < 4; ++i) {
      others.push_back(leaf(kBytes, 10 + i));
      operands.push_back({others.back()->block, R});
    }
    Call call; // held for long: all of HBM
    ASSERT_FALSE(
        failed(pager->begin(call, stream, operands, nullptr, "hold", true)));
    pager->keepPins(call);
    Bytes bytes(kBytes);
    const Error error = pager->read(*y->block, 0, bytes.data(), kBytes, stream);
    EXPECT_EQ(error.code(), ErrorCode::kOutOfDeviceMemory);
    EXPECT_TRUE(isDropped(y));
    pager->end(call);
  }
  check();
  expectBytes(y);
  expectBytes(x);
}

TEST_F(PagerRerunTest, RestoresInLittleMemory) {
  open(16 * kKiB, 64 * kKiB);
  recordAll();
  std::vector<Handle> chain{leaf(kBytes, 1)};
  for (int i = 0; i < 10; ++i) {
    chain.push_back(i == 0 ? unary({chain[0]}, kBytes)
                           : unary({chain[0], chain.back()}, kBytes));
  }
  for (std::size_t i = 1; i < chain.size(); ++i) {
    ASSERT_TRUE(pager->recomputer().drop(*chain[i]->block));
  }
  expectBytes(chain.back());
  for (const Handle& each : chain) expectBytes(each);
  EXPECT_EQ(stats().rerun_ops, 10);
}

TEST_F(PagerRerunTest, ItIsInTheLogOfDecisions) {
  const Handle x = leaf(kBytes, 1);
  const Handle y = unary({x}, kBytes);
  pager->decisions().start(100);
  ASSERT_TRUE(pager->recomputer().drop(*y->block));
  expectBytes(y);
  const std::vector<DecisionRecord> log = pager->decisions().records();
  EXPECT_EQ(log.front().decision, Decision::kDrop);
  EXPECT_EQ(log.front().block, y->block->identity);
  EXPECT_TRUE(std::any_of(log.begin(), log.end(), [&](const auto& each) {
    return each.decision == Decision::kRerun &&
           each.block == y->block->identity && each.bytes == kBytes;
  }));
}

TEST_F(PagerRerunTest, LimitsAndPoliciesChangeMeanwhile) {
  const Handle x = leaf(kBytes, 1);
  const Handle y = unary({x}, kBytes);
  ASSERT_TRUE(pager->recomputer().drop(*y->block));
  ASSERT_FALSE(failed(pager->budgets().setHbmBudget(512 * kKiB)));
  ASSERT_FALSE(failed(pager->policy().set("forecast")));
  pager->recordUse(*y->block, runtime::Stream{3});
  ASSERT_FALSE(failed(pager->evict(*y->block)));
  ASSERT_FALSE(failed(pager->evictAll()));
  ASSERT_FALSE(failed(pager->synchronize()));
  pager->trim();
  check();
  expectBytes(y);
}

TEST_F(PagerRerunTest, APagerMayEndWithRecords) {
  const Handle x = leaf(kBytes, 1);
  Handle y = unary({x}, kBytes);
  const Handle z = unary({y}, kBytes);
  y.reset();
  ASSERT_TRUE(pager->recomputer().drop(*z->block));
  pager->trim();
}

} // namespace
} // namespace chameleon::memory
