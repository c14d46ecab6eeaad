#include "backend/runtime/fork_generation.h"

#include <atomic>
#include <pthread.h>

namespace chameleon::runtime {

namespace {

constinit std::atomic<std::uint32_t> g_generation{0};

void in_child() { g_generation.fetch_add(1, std::memory_order_relaxed); }

} // namespace

std::uint32_t fork_generation() noexcept {
  // Nobody holds a generation before the first call, so nothing is missed.
  static const int registered = pthread_atfork(nullptr, nullptr, in_child);
  static_cast<void>(registered);
  return g_generation.load(std::memory_order_relaxed);
}

Error used_before_fork() {
  return {ErrorCode::kUnavailable,
          "the chameleon device was used before fork() and cannot be used in "
          "the forked child; start processes with the \"spawn\" method, or use "
          "the device in the child only"};
}

} // namespace chameleon::runtime
