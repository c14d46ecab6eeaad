#include "kernels/layouts/other_layouts.h"

#include <torch/library.h>

namespace chameleon::kernels {

void refuse_quantized(std::string_view op) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, op,
                              ": chameleon works on dense (strided) tensors; "
                              "quantized tensors work on the CPU");
}

namespace {

void refuse_op(const c10::OperatorHandle& op, torch::jit::Stack*) {
  refuse_quantized(c10::str(op.operator_name()));
}

TORCH_LIBRARY_IMPL(_, QuantizedPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&refuse_op>());
}

} // namespace
} // namespace chameleon::kernels
