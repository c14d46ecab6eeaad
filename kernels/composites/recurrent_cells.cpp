#include "kernels/composites/recurrent_cells.h"

#include <ATen/ATen.h>
#include <torch/library.h>

#include "backend/torch/device.h"

namespace chameleon::kernels {

bool has_fused_cells() {
  return backend::target().type != c10::DeviceType::CPU;
}

at::Tensor RecurrentWeights::input_gates(const at::Tensor& input) const {
  return at::linear(input, ih, bias_ih);
}

at::Tensor RecurrentWeights::hidden_gates(const at::Tensor& h) const {
  return at::linear(h, hh, bias_hh);
}

at::Tensor StepInput::gates(const RecurrentWeights& weights) const {
  return is_gates ? value : weights.input_gates(value);
}

// Gates are fresh, and unsafe_chunk tracks no views: both may be overwritten
// although autograd records the ops.

namespace {

RecurrentState fused_lstm_step(const at::Tensor& input,
                               const RecurrentState& state,
                               const RecurrentWeights& weights) {
  const at::Tensor from_input = at::matmul(input, weights.ih.t());
  const at::Tensor from_hidden = at::matmul(state.h, weights.hh.t());
  auto [h, c, workspace] = at::_thnn_fused_lstm_cell(
      from_input, from_hidden, state.c, weights.bias_ih, weights.bias_hh);
  if (weights.hr.defined()) h = at::matmul(h, weights.hr.t());
  return {std::move(h), std::move(c)};
}

RecurrentState fused_gru_step(const at::Tensor& input,
                              const RecurrentState& state,
                              const RecurrentWeights& weights) {
  const at::Tensor from_input = at::matmul(input, weights.ih.t());
  const at::Tensor from_hidden = at::matmul(state.h, weights.hh.t());
  return {
      std::get<0>(at::_thnn_fused_gru_cell(from_input, from_hidden, state.h,
                                           weights.bias_ih, weights.bias_hh)),
      {}};
}

} // namespace

RecurrentState lstm_step(const StepInput& input, const RecurrentState& state,
                         const RecurrentWeights& weights) {
  if (has_fused_cells()) return fused_lstm_step(input.value, state, weights);
  const auto gates = weights.hidden_gates(state.h)
                         .add_(input.gates(weights))
                         .unsafe_chunk(4, 1);
  const at::Tensor in = gates[0].sigmoid_();
  const at::Tensor forget = gates[1].sigmoid_();
  const at::Tensor candidate = gates[2].tanh_();
  const at::Tensor out = gates[3].sigmoid_();
  at::Tensor c = (forget * state.c).add_(in * candidate);
  at::Tensor h = out * c.tanh();
  if (weights.hr.defined()) h = at::matmul(h, weights.hr.t());
  return {std::move(h), std::move(c)};
}

RecurrentState gru_step(const StepInput& input, const RecurrentState& state,
                        const RecurrentWeights& weights) {
  if (has_fused_cells()) return fused_gru_step(input.value, state, weights);
  const auto from_input = input.gates(weights).unsafe_chunk(3, 1);
  const auto from_hidden = weights.hidden_gates(state.h).unsafe_chunk(3, 1);
  const at::Tensor reset = from_hidden[0].add_(from_input[0]).sigmoid_();
  const at::Tensor update = from_hidden[1].add_(from_input[1]).sigmoid_();
  const at::Tensor candidate =
      from_input[2].add(from_hidden[2].mul_(reset)).tanh_();
  return {(state.h - candidate).mul_(update).add_(candidate), {}};
}

RecurrentState rnn_tanh_step(const StepInput& input,
                             const RecurrentState& state,
                             const RecurrentWeights& weights) {
  return {at::tanh(weights.hidden_gates(state.h).add_(input.gates(weights))),
          {}};
}

RecurrentState rnn_relu_step(const StepInput& input,
                             const RecurrentState& state,
                             const RecurrentWeights& weights) {
  return {at::relu(weights.hidden_gates(state.h).add_(input.gates(weights))),
          {}};
}

namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

// What native checks; it words its messages for users of torch.nn.*Cell.
void check_cell(const Tensor& input, const RecurrentState& state,
                const RecurrentWeights& weights, int64_t gates) {
  const auto hidden_size = weights.hh.sym_size(1);
  TORCH_CHECK(input.sym_size(1) == weights.ih.sym_size(1),
              "input has inconsistent input_size: got ", input.sym_size(1),
              " expected ", weights.ih.sym_size(1));
  const auto check_weight = [&](const char* name, const Tensor& weight) {
    TORCH_CHECK(weight.sym_size(0) == gates * hidden_size, name,
                " first dim must be ", gates,
                " * hidden_size = ", gates * hidden_size, ", but got ",
                weight.sym_size(0));
  };
  check_weight("weight_ih", weights.ih);
  check_weight("weight_hh", weights.hh);
  const auto check_hidden = [&](const Tensor& hidden, int index) {
    TORCH_CHECK(input.sym_size(0) == hidden.sym_size(0), "Input batch size ",
                input.sym_size(0), " doesn't match hidden", index,
                " batch size ", hidden.sym_size(0));
    TORCH_CHECK(hidden.sym_size(1) == hidden_size, "hidden", index,
                " has inconsistent hidden_size: got ", hidden.sym_size(1),
                ", expected ", hidden_size);
  };
  check_hidden(state.h, 0);
  if (state.c.defined()) check_hidden(state.c, 1);
}

std::tuple<Tensor, Tensor> lstm_cell(const Tensor& input, at::TensorList hx,
                                     const Tensor& w_ih, const Tensor& w_hh,
                                     const OptionalTensor& b_ih,
                                     const OptionalTensor& b_hh) {
  TORCH_CHECK(hx.size() == 2, "lstm_cell expects two hidden states");
  const RecurrentState state{hx[0], hx[1]};
  const RecurrentWeights weights{
      w_ih, w_hh, b_ih.value_or(Tensor()), b_hh.value_or(Tensor()), {}};
  check_cell(input, state, weights, 4);
  RecurrentState next = lstm_step({input}, state, weights);
  return {std::move(next.h), std::move(next.c)};
}

template <RecurrentCell step, int64_t gates>
Tensor cell(const Tensor& input, const Tensor& hx, const Tensor& w_ih,
            const Tensor& w_hh, const OptionalTensor& b_ih,
            const OptionalTensor& b_hh) {
  const RecurrentState state{hx, {}};
  const RecurrentWeights weights{
      w_ih, w_hh, b_ih.value_or(Tensor()), b_hh.value_or(Tensor()), {}};
  check_cell(input, state, weights, gates);
  return step({input}, state, weights).h;
}

void register_cells(torch::Library& m) {
  m.impl("lstm_cell", TORCH_FN(lstm_cell));
  m.impl("gru_cell", TORCH_FN((cell<gru_step, 3>)));
  m.impl("rnn_tanh_cell", TORCH_FN((cell<rnn_tanh_step, 1>)));
  m.impl("rnn_relu_cell", TORCH_FN((cell<rnn_relu_step, 1>)));
}

TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, m) { register_cells(m); }
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) { register_cells(m); }

} // namespace
} // namespace chameleon::kernels
