#include "kernels/op_set.h"

#include <algorithm>
#include <set>
#include <string_view>

#include <ATen/core/function_schema.h>
#include <c10/util/Exception.h>

namespace chameleon::kernels {
namespace {

// Ops that have a CUDA kernel and no CPU kernel, for torch builds without
// CUDA, whose dispatcher does not list them. Made by ci/list_cuda_ops.
constexpr std::string_view kCudaOnly[] = {
#include "kernels/cuda_only_ops.inc"
};

// Composites that run whole on the target: they choose by device inside, read
// memory themselves, or ask whether two arguments are one C++ object, and the
// choice shall be the target's; or they take memory and then fill it (clone),
// and shall be one op whose result is its own, instead of two.
constexpr std::string_view kWhole[] = {
    "aten::_batch_norm_no_update",
    "aten::_convolution",
    "aten::_convolution.deprecated",
    "aten::_grid_sampler_2d_cpu_fallback",
    "aten::_grid_sampler_2d_cpu_fallback.out",
    "aten::addr_",
    "aten::clone",
    "aten::conj_physical_",
    "aten::convolution_backward",
    "aten::convolution_backward_overrideable",
    "aten::convolution_overrideable",
    "aten::kaiser_window",
    "aten::kaiser_window.beta",
    "aten::kaiser_window.beta_out",
    "aten::kaiser_window.out",
    "aten::kaiser_window.periodic",
    "aten::kaiser_window.periodic_out",
    "aten::ldexp.Tensor",
    "aten::ldexp.out",
    "aten::ldexp_",
    "aten::linalg_lstsq",
    "aten::mode.values",
};

// Namespaces whose kernels look at the device type of what they get
// themselves (c10d), or take packed weights of one backend.
constexpr std::string_view kOtherNamespaces[] = {"c10d::", "symm_mem::"};

// CompositeImplicit on the CPU, with a kernel and a derivative on CUDA. The
// composites above them ask for them only where the target has the kernel.
constexpr std::string_view kFused[] = {"aten::_fused_rms_norm"};

// A backend kernel switches a CompositeImplicit kernel off for autograd too.
// That is harmless only where native has both: a kernel on the target, and a
// derivative formula.
bool is_safe(const c10::OperatorHandle& op) {
  if (!op.hasKernelForDispatchKey(
          c10::DispatchKey::CompositeImplicitAutograd)) {
    return true;
  }
  if (std::find(std::begin(kFused), std::end(kFused),
                op.operator_name().name) != std::end(kFused)) {
    return true;
  }
  return op.hasKernelForDispatchKey(c10::DispatchKey::Autograd) &&
         op.hasKernelForDispatchKey(c10::DispatchKey::CPU);
}

bool takes_storage(const c10::FunctionSchema& schema) {
  return std::any_of(schema.arguments().begin(), schema.arguments().end(),
                     [](const c10::Argument& argument) {
                       return argument.real_type()->kind() ==
                              c10::TypeKind::StorageType;
                     });
}

} // namespace

bool returns_view(const c10::FunctionSchema& schema) {
  return std::any_of(schema.returns().begin(), schema.returns().end(),
                     [](const c10::Argument& result) {
                       const auto* alias = result.alias_info();
                       return alias != nullptr && !alias->isWrite();
                     });
}

bool is_redirectable(const c10::OperatorHandle& op) {
  const std::string_view name = op.operator_name().name;
  return std::none_of(std::begin(kOtherNamespaces), std::end(kOtherNamespaces),
                      [&](std::string_view prefix) {
                        return name.starts_with(prefix);
                      }) &&
         !op.hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1) &&
         is_safe(op);
}

std::vector<c10::OperatorHandle> collect_op_set() {
  c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
  std::set<std::string> names;
  for (const auto key : {c10::DispatchKey::CPU, c10::DispatchKey::CUDA}) {
    for (const c10::OperatorName& name :
         dispatcher.getRegistrationsForDispatchKey(key)) {
      names.insert(c10::toString(name));
    }
  }
  names.insert(std::begin(kCudaOnly), std::end(kCudaOnly));
  names.insert(std::begin(kWhole), std::end(kWhole));

  std::vector<c10::OperatorHandle> ops;
  for (const std::string& text : names) {
    if (!text.starts_with("aten::") && !text.starts_with("chameleon::")) {
      continue; // may come and go: see late_ops
    }
    const std::size_t dot = text.find('.', text.find("::"));
    const auto op = dispatcher.findSchema(
        {text.substr(0, dot),
         dot == std::string::npos ? std::string() : text.substr(dot + 1)});
    if (!op || !is_redirectable(*op)) continue; // or unknown to this torch
    if (text == "aten::_nested_view_from_buffer") continue; // see nested
    TORCH_INTERNAL_ASSERT(
        !returns_view(op->schema()) && !takes_storage(op->schema()),
        "chameleon: ", text,
        " returns a view or takes a storage and needs a manual kernel");
    ops.push_back(*op);
  }
  return ops;
}

} // namespace chameleon::kernels
