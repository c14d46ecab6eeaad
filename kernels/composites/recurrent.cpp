// Recurrent layers. The composites look at the device: on the CPU they take
// oneDNN or cells of plain ops, on CUDA cuDNN or fused cells. Which of them
// runs must be the target's choice, so that results and gradients have the
// native bits. Everything here is composed of differentiable ops on outer
// tensors, each of them one op call.
//
// Tests: test_recurrent.py.
#include <algorithm>
#include <ranges>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/native/RNN.h>
#include <torch/library.h>

#include "backend/torch/device.h"
#include "kernels/composites/cudnn_rnn.h"
#include "kernels/composites/recurrent_cells.h"

namespace chameleon::kernels {
namespace {

using at::Tensor;
using States = std::vector<RecurrentState>;
using AllWeights = std::vector<RecurrentWeights>;

// One layer in one direction, and the whole stack.
struct LayerResult {
  Tensor output;
  RecurrentState last;
};
struct StackResult {
  Tensor output;
  States last; // one per layer and direction
};

// The arguments that all recurrent ops share.
struct StackOptions {
  int64_t layers;
  double dropout;
  bool train;
  bool bidirectional;
};

// --- states ----------------------------------------------------------------

std::vector<Tensor> collect(const States& states,
                            Tensor RecurrentState::* part) {
  std::vector<Tensor> tensors;
  tensors.reserve(states.size());
  for (const RecurrentState& state : states) tensors.push_back(state.*part);
  return tensors;
}

States split_layers(const Tensor& hx, const Tensor& cx) {
  States states;
  for (Tensor& h : hx.unbind(0)) states.push_back({std::move(h), {}});
  if (!cx.defined()) return states;
  std::vector<Tensor> cells = cx.unbind(0);
  TORCH_CHECK(cells.size() == states.size(),
              "Expected as many cell states as hidden states, but got ",
              cells.size(), " and ", states.size());
  for (std::size_t i = 0; i < cells.size(); ++i) {
    states[i].c = std::move(cells[i]);
  }
  return states;
}

// As native, whose compiler takes the last argument first: c before h.
// Gradients are added up in the opposite order.
RecurrentState rows(const RecurrentState& state, int64_t begin, int64_t end) {
  const auto cut = [&](const Tensor& tensor) {
    return tensor.defined() ? tensor.narrow(0, begin, end - begin) : tensor;
  };
  Tensor c = cut(state.c);
  return {cut(state.h), std::move(c)};
}

RecurrentState cat_rows(const States& states) {
  RecurrentState all;
  if (states.front().c.defined()) {
    all.c = at::cat(collect(states, &RecurrentState::c), 0);
  }
  all.h = at::cat(collect(states, &RecurrentState::h), 0);
  return all;
}

// --- one layer in one direction --------------------------------------------

// What the steps of a layer read. Of `input` itself both directions read the
// same views; of its share of the gates each has its own.
class LayerInput {
 public:
  explicit LayerInput(const Tensor& input)
      : input_(input), is_gates_(!has_fused_cells()) {}

  bool is_gates() const { return is_gates_; }
  Tensor whole(const RecurrentWeights& weights) const {
    return is_gates_ ? weights.input_gates(input_) : input_;
  }
  // REQUIRES: `input` is [steps, batch, features].
  std::vector<Tensor> steps(const RecurrentWeights& weights) {
    if (is_gates_) return whole(weights).unbind(0);
    if (steps_.empty()) steps_ = input_.unbind(0);
    return steps_;
  }

 private:
  const Tensor& input_;
  bool is_gates_;
  std::vector<Tensor> steps_;
};

LayerResult run_padded(RecurrentCell cell, LayerInput& input,
                       RecurrentState state, const RecurrentWeights& weights,
                       bool reverse) {
  std::vector<Tensor> steps = input.steps(weights);
  TORCH_CHECK(!steps.empty(),
              "Expected sequence length to be larger than 0 in RNN");
  if (reverse) std::reverse(steps.begin(), steps.end());
  for (Tensor& step : steps) { // input on the way in, output on the way out
    state = cell({step, input.is_gates()}, state, weights);
    step = state.h;
  }
  if (reverse) std::reverse(steps.begin(), steps.end());
  return {at::stack(steps, 0), std::move(state)};
}

// `input` is a packed sequence: step i has sizes[i] rows, never more than the
// step before. A sequence that has ended leaves its state behind.
LayerResult run_packed(RecurrentCell cell, const LayerInput& input,
                       at::IntArrayRef sizes, RecurrentState state,
                       const RecurrentWeights& weights) {
  const Tensor all = input.whole(weights);
  std::vector<Tensor> outputs;
  States ended;
  int64_t offset = 0;
  int64_t batch = sizes.front();
  for (const int64_t size : sizes) {
    const Tensor step = all.narrow(0, offset, size);
    offset += size;
    if (size < batch) {
      ended.push_back(rows(state, size, batch));
      state = rows(state, 0, size);
    }
    batch = size;
    state = cell({step, input.is_gates()}, state, weights);
    outputs.push_back(state.h);
  }
  ended.push_back(std::move(state));
  std::reverse(ended.begin(), ended.end()); // longest, that is first row, first
  return {at::cat(outputs, 0), cat_rows(ended)};
}

// From the last step back: a sequence joins with its first state where it ends.
LayerResult run_packed_reverse(RecurrentCell cell, const LayerInput& input,
                               at::IntArrayRef sizes,
                               const RecurrentState& first,
                               const RecurrentWeights& weights) {
  const Tensor all = input.whole(weights);
  std::vector<Tensor> outputs;
  int64_t offset = all.size(0);
  int64_t batch = sizes.back();
  RecurrentState state = rows(first, 0, batch);
  for (const int64_t size : std::views::reverse(sizes)) {
    if (size > batch) {
      state = cat_rows({std::move(state), rows(first, batch, size)});
    }
    offset -= size;
    batch = size;
    const Tensor step = all.narrow(0, offset, size);
    state = cell({step, input.is_gates()}, state, weights);
    outputs.push_back(state.h);
  }
  std::reverse(outputs.begin(), outputs.end());
  return {at::cat(outputs, 0), std::move(state)};
}

// --- the stack of layers ---------------------------------------------------

AllWeights group_weights(at::TensorList params, bool biases,
                         bool projections = false) {
  const std::size_t group = 2 + (biases ? 2 : 0) + (projections ? 1 : 0);
  TORCH_CHECK(params.size() % group == 0,
              "got an incorrect number of RNN parameters");
  AllWeights all;
  for (std::size_t i = 0; i < params.size(); i += group) {
    RecurrentWeights weights{params[i], params[i + 1], {}, {}, {}};
    if (biases) {
      weights.bias_ih = params[i + 2];
      weights.bias_hh = params[i + 3];
    }
    if (projections) weights.hr = params[i + group - 1];
    all.push_back(std::move(weights));
  }
  return all;
}

// `layer(input, state, weights, reverse)` runs one layer in one direction.
template <typename Layer>
StackResult run_stack(const Layer& layer, Tensor input, const States& states,
                      const AllWeights& weights, const StackOptions& options) {
  const std::size_t directions = options.bidirectional ? 2 : 1;
  const auto runs = static_cast<std::size_t>(options.layers) * directions;
  TORCH_CHECK(states.size() == runs,
              "Expected more hidden states in stacked_rnn");
  TORCH_CHECK(weights.size() == runs, "Expected more weights in stacked_rnn");
  States last;
  for (std::size_t i = 0; i < runs; i += directions) {
    if (i > 0 && options.train && options.dropout != 0) {
      input = at::dropout(input, options.dropout, true);
    }
    LayerInput given(input);
    LayerResult forward = layer(given, states[i], weights[i], false);
    last.push_back(std::move(forward.last));
    if (options.bidirectional) {
      LayerResult backward = layer(given, states[i + 1], weights[i + 1], true);
      last.push_back(std::move(backward.last));
      input =
          at::cat({forward.output, backward.output}, forward.output.dim() - 1);
    } else {
      input = std::move(forward.output);
    }
  }
  return {std::move(input), std::move(last)};
}

StackResult run_padded_stack(RecurrentCell cell, const Tensor& input,
                             const States& states, const AllWeights& weights,
                             const StackOptions& options) {
  const auto layer = [cell](LayerInput& x, const RecurrentState& state,
                            const RecurrentWeights& w, bool reverse) {
    return run_padded(cell, x, state, w, reverse);
  };
  return run_stack(layer, input, states, weights, options);
}

// REQUIRES: contiguous.
at::IntArrayRef checked_sizes(const Tensor& batch_sizes) {
  TORCH_CHECK(batch_sizes.device().is_cpu() && batch_sizes.dim() == 1 &&
                  batch_sizes.scalar_type() == at::kLong &&
                  batch_sizes.numel() > 0,
              "batch_sizes must be a non-empty 1D CPU int64 tensor, but got ",
              batch_sizes.dim(), "D ", batch_sizes.device(), " ",
              batch_sizes.scalar_type());
  return {batch_sizes.const_data_ptr<int64_t>(),
          static_cast<std::size_t>(batch_sizes.numel())};
}

StackResult run_packed_stack(RecurrentCell cell, const Tensor& input,
                             const Tensor& batch_sizes, const States& states,
                             const AllWeights& weights,
                             const StackOptions& options) {
  const Tensor contiguous = batch_sizes.contiguous();
  const at::IntArrayRef sizes = checked_sizes(contiguous);
  const auto layer = [&](const LayerInput& x, const RecurrentState& state,
                         const RecurrentWeights& w, bool reverse) {
    return reverse ? run_packed_reverse(cell, x, sizes, state, w)
                   : run_packed(cell, x, sizes, state, w);
  };
  return run_stack(layer, input, states, weights, options);
}

// --- oneDNN ----------------------------------------------------------------

// A question, not an op: nobody above may see it.
bool onednn_supports(const char* op) {
  return c10::Dispatcher::singleton()
      .findSchemaOrThrow(op, "")
      .typed<bool()>()
      .redispatch(c10::DispatchKeySet(c10::DispatchKey::CPU));
}

// Native's own composition around mkldnn_rnn_layer; dispatched ops only, so
// it runs on outer tensors. Null: torch was built without oneDNN.
at::native::lstm_fn onednn_lstm() {
  return decltype(at::native::lstm_mkldnn_stub)::DEFAULT;
}

bool onednn_takes(at::ScalarType dtype) {
  static const bool bf16 = onednn_supports("mkldnn::_is_mkldnn_bf16_supported");
  static const bool fp16 = onednn_supports("mkldnn::_is_mkldnn_fp16_supported");
  switch (dtype) {
    case at::kFloat:
      return true;
    case at::kBFloat16:
      return bf16;
    case at::kHalf: // inference only
      return fp16 && !at::GradMode::is_enabled();
    default:
      return false;
  }
}

// Whether the CPU's lstm would take oneDNN, had it these operands (and no
// projections).
bool takes_onednn(const Tensor& input, at::TensorList hx,
                  at::TensorList params) {
  const auto beside_input = [&](const Tensor& tensor) {
    return tensor.device() == input.device();
  };
  return backend::target().type == c10::DeviceType::CPU &&
         onednn_lstm() != nullptr && at::globalContext().userEnabledMkldnn() &&
         onednn_takes(input.scalar_type()) && input.sym_numel() != 0 &&
         !hx[0].unsafeGetTensorImpl()->has_symbolic_sizes_strides() &&
         std::all_of(hx.begin(), hx.end(), beside_input) &&
         std::all_of(params.begin(), params.end(), beside_input);
}

// --- ops -------------------------------------------------------------------

using Outputs2 = std::tuple<Tensor, Tensor>;
using Outputs3 = std::tuple<Tensor, Tensor, Tensor>;

Outputs3 lstm_outputs(StackResult result) {
  Tensor c = at::stack(collect(result.last, &RecurrentState::c), 0);
  Tensor h = at::stack(collect(result.last, &RecurrentState::h), 0);
  return {std::move(result.output), std::move(h), std::move(c)};
}

bool has_projections(at::TensorList hx) {
  TORCH_CHECK(hx.size() == 2, "lstm expects two hidden states");
  return hx[0].sym_size(2) != hx[1].sym_size(2);
}

Outputs3 lstm(const Tensor& input, at::TensorList hx, at::TensorList params,
              bool biases, int64_t layers, double dropout, bool train,
              bool bidirectional, bool batch_first) {
  const bool projections = has_projections(hx);
  if (takes_cudnn_rnn(input)) {
    return cudnn_rnn(input, hx[0], hx[1], params, {},
                     {CudnnRnn::kLstm, biases, layers, dropout, train,
                      bidirectional, batch_first});
  }
  if (takes_onednn(input, hx, params)) {
    if (!projections) {
      Outputs3 outputs;
      auto& [output, h, c] = outputs;
      onednn_lstm()(output, h, c, input, hx, params, biases, layers, dropout,
                    train, bidirectional, batch_first);
      return outputs;
    }
    TORCH_WARN_ONCE(
        "LSTM with projections is not supported with oneDNN. Using "
        "default implementation.");
  }
  at::native::check_attributes(input, params, hx);
  const Tensor steps = batch_first ? input.transpose(0, 1) : input;
  Outputs3 outputs = lstm_outputs(
      run_padded_stack(lstm_step, steps, split_layers(hx[0], hx[1]),
                       group_weights(params, biases, projections),
                       {layers, dropout, train, bidirectional}));
  auto& output = std::get<0>(outputs);
  if (batch_first) output = output.transpose(0, 1);
  return outputs;
}

Outputs3 lstm_packed(const Tensor& data, const Tensor& batch_sizes,
                     at::TensorList hx, at::TensorList params, bool biases,
                     int64_t layers, double dropout, bool train,
                     bool bidirectional) {
  const bool projections = has_projections(hx);
  if (takes_cudnn_rnn(data)) {
    return cudnn_rnn(
        data, hx[0], hx[1], params, checked_sizes(batch_sizes.contiguous()),
        {CudnnRnn::kLstm, biases, layers, dropout, train, bidirectional});
  }
  return lstm_outputs(
      run_packed_stack(lstm_step, data, batch_sizes, split_layers(hx[0], hx[1]),
                       group_weights(params, biases, projections),
                       {layers, dropout, train, bidirectional}));
}

template <RecurrentCell cell>
constexpr CudnnRnn kModeOf = cell == &gru_step        ? CudnnRnn::kGru
                             : cell == &rnn_tanh_step ? CudnnRnn::kTanh
                                                      : CudnnRnn::kRelu;

Outputs2 without_cells(Outputs3 outputs) {
  return {std::move(std::get<0>(outputs)), std::move(std::get<1>(outputs))};
}

template <RecurrentCell cell>
Outputs2 rnn(const Tensor& input, const Tensor& hx, at::TensorList params,
             bool biases, int64_t layers, double dropout, bool train,
             bool bidirectional, bool batch_first) {
  if (takes_cudnn_rnn(input)) {
    return without_cells(cudnn_rnn(input, hx, {}, params, {},
                                   {kModeOf<cell>, biases, layers, dropout,
                                    train, bidirectional, batch_first}));
  }
  at::native::check_attributes(input, params, hx);
  const Tensor steps = batch_first ? input.transpose(0, 1) : input;
  StackResult result = run_padded_stack(
      cell, steps, split_layers(hx, {}), group_weights(params, biases),
      {layers, dropout, train, bidirectional});
  Tensor h = at::stack(collect(result.last, &RecurrentState::h), 0);
  if (batch_first) result.output.transpose_(0, 1);
  return {std::move(result.output), std::move(h)};
}

template <RecurrentCell cell>
Outputs2 rnn_packed(const Tensor& data, const Tensor& batch_sizes,
                    const Tensor& hx, at::TensorList params, bool biases,
                    int64_t layers, double dropout, bool train,
                    bool bidirectional) {
  if (takes_cudnn_rnn(data)) {
    return without_cells(cudnn_rnn(
        data, hx, {}, params, checked_sizes(batch_sizes.contiguous()),
        {kModeOf<cell>, biases, layers, dropout, train, bidirectional}));
  }
  StackResult result = run_packed_stack(
      cell, data, batch_sizes, split_layers(hx, {}),
      group_weights(params, biases), {layers, dropout, train, bidirectional});
  return {std::move(result.output),
          at::stack(collect(result.last, &RecurrentState::h), 0)};
}

void register_layers(torch::Library& m) {
  m.impl("lstm.input", TORCH_FN(lstm));
  m.impl("lstm.data", TORCH_FN(lstm_packed));
  m.impl("gru.input", TORCH_FN(rnn<gru_step>));
  m.impl("gru.data", TORCH_FN(rnn_packed<gru_step>));
  m.impl("rnn_tanh.input", TORCH_FN(rnn<rnn_tanh_step>));
  m.impl("rnn_tanh.data", TORCH_FN(rnn_packed<rnn_tanh_step>));
  m.impl("rnn_relu.input", TORCH_FN(rnn<rnn_relu_step>));
  m.impl("rnn_relu.data", TORCH_FN(rnn_packed<rnn_relu_step>));
}

TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, m) { register_layers(m); }
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) { register_layers(m); }

} // namespace
} // namespace chameleon::kernels
