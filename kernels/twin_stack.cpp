#include "kernels/twin_stack.h"

#include <c10/core/StorageImpl.h>

#include "backend/torch/device.h"
#include "kernels/tensor_access.h"
#include "kernels/twins.h"

namespace chameleon::kernels {
constinit thread_local TwinStack* TwinStack::current = nullptr;

TwinStack& TwinStack::makeForThread() {
  struct Owner {
    ~Owner() { delete std::exchange(current, nullptr); }
  };
  thread_local Owner owner; // a later call of the thread's end makes one more
  (void)owner;
  return *(current = new TwinStack);
}

at::Tensor TwinStack::make() { return new_twin(); }

void TwinStack::drop(at::Tensor& twin, c10::StorageImpl& alias) noexcept {
  close(alias);
  twin.reset();
}

} // namespace chameleon::kernels
