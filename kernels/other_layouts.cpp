// Quantized tensors: ops on them that are not composed of dense ones say so in
// one sentence.
#include <torch/library.h>

namespace chameleon::kernels {
namespace {

void refuse_quantized(const c10::OperatorHandle& op, torch::jit::Stack*) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, op.operator_name(),
                              ": chameleon works on dense (strided) tensors; "
                              "quantized tensors work on the CPU");
}

TORCH_LIBRARY_IMPL(_, QuantizedPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&refuse_quantized>());
}

} // namespace
} // namespace chameleon::kernels
