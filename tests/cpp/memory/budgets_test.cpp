// Budgets and limits that change while blocks are there, and those that are
// refused.
#include "memory/pager.h"
#include "tests/cpp/memory/pager_fixture.h"

namespace chameleon::memory {
namespace {

using runtime::Error;
using runtime::ErrorCode;

constexpr std::size_t kUnit = 64 * kKiB;

TEST_F(PagerTest, LoweredHbmBudgetEvictsAndSlides) {
  open(8 * kUnit);
  std::vector<Block*> blocks;
  for (int i = 0; i < 8; ++i) blocks.push_back(filled(kUnit, i));
  for (int i = 0; i < 4; ++i) pager->release(blocks[i]);
  EXPECT_FALSE(failed(pager->budgets().setHbmBudget(4 * kUnit)));
  EXPECT_EQ(pager->stats().evictions, 0); // slid into the free half
  EXPECT_EQ(pager->stats().hbm_budget, 4 * kUnit);
  check();
  EXPECT_FALSE(failed(pager->budgets().setHbmBudget(2 * kUnit + 100)));
  EXPECT_EQ(pager->stats().evictions, 2);
  EXPECT_LE(pager->stats().resident_bytes, 2 * kUnit);
  check();
  for (int i = 4; i < 8; ++i) EXPECT_FALSE(failed(expect(blocks[i], i)));
  EXPECT_FALSE(failed(pager->budgets().setHbmBudget(16 * kUnit)));
  EXPECT_FALSE(failed(fill(create(12 * kUnit), 1)));
}

TEST_F(PagerTest, HbmBudgetBelowWhatIsPinned) {
  open(8 * kUnit);
  Block* const block = filled(3 * kUnit, 1);
  Call call;
  ASSERT_FALSE(failed(pin(call, block)));
  const Error error = pager->budgets().setHbmBudget(2 * kUnit);
  ASSERT_TRUE(failed(error));
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  for (const char* part : {"hbm_budget = 128.00 KiB", "192.00 KiB"}) {
    EXPECT_NE(error.message().find(part), std::string::npos) << error.message();
  }
  EXPECT_EQ(pager->budgets().limits().hbm_budget_bytes, 8 * kUnit);
  EXPECT_FALSE(failed(pager->budgets().setHbmBudget(4 * kUnit)));
  pager->end(call);
  EXPECT_FALSE(failed(expect(block, 1)));
}

TEST_F(PagerTest, HbmBudgetBelowWhereSomethingIsPinned) {
  open(8 * kUnit);
  Block* const low = filled(6 * kUnit, 1);
  Block* const high = filled(kUnit, 2);
  Call call;
  ASSERT_FALSE(failed(pin(call, high)));
  pager->release(low);
  const Error error = pager->budgets().setHbmBudget(2 * kUnit);
  ASSERT_TRUE(failed(error)); // a thread inside a call does not wait
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  check(2);
  pager->end(call);
  EXPECT_FALSE(failed(pager->budgets().setHbmBudget(2 * kUnit)));
  EXPECT_FALSE(failed(expect(high, 2)));
}

TEST_F(PagerTest, LimitsBelowWhatIsLive) {
  open(4 * kUnit, 256 * kMiB, 2.0);
  filled(6 * kUnit / 2, 1);
  create(3 * kUnit);
  for (const Error& error : {pager->budgets().setHbmBudget(2 * kUnit),
                             pager->budgets().setOversubscription(1.0),
                             pager->budgets().setOversubscription(0),
                             pager->budgets().setHbmBudget(~std::size_t{0})}) {
    ASSERT_TRUE(failed(error));
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  }
  EXPECT_EQ(pager->budgets().limits().hbm_budget_bytes, 4 * kUnit);
  EXPECT_EQ(pager->budgets().limits().oversubscription, 2.0);
  EXPECT_FALSE(failed(pager->budgets().setOversubscription(4.0)));
  EXPECT_FALSE(failed(pager->budgets().setHbmBudget(3 * kUnit)));
}

TEST_F(PagerTest, HbmBudgetThatTheHostCannotServe) {
  open(4 * kUnit, kUnit);
  for (int i = 0; i < 4; ++i) filled(kUnit, i);
  const Error error = pager->budgets().setHbmBudget(2 * kUnit);
  ASSERT_TRUE(failed(error));
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  EXPECT_NE(error.message().find("host_budget"), std::string::npos);
  EXPECT_EQ(pager->budgets().limits().hbm_budget_bytes, 4 * kUnit);
  check();
}

TEST_F(PagerTest, HostBudget) {
  open(4 * kUnit, 256 * kMiB);
  Block* const block = filled(kUnit, 1);
  EXPECT_FALSE(failed(pager->evict(*block)));
  Error error = pager->budgets().setHostBudget(kUnit / 2);
  ASSERT_TRUE(failed(error));
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  EXPECT_NE(error.message().find("64.00 KiB"), std::string::npos)
      << error.message();
  EXPECT_EQ(pager->budgets().limits().host_budget_bytes, 256 * kMiB);
  check();
  EXPECT_FALSE(failed(expect(block, 1)));
  // Now it is only a clean copy, which may go.
  EXPECT_FALSE(failed(pager->budgets().setHostBudget(kUnit / 2)));
  EXPECT_FALSE(block->hasHostCopy());
  EXPECT_EQ(pager->stats().host_bytes, 0);
  error = pager->evict(*block);
  EXPECT_EQ(error.code(), ErrorCode::kOutOfHostMemory);
  EXPECT_FALSE(failed(pager->budgets().setHostBudget(kUnit)));
  EXPECT_FALSE(failed(pager->evict(*block)));
  EXPECT_FALSE(failed(expect(block, 1)));
}

} // namespace
} // namespace chameleon::memory
