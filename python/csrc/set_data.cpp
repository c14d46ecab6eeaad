#include "python/csrc/set_data.h"

#include <utility>

#include <ATen/PythonTorchFunctionTLS.h>
#include <pybind11/pybind11.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/variable.h>

#include "backend/torch/storage.h"
#include "kernels/layouts/sparse_parts.h"

namespace py = pybind11;

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

namespace {

// NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables)
setter set_data_of_torch = nullptr;

bool is_sparse_of_ours(const at::Tensor& tensor, const at::Tensor& new_data) {
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  return kernels::is_sparse(impl) && tensor.layout() == new_data.layout() &&
         (backend::is_chameleon(impl) ||
          backend::is_chameleon(*new_data.unsafeGetTensorImpl()));
}

// Subclasses and modes are PyTorch's to ask, which comes back here.
int set_data_attribute(PyObject* self, PyObject* value, void* closure) {
  const bool is_plain = value != nullptr && THPVariable_CheckExact(self) &&
                        THPVariable_CheckExact(value) &&
                        !at::impl::torch_function_mode_enabled();
  if (!is_plain ||
      !is_sparse_of_ours(THPVariable_Unpack(self), THPVariable_Unpack(value))) {
    return set_data_of_torch(self, value, closure);
  }
  HANDLE_TH_ERRORS
  const at::Tensor& tensor = THPVariable_Unpack(self);
  const at::Tensor& new_data = THPVariable_Unpack(value);
  TORCH_CHECK(!tensor.requires_grad() ||
                  torch::autograd::isDifferentiableType(new_data.scalar_type()),
              "data set to a tensor that requires gradients must be floating "
              "point or complex dtype");
  set_data(tensor, new_data);
  return 0;
  END_HANDLE_TH_ERRORS_RET(-1)
}

} // namespace

void take_sparse_data() {
  const py::object attribute =
      py::reinterpret_borrow<py::object>(THPVariableClass).attr("data");
  auto* const descriptor =
      reinterpret_cast<PyGetSetDescrObject*>(attribute.ptr());
  set_data_of_torch =
      std::exchange(descriptor->d_getset->set, &set_data_attribute);
}

} // namespace chameleon::python
