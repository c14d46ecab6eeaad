#include "kernels/twin_stack.h"

#include <c10/core/StorageImpl.h>

#include "kernels/tensor_access.h"
#include "kernels/twins.h"

namespace chameleon::kernels {

at::Tensor TwinStack::make() { return new_twin(); }

void TwinStack::drop(at::Tensor& twin, c10::StorageImpl& alias) noexcept {
  close(alias);
  twin.reset();
}

} // namespace chameleon::kernels
