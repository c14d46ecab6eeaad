// Sampling by a grid. The composite takes cuDNN where tensors are CUDA's and
// the options are those that cuDNN has; whether it does must be the target's
// choice. Native is asked on tensors without bytes.
//
// Tests: test_target_branches.py.
#include <ATen/ATen.h>
#include <ATen/NativeFunctions.h>
#include <ATen/native/GridSamplerUtils.h>
#include <torch/library.h>

#include "backend/torch/device.h"
#include "kernels/alias_tensors.h"

namespace chameleon::kernels {
namespace {

using at::Tensor;
using at::native::GridSamplerInterpolation;
using at::native::GridSamplerPadding;

bool takes_cudnn(const Tensor& input, const Tensor& grid, int64_t interpolation,
                 int64_t padding, bool align_corners) {
  return backend::target().type != c10::DeviceType::CPU && align_corners &&
         interpolation ==
             static_cast<int64_t>(GridSamplerInterpolation::Bilinear) &&
         padding == static_cast<int64_t>(GridSamplerPadding::Zeros) &&
         input.device() == grid.device() &&
         at::native::cond_cudnn_grid_sampler(make_cuda_metadata_tensor(input),
                                             make_cuda_metadata_tensor(grid));
}

Tensor grid_sampler(const Tensor& input, const Tensor& grid,
                    int64_t interpolation, int64_t padding,
                    bool align_corners) {
  if (takes_cudnn(input, grid, interpolation, padding, align_corners)) {
    return at::cudnn_grid_sampler(input, grid);
  }
  return at::native::grid_sampler(input, grid, interpolation, padding,
                                  align_corners);
}

TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, m) {
  m.impl("grid_sampler", TORCH_FN(grid_sampler));
}
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("grid_sampler", TORCH_FN(grid_sampler));
}

} // namespace
} // namespace chameleon::kernels
