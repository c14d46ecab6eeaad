// A runtime whose queues the test itself runs, kernels' too: work that was
// submitted lies there until then, or until the host waits for it.
#pragma once

#include <cstddef>

#include "backend/runtime/device_runtime.h"

namespace chameleon::support {

class QueuedRuntime : public runtime::DeviceRuntime {
 public:
  // Runs up to `count` entries of a stream, and what they wait for.
  virtual void run(runtime::Stream stream, std::size_t count) = 0;
  void run(runtime::Stream stream) { run(stream, ~std::size_t{0}); }
  virtual void runAll() = 0;
  // How often the host has waited, what it has committed and allocated.
  virtual std::size_t hostWaits() const = 0;
  virtual std::size_t committedBytes() const = 0;
  virtual std::size_t hostBytes() const = 0;
};

} // namespace chameleon::support
