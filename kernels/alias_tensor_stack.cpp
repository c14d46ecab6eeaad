#include "kernels/alias_tensor_stack.h"

#include <c10/core/StorageImpl.h>

#include "kernels/alias_tensors.h"

namespace chameleon::kernels {

at::Tensor AliasTensorStack::make() { return new_alias_tensor(); }

void AliasTensorStack::drop(at::Tensor& alias_tensor,
                            c10::StorageImpl& alias) noexcept {
  close(alias);
  alias_tensor.reset();
}

} // namespace chameleon::kernels
