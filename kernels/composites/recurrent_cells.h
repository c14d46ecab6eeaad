// Recurrent cells: one step of an LSTM, a GRU or a simple RNN, composed of
// differentiable ops on outer tensors in the order in which the target's
// native cells call them, so that values and gradients have the native bits.
// CUDA's LSTM and GRU are fused cells, which take no precomputed gates.
//
// REQUIRES: the device was used. Thread safety: no state.
//
// Tests: test_recurrent.py.
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

// The target's cells are fused, and its layers hand them the input. Else a
// layer computes the input's share of the gates for all steps at once.
bool has_fused_cells();

// What one step reads: the input, or its share of the gates already.
// REQUIRES of a fused cell: the input.
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
