// Tensors that are not dense: sparse and quantized ones. Ops on them
// that are not composed of dense ones say so in one sentence.
#include <string_view>

#include <torch/library.h>

namespace chameleon::kernels {
namespace {

constexpr char kSparse[] = "sparse";
constexpr char kQuantized[] = "quantized";

template <const char* kind>
void refuse(const c10::OperatorHandle& op, torch::jit::Stack*) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, op.operator_name(),
                              ": chameleon works on dense (strided) tensors; ",
                              kind, " tensors work on the CPU");
}

TORCH_LIBRARY_IMPL(_, SparsePrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&refuse<kSparse>>());
}
TORCH_LIBRARY_IMPL(_, SparseCsrPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&refuse<kSparse>>());
}
TORCH_LIBRARY_IMPL(_, QuantizedPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&refuse<kQuantized>>());
}

} // namespace
} // namespace chameleon::kernels
