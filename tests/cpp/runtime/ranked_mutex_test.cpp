#include "backend/runtime/ranked_mutex.h"

#include <gtest/gtest.h>
#include <mutex>
#include <thread>
#include <type_traits>

namespace chameleon::runtime {
namespace {

using Pager = RankedMutex<LockRank::kPager>;
using Stream = RankedMutex<LockRank::kStream>;

#ifdef NDEBUG

static_assert(std::is_same_v<Pager, std::mutex>);
static_assert(sizeof(Stream) == sizeof(std::mutex));
static_assert(
    std::is_same_v<RankedCondition<LockRank::kPager>, std::condition_variable>);

#else

TEST(RankedMutexDeathTest, NoticesTheWrongOrder) {
  Pager pager;
  Stream stream;
  EXPECT_DEATH(
      {
        const std::lock_guard later(stream);
        const std::lock_guard earlier(pager);
      },
      "a lock is taken out of order");
}

TEST(RankedMutexDeathTest, NoticesTwoOfOneRank) {
  Stream one;
  Stream other;
  EXPECT_DEATH(
      {
        const std::lock_guard first(one);
        const std::lock_guard second(other);
      },
      "a lock is taken out of order");
}

TEST(RankedMutexDeathTest, NoticesTheWrongOrderOfWhatIsOnlyTried) {
  Pager pager;
  Stream stream;
  EXPECT_DEATH(
      {
        const std::lock_guard later(stream);
        const std::unique_lock earlier(pager, std::try_to_lock);
      },
      "a lock is taken out of order");
}

#endif

TEST(RankedMutex, LetsTheRightOrderPass) {
  Pager pager;
  Stream stream;
  for (int i = 0; i < 2; ++i) {
    const std::lock_guard earlier(pager);
    const std::lock_guard later(stream);
  }
  std::unique_lock earlier(pager);
  const std::lock_guard later(stream);
  earlier.unlock(); // in any order
}

TEST(RankedMutex, ForgetsWhatAWaitGivesBack) {
  Pager pager;
  Stream stream;
  RankedCondition<LockRank::kPager> changed;
  bool done = false;
  std::thread other([&] {
    const std::lock_guard lock(pager);
    done = true;
    changed.notify_all();
  });
  std::unique_lock lock(pager);
  changed.wait(lock, [&] { return done; });
  const std::lock_guard later(stream);
  other.join();
}

TEST(RankedMutex, EachThreadHasItsOwn) {
  Pager pager;
  Stream stream;
  const std::lock_guard later(stream);
  std::thread([&] { const std::lock_guard lock(pager); }).join();
}

} // namespace
} // namespace chameleon::runtime
