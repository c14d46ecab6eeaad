#include "kernels/thread_state.h"

#include <utility>

#include "backend/torch/device.h"

namespace chameleon::kernels {

constinit thread_local ThreadState* ThreadState::current = nullptr;

ThreadState::ThreadState()
    : alias_tensor_keys(TensorAccess::aliasTensorKeys()),
      keys(c10::impl::raw_local_dispatch_key_set),
      in_kernel(backend::InKernelScope::innermost()),
      streams_(backend::detail::current_streams) {
  backend::prepare_thread(backend::current_device());
}

ThreadState& ThreadState::makeForThread() {
  struct Owner {
    ~Owner() { delete std::exchange(current, nullptr); }
  };
  thread_local Owner owner; // a later call of the thread's end makes one more
  (void)owner;
  return *(current = new ThreadState);
}

} // namespace chameleon::kernels
