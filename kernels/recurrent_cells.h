// Recurrent cells: one step of an LSTM, a GRU or a simple RNN, composed of
// differentiable ops on outer tensors in the order in which the CPU's native
// cells call them, so that values and gradients have the native bits. A CUDA
// target has fused cells instead, which take no precomputed gates; they belong
// into the step functions.
//
// Thread safety: no state.
#pragma once

#include <ATen/core/Tensor.h>

namespace chameleon::kernels {

struct RecurrentState {
  at::Tensor h;
  at::Tensor c; // LSTM only
};

// The parameters of one layer in one direction.
struct RecurrentWeights {
  at::Tensor ih;
  at::Tensor hh;
  at::Tensor bias_ih; // undefined: no biases
  at::Tensor bias_hh;
  at::Tensor hr; // LSTM with projection only

  at::Tensor input_gates(const at::Tensor& input) const;
  at::Tensor hidden_gates(const at::Tensor& h) const;
};

// What one step reads: the input, or its share of the gates already, where a
// layer computed that for all steps at once.
struct StepInput {
  const at::Tensor& value;
  bool is_gates = false;

  at::Tensor gates(const RecurrentWeights& weights) const;
};

using RecurrentCell = RecurrentState (*)(const StepInput& input,
                                         const RecurrentState& state,
                                         const RecurrentWeights& weights);

RecurrentState lstm_step(const StepInput& input, const RecurrentState& state,
                         const RecurrentWeights& weights);
RecurrentState gru_step(const StepInput& input, const RecurrentState& state,
                        const RecurrentWeights& weights);
RecurrentState rnn_tanh_step(const StepInput& input,
                             const RecurrentState& state,
                             const RecurrentWeights& weights);
RecurrentState rnn_relu_step(const StepInput& input,
                             const RecurrentState& state,
                             const RecurrentWeights& weights);

} // namespace chameleon::kernels
