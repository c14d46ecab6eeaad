// Dropout. The composite takes a fused kernel on every accelerator; the CPU
// has none and draws its noise in another order. Which of the two runs must be
// the target's choice, so that a seeded run gives the native bits.
//
// Tests: test_random.py.
#include <ATen/ATen.h>
#include <torch/library.h>

#include "backend/torch/device.h"

namespace chameleon::kernels {
namespace {

void check_probability(double p) {
  TORCH_CHECK(p >= 0 && p <= 1,
              "dropout probability has to be between 0 and 1, but got ", p);
}

// at::native's unfused dropout, built of differentiable ops.
at::Tensor cpu_noise(const at::Tensor& input, double p) {
  at::Tensor noise = at::empty_like(input).bernoulli_(1 - p);
  noise.div_(1 - p);
  return noise;
}

at::Tensor dropout(const at::Tensor& input, double p, bool train) {
  check_probability(p);
  if (p == 0 || !train || input.sym_numel() == 0) return input;
  if (p == 1) return input.mul(at::zeros({}, input.options()));
  if (backend::target().type != c10::DeviceType::CPU) {
    return std::get<0>(at::native_dropout(input, p, train));
  }
  return input.mul(cpu_noise(input, p));
}

at::Tensor& dropout_(at::Tensor& input, double p, bool train) {
  check_probability(p);
  if (p == 0 || !train || input.sym_numel() == 0) return input;
  if (p == 1) return input.mul_(at::zeros({}, input.options()));
  return input.mul_(cpu_noise(input, p));
}

TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, m) {
  m.impl("dropout", TORCH_FN(dropout));
  m.impl("dropout_", TORCH_FN(dropout_));
}
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("dropout", TORCH_FN(dropout));
  m.impl("dropout_", TORCH_FN(dropout_));
}

} // namespace
} // namespace chameleon::kernels
