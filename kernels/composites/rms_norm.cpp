// RMSNorm. CUDA has one kernel for it, and a derivative; the CPU composes it
// of element-wise ops. Which of the two runs must be the target's choice. The
// fused op is redirected, so that native's own composite reaches it here.
//
// Tests: test_target_branches.py.
#include <ATen/ATen.h>
#include <ATen/native/layer_norm.h>
#include <ATen/ops/_fused_rms_norm_ops.h>
#include <ATen/ops/rms_norm_ops.h>
#include <torch/library.h>

#include "backend/torch/device.h"

namespace chameleon::kernels {
namespace {

using at::Tensor;
using Optional = std::optional<Tensor>;

// This slot of both ops holds native's composites, which PyTorch does not
// export. They are made of calls through the dispatcher, for any device.
constexpr c10::DispatchKeySet kComposites(c10::DispatchKey::CPU);

// Native composes these on every device, and says why where it warns.
bool always_composed(const Tensor& input, const Optional& weight) {
  const at::MemoryFormat format = input.suggest_memory_format();
  return format == at::MemoryFormat::ChannelsLast ||
         format == at::MemoryFormat::ChannelsLast3d || input.is_complex() ||
         (weight && weight->defined() && weight->dtype() != input.dtype());
}

Tensor rms_norm(const Tensor& input, c10::SymIntArrayRef shape,
                const Optional& weight, std::optional<double> eps) {
  if (backend::target().type != c10::DeviceType::CPU ||
      always_composed(input, weight)) {
    return at::_ops::rms_norm::redispatch(kComposites, input, shape, weight,
                                          eps);
  }
  at::native::_check_rms_norm_inputs_symint(input, shape,
                                            weight.value_or(Tensor()));
  return std::get<0>(at::_ops::_fused_rms_norm::redispatch(
      kComposites, input, C10_AS_INTARRAYREF_SLOW(shape), weight, eps));
}

TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, m) {
  m.impl("rms_norm", TORCH_FN(rms_norm));
}
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("rms_norm", TORCH_FN(rms_norm));
}

} // namespace
} // namespace chameleon::kernels
