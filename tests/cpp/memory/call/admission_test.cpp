#include "memory/call/admission.h"

#include <atomic>
#include <gtest/gtest.h>
#include <thread>
#include <vector>

namespace chameleon::memory {
namespace {

constexpr std::size_t kUnit = 512;

class AdmissionTest : public ::testing::Test {
 protected:
  PagerMutex mutex;
  Admission admission{mutex, 10 * kUnit};
};

TEST_F(AdmissionTest, CallsEnterWhileTheyFit) {
  const Admission::Entry first = admission.enter(4 * kUnit, 2 * kUnit, {});
  EXPECT_TRUE(first.admitted);
  EXPECT_EQ(first.room_bytes, 2 * kUnit);
  EXPECT_FALSE(first.exclusive);
  EXPECT_TRUE(admission.enter(4 * kUnit, 0, {}).admitted);
  EXPECT_FALSE(admission.enter(kUnit, 0, {}).admitted);
  EXPECT_TRUE(admission.enter(0, 0, {}).admitted);
  EXPECT_EQ(admission.load().calls, 3u);
  EXPECT_EQ(admission.load().bytes, 10 * kUnit);
  admission.subtract(1, 6 * kUnit);
  EXPECT_TRUE(admission.enter(5 * kUnit, 0, {}).admitted);
}

TEST_F(AdmissionTest, TheWishOfACallThatIsAloneIsCut) {
  admission.add(0, 3 * kUnit); // foreign
  const Admission::Entry entry = admission.enter(4 * kUnit, 100 * kUnit, {});
  EXPECT_TRUE(entry.admitted);
  EXPECT_EQ(entry.room_bytes, 3 * kUnit);
  EXPECT_FALSE(admission.enter(0, kUnit, {}).admitted); // beside another: no
  admission.subtract(1, 7 * kUnit);
  EXPECT_FALSE(admission.enter(8 * kUnit, 0, {}).admitted);
}

TEST_F(AdmissionTest, ExclusiveEntryKeepsOthersOut) {
  // 2 bytes of pins in two pieces split the rest in three: 3 x 2 fit, 3 x 3
  // do not.
  EXPECT_FALSE(admission.enter(2 * kUnit, 3 * kUnit, 2).admitted);
  const Admission::Entry entry = admission.enter(2 * kUnit, 2 * kUnit, 2);
  EXPECT_TRUE(entry.admitted);
  EXPECT_TRUE(entry.exclusive);
  EXPECT_EQ(entry.more_splits, 1u); // 4 x 2 fit as well
  EXPECT_FALSE(admission.enter(0, 0, {}).admitted);
  {
    const std::lock_guard lock(mutex);
    EXPECT_FALSE(admission.turnOf(0));
  }
  admission.subtract(1, 4 * kUnit, true);
  EXPECT_FALSE(admission.load().exclusive);
  EXPECT_TRUE(admission.enter(0, 0, {}).admitted);
  // Beside another call none enters exclusively; without room none needs to.
  EXPECT_FALSE(admission.enter(kUnit, kUnit, 1).admitted);
  const Admission::Entry plain = admission.enter(kUnit, 0, 1);
  EXPECT_TRUE(plain.admitted);
  EXPECT_FALSE(plain.exclusive);
}

TEST_F(AdmissionTest, MakeExclusiveNeedsToBeAlone) {
  EXPECT_FALSE(admission.makeExclusive());
  admission.add(1, 0);
  EXPECT_TRUE(admission.makeExclusive());
  admission.subtract(1, 0, true);
  admission.add(2, 0);
  EXPECT_FALSE(admission.makeExclusive());
}

TEST_F(AdmissionTest, RoomForACallThatWasCounted) {
  std::size_t room = 0;
  bool others = false;
  admission.add(1, 8 * kUnit);
  EXPECT_TRUE(admission.addRoom(5 * kUnit, false, room, others));
  EXPECT_EQ(room, 2 * kUnit); // alone: cut
  EXPECT_FALSE(others);
  admission.add(1, 0);
  EXPECT_TRUE(admission.addRoom(0, false, room, others));
  EXPECT_FALSE(admission.addRoom(kUnit, false, room, others));
  EXPECT_TRUE(others);
  EXPECT_EQ(room, 0u);
  EXPECT_TRUE(admission.addRoom(kUnit, true, room, others));
  EXPECT_EQ(room, 0u);
  admission.add(0, kUnit); // over the budget, unchecked
  EXPECT_FALSE(admission.addRoom(0, true, room, others));
}

TEST_F(AdmissionTest, NumbersAreServedInOrder) {
  std::unique_lock lock(mutex);
  EXPECT_FALSE(admission.closed());
  EXPECT_TRUE(admission.turnOf(0));
  const Admission::QueueNumber first = admission.draw();
  const Admission::QueueNumber second = admission.draw();
  EXPECT_TRUE(admission.closed());
  EXPECT_TRUE(admission.turnOf(first));
  EXPECT_FALSE(admission.turnOf(second));
  EXPECT_FALSE(admission.turnOf(0)); // a newcomer
  admission.handBack(first);
  EXPECT_TRUE(admission.turnOf(second));
  admission.handBack(second);
  EXPECT_FALSE(admission.closed());
  admission.close();
  admission.close();
  admission.open();
  EXPECT_TRUE(admission.closed());
  admission.open();
  EXPECT_FALSE(admission.closed());
}

TEST_F(AdmissionTest, WaitReturnsAfterASubtractAndCallsTheHooks) {
  static std::atomic<int> depth{0};
  static std::atomic<int> times{0};
  const WaitHooks hooks{[]() -> void* {
                          ++depth;
                          ++times;
                          return nullptr;
                        },
                        [](void*) { --depth; }};
  admission.add(1, 10 * kUnit);
  std::atomic<bool> ready{false};
  std::thread waiter([&] {
    std::unique_lock lock(mutex);
    const Admission::QueueNumber number = admission.draw();
    ready = true;
    while (admission.load().bytes > 0) admission.wait(lock, hooks);
    EXPECT_TRUE(lock.owns_lock());
    admission.handBack(number);
  });
  while (!ready) std::this_thread::yield();
  admission.subtract(1, 10 * kUnit);
  admission.wake();
  waiter.join();
  EXPECT_EQ(depth, 0);
  EXPECT_EQ(static_cast<std::size_t>(times), admission.waits());
}

TEST_F(AdmissionTest, NobodyEntersAClosedGate) {
  {
    const std::lock_guard lock(mutex);
    admission.close();
  }
  EXPECT_FALSE(admission.enter(kUnit, kUnit, 1).admitted);
  EXPECT_FALSE(admission.enter(0, 0, {}).admitted);
  EXPECT_EQ(admission.load().calls, 0u);
  EXPECT_EQ(admission.load().bytes, 0u);
  EXPECT_FALSE(admission.load().exclusive);
  {
    const std::lock_guard lock(mutex);
    admission.open();
    admission.draw();
  }
  EXPECT_FALSE(admission.enter(kUnit, 0, {}).admitted);
  EXPECT_EQ(admission.load().calls, 0u);
}

// No wake-up is lost, whatever the interleaving.
TEST_F(AdmissionTest, ManyWaiters) {
  std::atomic<int> inside{0};
  const auto body = [&] {
    for (int i = 0; i < 200; ++i) {
      if (!admission.enter(6 * kUnit, 0, {}).admitted) {
        std::unique_lock lock(mutex);
        const Admission::QueueNumber number = admission.draw();
        while (!admission.turnOf(number) ||
               admission.load().bytes > 4 * kUnit) {
          admission.wait(lock, {});
        }
        admission.add(1, 6 * kUnit);
        admission.handBack(number);
      }
      EXPECT_EQ(++inside, 1);
      --inside;
      admission.subtract(1, 6 * kUnit);
      admission.wake();
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back(body);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(admission.load().calls, 0u);
  EXPECT_EQ(admission.load().bytes, 0u);
}

TEST_F(AdmissionTest, GivingBackTooMuchIsABug) {
  admission.add(1, kUnit);
  EXPECT_DEATH(admission.subtract(1, 2 * kUnit), "more given back");
  EXPECT_DEATH(admission.subtract(2, 0), "more given back");
  EXPECT_DEATH(admission.subtract(1, 0, true), "more given back");
}

} // namespace
} // namespace chameleon::memory
