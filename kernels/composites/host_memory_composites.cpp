// Composites that reach for their operands' memory from the host themselves,
// on whatever device that is. A chameleon tensor's address is no memory: they
// would end the process, as they do natively on CUDA.
//
// Tests: conformance.
#include <ATen/ops/_reshape_from_tensor_native.h>
#include <ATen/ops/range.h>
#include <torch/library.h>

namespace chameleon::kernels {
namespace {

void refuse(const c10::OperatorHandle& op, torch::jit::Stack*) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, op.operator_name(),
      ": it reads and writes its operands on the host, which only tensors on "
      "the CPU can give it; move them there with .cpu()");
}

// FBGEMM's packed weights, and what prepares them.
constexpr const char* kRefused[] = {
    "_saturate_weight_to_fp16",
    "choose_qparams_optimized",
    "fbgemm_linear_fp16_weight",
    "fbgemm_linear_fp16_weight.out",
    "fbgemm_linear_fp16_weight_fp32_activation",
    "fbgemm_linear_fp16_weight_fp32_activation.out",
    "fbgemm_linear_int8_weight",
    "fbgemm_linear_int8_weight_fp32_activation",
    "fbgemm_linear_quantize_weight",
    "fbgemm_pack_gemm_matrix_fp16",
    "fbgemm_pack_quantized_matrix",
    "fbgemm_pack_quantized_matrix.KN",
    "quantized_gru_cell",
    "quantized_lstm_cell",
    "quantized_rnn_relu_cell",
    "quantized_rnn_tanh_cell",
};

// Native's calls the CPU's kernel of range.out by its C++ name.
at::Tensor& range_without_step(const at::Scalar& start, const at::Scalar& end,
                               at::Tensor& out) {
  return at::range_out(out, start, end, 1);
}

// Native's reads the shape.
at::Tensor reshape_from_tensor(const at::Tensor& self,
                               const at::Tensor& shape) {
  return at::native::_reshape_from_tensor(self, shape.cpu());
}

TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, m) {
  m.impl("_reshape_from_tensor", TORCH_FN(reshape_from_tensor));
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_reshape_from_tensor", TORCH_FN(reshape_from_tensor));
  for (const char* op : kRefused) {
    const auto handle = c10::Dispatcher::singleton().findSchema(
        torch::jit::parseName(std::string("aten::") + op));
    if (!handle) continue; // of another torch
    m.impl(op, torch::CppFunction::makeFromBoxedFunction<&refuse>());
  }
  m.impl("range.out_", TORCH_FN(range_without_step));
}

} // namespace
} // namespace chameleon::kernels
