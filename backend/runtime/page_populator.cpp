#include "backend/runtime/page_populator.h"

#include <algorithm>
#include <cstdint>
#include <pthread.h>
#include <system_error>
#include <utility>

namespace chameleon::runtime {

PagePopulator::PagePopulator(
    std::size_t threads, std::function<void(std::byte*, std::size_t)> populate)
    : populate_(std::move(populate)), to_start_(threads) {}

PagePopulator::~PagePopulator() {
  stop();
  for (std::thread& thread : threads_) thread.join();
}

void PagePopulator::add(std::byte* base, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  auto& range = ranges_[base];
  range = std::make_unique<Range>(Range{base, bytes, 0, {}});
  queue_.push_back(range.get());
  startThreads();
  work_.notify_all();
}

bool PagePopulator::await(const std::byte* base, std::size_t bytes) {
  std::unique_lock lock(mutex_);
  while (true) {
    const auto found = ranges_.find(base);
    if (found == ranges_.end() || stopping_) return false;
    Range& range = *found->second;
    // mutant: all-pages-below
    if (range.populated() >= bytes) return true;
    if (range.begun < bytes) {
      populateNext(range, lock);
    } else {
      progress_.wait(lock);
    }
  }
}

void PagePopulator::remove(const std::byte* base) noexcept {
  std::unique_lock lock(mutex_);
  const auto found = ranges_.find(base);
  if (found == ranges_.end()) return;
  const std::unique_ptr<Range> range = std::move(found->second);
  ranges_.erase(found);
  std::erase(queue_, range.get());
  progress_.notify_all(); // who awaits it need not
  // mutant: pages-go
  progress_.wait(lock, [&] { return range->busy.empty(); });
}

void PagePopulator::stop() noexcept {
  const std::lock_guard lock(mutex_);
  stopping_ = true;
  work_.notify_all();
  progress_.notify_all();
}

void PagePopulator::startThreads() {
  for (; to_start_ != 0; --to_start_) {
    try {
      threads_.emplace_back([this] { run(); });
    } catch (const std::system_error&) {
      to_start_ = 0; // await() does what is left
      return;
    }
  }
}

void PagePopulator::run() {
  pthread_setname_np(pthread_self(), "cham-populate");
  std::unique_lock lock(mutex_);
  while (true) {
    work_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
    if (stopping_) return;
    populateNext(*queue_.front(), lock);
  }
}

void PagePopulator::populateNext(Range& range, std::unique_lock<Mutex>& lock) {
  const std::size_t begin = range.begun;
  std::byte* const address = range.base + begin;
  const std::size_t to_border =
      kPieceBytes - reinterpret_cast<std::uintptr_t>(address) % kPieceBytes;
  const std::size_t bytes = std::min(to_border, range.bytes - begin);
  range.begun += bytes;
  if (range.begun == range.bytes) std::erase(queue_, &range);
  range.busy.insert(begin);
  lock.unlock();
  populate_(address, bytes);
  lock.lock();
  range.busy.erase(begin); // once the lock is given up it may be gone
  progress_.notify_all();
}

} // namespace chameleon::runtime
