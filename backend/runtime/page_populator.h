// Threads that give mapped memory its pages ahead of who needs them there. A
// page costs the time to zero it, and a processor does that at a few GB/s, so
// several work on one range: from the bottom up, a piece each, ranges in the
// order in which they were added. Only what was added is populated.
//
// It is a hint, as populate_memory() is: where the system has no memory, pages
// are missing, and nobody is told.
//
// Thread safety: every method may be called from any thread. Its lock is a
// leaf, and nothing is populated under it. In a forked child there are no
// threads, and the lock may be held: it may only be leaked there.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "backend/runtime/address_space.h"
#include "backend/runtime/ranked_mutex.h"

namespace chameleon::runtime {

class PagePopulator {
 public:
  // Pieces end at multiples of this, so that no huge page lies in two. While
  // one is populated, nobody in the process can map or unmap memory: beside
  // two threads an mmap() took 38 ms and more with pieces of 64 MiB, 5 with
  // these (means, on two cores).
  static constexpr std::size_t kPieceBytes = std::size_t{4} << 20;

  // `threads` start with the first range; where the system refuses one, there
  // are fewer. `populate`: tests have their own.
  explicit PagePopulator(
      std::size_t threads,
      std::function<void(std::byte*, std::size_t)> populate = populate_memory);
  ~PagePopulator(); // REQUIRES: nobody is in await()
  PagePopulator(const PagePopulator&) = delete;
  PagePopulator& operator=(const PagePopulator&) = delete;

  // REQUIRES: memory that is mapped until remove() has returned.
  void add(std::byte* base, std::size_t bytes);
  // Returns true when the first `bytes` of what was added at `base` have been
  // populated. Pieces of them that no thread has begun the caller populates
  // itself: all of them, where there are no threads. False: removed, stopped.
  bool await(const std::byte* base, std::size_t bytes);
  // Forgets what was added at `base`, if it was. Waits for those pieces of it
  // that are being populated, for no others. Who awaits it is told.
  void remove(const std::byte* base) noexcept;
  // From now on no piece is begun and await() gives false.
  void stop() noexcept;

 private:
  using Mutex = RankedMutex<LockRank::kRuntimePart>;
  struct Range {
    std::byte* base;
    std::size_t bytes;
    std::size_t begun;          // from the base on
    std::set<std::size_t> busy; // where pieces begin that are being populated
    std::size_t populated() const {
      return busy.empty() ? begun : *busy.begin();
    }
  };

  void startThreads();
  void run(); // a thread
  // REQUIRES `lock` held and a piece that nobody has begun; gives it up
  // meanwhile.
  void populateNext(Range& range, std::unique_lock<Mutex>& lock);

  const std::function<void(std::byte*, std::size_t)> populate_;
  Mutex mutex_;
  RankedCondition<LockRank::kRuntimePart> work_;     // for the threads
  RankedCondition<LockRank::kRuntimePart> progress_; // for who waits for them
  // Guarded by mutex_.
  std::map<const std::byte*, std::unique_ptr<Range>> ranges_; // by base
  std::deque<Range*> queue_; // those with pieces that nobody has begun
  bool stopping_ = false;
  std::size_t to_start_; // threads
  std::vector<std::thread> threads_;
};

} // namespace chameleon::runtime
