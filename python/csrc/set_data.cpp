#include "python/csrc/set_data.h"

#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>

#include "kernels/sparse_parts.h"

namespace chameleon::python {

void set_data(const at::Tensor& tensor, const at::Tensor& new_data) {
  TORCH_CHECK_VALUE(tensor.defined() && new_data.defined(),
                    "set_data: both tensors must be defined");
  c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  const bool sparse = kernels::is_sparse(impl);
  TORCH_CHECK_VALUE(
      tensor.layout() == new_data.layout() &&
          (sparse || (impl.has_storage() && new_data.has_storage())),
      "set_data: both tensors must have storage, or be sparse "
      "and of one layout; got ",
      tensor.layout(), " and ", new_data.layout());
  auto* meta = torch::autograd::impl::get_autograd_meta(tensor);
  if (meta != nullptr) {
    const std::lock_guard lock(meta->mutex_);
    const auto accumulator = meta->grad_accumulator_.lock();
    if (accumulator &&
        (accumulator->input_metadata(0).device() != new_data.device() ||
         !new_data.options().type_equal(tensor.options()))) {
      meta->grad_accumulator_.reset();
    }
  }
  if (sparse) {
    // torch's own does not take a sparse tensor to another device.
    kernels::copy_sparse(*new_data.unsafeGetTensorImpl(), impl);
  } else {
    impl.shallow_copy_from(new_data.getIntrusivePtr());
  }
}

} // namespace chameleon::python
