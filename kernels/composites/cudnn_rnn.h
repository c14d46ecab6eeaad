// Recurrent layers where the target is CUDA and takes cuDNN's fused kernels:
// one op for all layers, steps and directions.
//
// Tests: test_recurrent.py.
//
// Thread safety: any thread; the dropout states are under a lock of their own.
#pragma once

#include <tuple>

#include <ATen/core/Tensor.h>

namespace chameleon::kernels {

// As cuDNN numbers them.
enum class CudnnRnn : int64_t { kRelu, kTanh, kLstm, kGru };

struct CudnnRnnOptions {
  CudnnRnn mode;
  bool biases;
  int64_t layers;
  double dropout;
  bool train;
  bool bidirectional;
  bool batch_first = false;
};

// Whether native would, had it this input.
bool takes_cudnn_rnn(const at::Tensor& input);

// Output, last hidden state and last cell state (undefined but for LSTM).
// `sizes`: of the batch at each step, for packed sequences; else empty.
// Composed of differentiable ops. REQUIRES: takes_cudnn_rnn(input).
std::tuple<at::Tensor, at::Tensor, at::Tensor> cudnn_rnn(
    const at::Tensor& input, const at::Tensor& hx, const at::Tensor& cx,
    at::TensorList params, at::IntArrayRef sizes,
    const CudnnRnnOptions& options);

} // namespace chameleon::kernels
