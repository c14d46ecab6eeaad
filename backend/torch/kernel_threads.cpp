#include "backend/torch/kernel_threads.h"

#include <atomic>
#include <string_view>

#include <ATen/Parallel.h>
#include <c10/util/thread_name.h>

namespace chameleon::backend {
namespace {

std::atomic<int> caller_threads{0}; // none noted yet

// The engine names its threads and has no other mark that we may read.
bool is_autograd_thread() {
  thread_local const bool is =
      std::string_view(c10::getThreadName()).starts_with("pt_autograd");
  return is;
}

} // namespace

void note_caller_threads() {
  if (is_autograd_thread()) return;
  caller_threads.store(at::get_num_threads(), std::memory_order_relaxed);
}

void follow_caller_threads() {
  const int count = caller_threads.load(std::memory_order_relaxed);
  if (count != 0 && is_autograd_thread() && count != at::get_num_threads()) {
    at::set_num_threads(count);
  }
}

} // namespace chameleon::backend
