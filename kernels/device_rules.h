// Which tensors of other devices an op takes, and what is said of those that it
// refuses. CUDA accepts some CPU tensors, which is data here; CPU kernels
// accept any mix, so without it code would pass here and fail on a GPU.
//
// Tests: test_device_mixes.py.
//
// Thread safety: any thread; tables that never change.
#pragma once

#include <string_view>

#include <ATen/core/function_schema.h>
#include <c10/core/Device.h>
#include <c10/core/TensorImpl.h>

#include "kernels/op_traits.h"

namespace chameleon::kernels {

// `op` with its overload ("aten::index.Tensor"). `writes`: the op writes the
// argument, whether its schema says so or not.
CpuRule cpu_rule(std::string_view op, const c10::Argument& argument,
                 bool writes);

// A CPU tensor that the op takes as it is. REQUIRES: `tensor` is defined.
inline bool stays_on_cpu(const c10::TensorImpl& tensor, CpuRule rule) {
  return tensor.device().is_cpu() &&
         (rule == CpuRule::kAny ||
          (rule == CpuRule::kScalar && tensor.dim() == 0));
}

// Throws what torch throws: an op has operands on chameleon:`ours` and on
// `other`. `argument` is the schema's name of the latter; empty: not known.
[[noreturn]] void refuse_mixed_devices(c10::DeviceIndex ours, c10::Device other,
                                       std::string_view op,
                                       std::string_view argument);

// The op (without overload: "aten::index") writes `argument` although its
// schema does not say so.
bool writes_unannounced(std::string_view op, std::string_view argument);

// The schema of the op says that it writes `argument`, but it does so only
// where the argument of the name returned is given. Empty: there is none.
std::string_view written_only_with(std::string_view op,
                                   std::string_view argument);

} // namespace chameleon::kernels
