// What the direct calls of a thread need of it: their alias tensors, and its
// thread-local variables, which are found once per thread: that costs more than
// their use.
//
// Tests: test_threads.py.
//
// Thread safety: belongs to its thread.
#pragma once

#include <c10/core/impl/LocalDispatchKeySet.h>

#include "backend/torch/in_kernel_allocator.h"
#include "backend/torch/stream.h"
#include "kernels/alias_tensor_stack.h"

namespace chameleon::kernels {

class ThreadState {
 public:
  // REQUIRES: the device was used.
  static ThreadState& ofThread() {
    return current != nullptr ? *current : makeForThread();
  }

  AliasTensorStack alias_tensors;
  const c10::DispatchKeySet alias_tensor_keys;
  c10::impl::PODLocalDispatchKeySet& keys; // included and excluded ones
  backend::InKernelScope*& in_kernel;      // the innermost
  // The current one.
  runtime::Stream stream(c10::DeviceIndex index) const {
    return backend::current_stream(index, streams_);
  }

 private:
  ThreadState();
  static ThreadState& makeForThread();
  [[gnu::visibility(
      "hidden")]] static constinit thread_local ThreadState* current;

  const backend::CurrentStreams& streams_;
};

} // namespace chameleon::kernels
