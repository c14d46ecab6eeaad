// Batch normalisation. The composite takes cuDNN where the tensor is CUDA's;
// whether it does must be the target's choice (a simulated device's is CUDA's),
// so that results and gradients have the native bits. Native is asked on
// tensors without bytes.
//
// Tests: test_target_branches.py.
#include <ATen/ATen.h>
#include <ATen/NativeFunctions.h>
#include <ATen/native/Normalization.h>
#include <torch/library.h>

#include "backend/torch/device.h"
#include "kernels/alias_tensors.h"

namespace chameleon::kernels {
namespace {

using at::Tensor;
using Optional = std::optional<Tensor>;
using Result = std::tuple<Tensor, Tensor, Tensor, Tensor, int64_t>;

constexpr int64_t kCudnn = 1; // as native numbers its ways

Tensor metadata_of(const Optional& tensor) {
  return tensor && tensor->defined() ? make_cuda_metadata_tensor(*tensor)
                                     : Tensor();
}

// What native refuses before it chooses is left to it.
bool is_plain(const Tensor& input, const Optional& parameter) {
  return !parameter || !parameter->defined() ||
         (parameter->device() == input.device() &&
          parameter->sym_numel() == input.sym_size(1));
}

bool takes_cudnn(const Tensor& input, const Optional& weight,
                 const Optional& bias, const Optional& mean,
                 const Optional& variance, bool training, double eps) {
  if (backend::target().type == c10::DeviceType::CPU || input.dim() < 2 ||
      input.sym_numel() == 0 || !is_plain(input, weight) ||
      !is_plain(input, bias) || !is_plain(input, mean) ||
      !is_plain(input, variance)) {
    return false;
  }
  return at::native::_select_batch_norm_backend(
             make_cuda_metadata_tensor(input), metadata_of(weight),
             metadata_of(bias), metadata_of(mean), metadata_of(variance),
             training, eps) == at::native::BatchNormBackend::Cudnn;
}

Optional dense(const Optional& tensor) {
  return tensor && tensor->defined() ? Optional(tensor->contiguous()) : tensor;
}

Result batch_norm(const Tensor& input, const Optional& weight,
                  const Optional& bias, const Optional& mean,
                  const Optional& variance, bool training, double momentum,
                  double eps, bool cudnn_enabled) {
  if (!takes_cudnn(input, weight, bias, mean, variance, training, eps)) {
    return at::native::_batch_norm_impl_index(input, weight, bias, mean,
                                              variance, training, momentum, eps,
                                              cudnn_enabled);
  }
  auto [output, save_mean, save_variance, reserve] = at::cudnn_batch_norm(
      input.contiguous(input.suggest_memory_format()), weight->contiguous(),
      dense(bias), dense(mean), dense(variance), training, momentum, eps);
  return {output, save_mean, save_variance, reserve, kCudnn};
}

TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, m) {
  m.impl("_batch_norm_impl_index", TORCH_FN(batch_norm));
}
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_batch_norm_impl_index", TORCH_FN(batch_norm));
}

} // namespace
} // namespace chameleon::kernels
