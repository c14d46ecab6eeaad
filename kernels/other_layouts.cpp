// Tensors that are not dense: sparse and quantized ones. Ops on them
// that are not composed of dense ones say so in one sentence.
#include <initializer_list>
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

// Ops that have a kernel for every layout, so that no fallback is asked.
void refuse_each(torch::Library& m, std::initializer_list<const char*> ops) {
  for (const char* op : ops) {
    m.impl(op, torch::CppFunction::makeFromBoxedFunction<&refuse<kSparse>>());
  }
}

// What makes compressed tensors (CSR, CSC, BSR, BSC), moves included: of dense
// parts on the device, or by its name.
void refuse_compressed(torch::Library& m) {
  refuse_each(m, {"sparse_compressed_tensor.comp_plain_value_size",
                  "sparse_compressed_tensor.comp_plain_value",
                  "_sparse_compressed_tensor_unsafe",
                  "_sparse_compressed_tensor_with_dims"});
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) { refuse_compressed(m); }
TORCH_LIBRARY_IMPL(aten, SparseCsrPrivateUse1, m) {
  refuse_compressed(m);
  // empty_like() of one on the CPU asks nobody: torch makes it, empty.
  refuse_each(m, {"values", "crow_indices", "col_indices", "ccol_indices",
                  "row_indices"});
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
