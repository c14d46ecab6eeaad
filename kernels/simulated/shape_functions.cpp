#include "kernels/simulated/shape_functions.h"

#include <algorithm>
#include <unordered_map>

#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>
#include <ATen/OpMathType.h>
#include <ATen/core/List.h>
#include <ATen/core/Reduction.h>

#include "backend/runtime/options.h"
#include "kernels/simulated/call_view.h"
#include "kernels/simulated/facts.h"
#include "kernels/simulated/reads.h"

namespace chameleon::kernels::simulated {
namespace {

using at::Tensor;
using torch::jit::Stack;

// The arguments of one call; what is returned replaces them.
class Frame {
 public:
  Frame(const OpTraits& traits, Stack& stack)
      : traits_(traits),
        stack_(stack),
        base_(stack.size() - traits.argument_count) {}

  c10::IValue& argument(std::size_t index) { return stack_[base_ + index]; }
  Tensor tensor(std::size_t index) { return argument(index).toTensor(); }
  bool flag(std::size_t index) { return argument(index).toBool(); }

  void finish(std::vector<c10::IValue> results) {
    stack_.resize(base_);
    for (c10::IValue& result : results) stack_.push_back(std::move(result));
  }
  // How many of so many elements there are, by what is known of `of`'s values:
  // that are not zero, or, where `distinct`, that differ.
  int64_t guess(const Tensor& of, int64_t elements, bool distinct = false) {
    const std::optional<Fact> fact = FactsOfCall::of(of);
    const bool choices = fact && fact->kind == Fact::Kind::kChoice;
    const bool known = fact && (!distinct || choices);
    guessed(traits_.name, known);
    if (known && distinct) return std::min(elements, fact->parts);
    return part_of(known
                       ? fact->shareTrue(of.numel())
                       : runtime::option_number("simulated_share").value_or(1),
                   elements);
  }
  // Among how many numbers the elements are; 0: nobody knows.
  int64_t choices(const Tensor& of) const {
    const std::optional<Fact> fact = FactsOfCall::of(of);
    const bool known = fact && fact->kind == Fact::Kind::kChoice;
    guessed(traits_.name, known);
    return known ? fact->parts : 0;
  }
  // Of whole numbers; each is 1 where nothing is known.
  int64_t sum(const Tensor& of) const {
    const std::optional<Fact> fact = FactsOfCall::of(of);
    const bool known = fact && fact->kind == Fact::Kind::kParts;
    guessed(traits_.name, known);
    return known ? fact->total : of.numel();
  }

 private:
  const OpTraits& traits_;
  Stack& stack_;
  std::size_t base_;
};

at::TensorOptions longs(const Tensor& like) {
  return like.options().dtype(at::kLong);
}

// ---- nothing to tell -----------------------------------------------------

// Returns nothing, or what it wrote.
void in_place(const OpTraits& traits, Stack& stack) {
  Frame frame(traits, stack);
  std::vector<c10::IValue> results;
  results.reserve(traits.results.size());
  for (const ResultTraits& result : traits.results) {
    results.push_back(frame.argument(
        static_cast<std::size_t>(std::max<int>(0, result.written_argument))));
  }
  frame.finish(std::move(results));
}

template <std::size_t Argument>
void like(const OpTraits& traits, Stack& stack) {
  Frame frame(traits, stack);
  frame.finish({at::empty_like(frame.tensor(Argument))});
}

// The same where native has it contiguous, whatever the argument is.
template <std::size_t Argument>
void contiguous_like(const OpTraits& traits, Stack& stack) {
  Frame frame(traits, stack);
  frame.finish(
      {at::empty_like(frame.tensor(Argument), at::MemoryFormat::Contiguous)});
}

// As cuDNN: the result is channels-last where input or weight are.
at::MemoryFormat convolution_format(const Tensor& input, const Tensor& weight) {
  for (const Tensor* each : {&input, &weight}) {
    const at::MemoryFormat format = each->suggest_memory_format();
    if (format != at::MemoryFormat::Contiguous) return format;
  }
  return at::MemoryFormat::Contiguous;
}

c10::IValue in_format(const c10::IValue& value, at::MemoryFormat format) {
  if (CallView::tensor(value) == nullptr) return value;
  const Tensor& tensor = value.toTensor();
  const bool fits =
      format == at::MemoryFormat::Contiguous ||
      tensor.dim() == (format == at::MemoryFormat::ChannelsLast ? 4 : 5);
  return fits
             ? at::empty(tensor.sizes(), tensor.options().memory_format(format))
             : tensor;
}

void run_meta(const char* op, Stack& stack) {
  c10::Dispatcher::singleton().findSchemaOrThrow(op, "").redispatchBoxed(
      c10::DispatchKeySet(c10::DispatchKey::Meta), &stack);
}

// The first nine arguments are convolution's.
constexpr std::size_t kConvolutionArguments = 9;
void convolution(const OpTraits& traits, Stack& stack) {
  Frame frame(traits, stack);
  const at::MemoryFormat format =
      convolution_format(frame.tensor(0), frame.tensor(1));
  stack.resize(stack.size() - traits.argument_count + kConvolutionArguments);
  run_meta("aten::convolution", stack);
  stack.back() = in_format(stack.back(), format);
}

// The mask is the last argument; grad bias has one dimension.
void convolution_backward(const OpTraits& traits, Stack& stack) {
  Frame frame(traits, stack);
  const at::MemoryFormat format =
      convolution_format(frame.tensor(1), frame.tensor(2));
  run_meta("aten::convolution_backward", stack);
  for (std::size_t i = stack.size() - 3; i < stack.size() - 1; ++i) {
    stack[i] = in_format(stack[i], format);
  }
}

void aminmax(const OpTraits& traits, Stack& stack) {
  Frame frame(traits, stack);
  Tensor both = at::empty({}, frame.tensor(0).options());
  frame.finish({both, at::empty_like(both)});
}

void aminmax_dim(const OpTraits& traits, Stack& stack) {
  Frame frame(traits, stack);
  Tensor both =
      at::amax(frame.tensor(0), frame.argument(1).toInt(), frame.flag(2));
  frame.finish({both, at::empty_like(both)});
}

// Native shrinks its result from the size before the reduction, and the
// storage keeps that size.
void loss(const OpTraits& traits, Stack& stack) {
  Frame frame(traits, stack);
  const Tensor self = frame.tensor(0);
  const bool reduced = frame.argument(2).toInt() != at::Reduction::None;
  Tensor result = at::add(self, frame.tensor(1)); // of any such op's shape
  if (reduced) result.resize_({});
  frame.finish({result});
}

// Lengths lie on the CPU, so these sizes are true: data, and how many of the
// sequences are at least as long as each step.
void pack_padded_sequence(const OpTraits& traits, Stack& stack) {
  Frame frame(traits, stack);
  const Tensor input = frame.tensor(0);
  const Tensor lengths = frame.tensor(1);
  const int64_t longest = lengths[0].item<int64_t>();
  const Tensor steps = at::arange(longest, lengths.options());
  c10::DimVector sizes(input.sizes().slice(1));
  sizes[0] = lengths.sum().item<int64_t>();
  frame.finish({at::empty(sizes, input.options()),
                lengths.unsqueeze(0).gt(steps.unsqueeze(1)).sum(1)});
}

// One value a row, in the type that it is computed in.
void fused_rms_norm(const OpTraits& traits, Stack& stack) {
  Frame frame(traits, stack);
  const Tensor input = frame.tensor(0);
  c10::DimVector rows(input.sizes());
  const auto normalized = frame.argument(1).toDimVector().size();
  std::fill(rows.end() - static_cast<std::ptrdiff_t>(normalized), rows.end(),
            1);
  const at::ScalarType type = at::toOpMathType(input.scalar_type());
  frame.finish({at::empty(input.sizes(), input.options()),
                at::empty(rows, input.options().dtype(type))});
}

void fused_rms_norm_backward(const OpTraits& traits, Stack& stack) {
  Frame frame(traits, stack);
  const Tensor input = frame.tensor(1);
  const auto mask = frame.argument(5).toBoolList();
  const auto weight = frame.argument(4).toOptional<Tensor>();
  const auto dense = [](const Tensor& like) {
    return at::empty(like.sizes(), like.options());
  };
  frame.finish({mask[0] ? dense(input) : Tensor(),
                mask[1] && weight ? dense(*weight) : Tensor()});
}

void fused_lstm_cell(const OpTraits& traits, Stack& stack) {
  Frame frame(traits, stack);
  const Tensor gates = frame.tensor(0);
  const Tensor cx = frame.tensor(2);
  frame.finish({at::empty(cx.sizes(), cx.options()),
                at::empty(cx.sizes(), cx.options()),
                at::empty(gates.sizes(), gates.options())});
}

void fused_lstm_cell_backward(const OpTraits& traits, Stack& stack) {
  Frame frame(traits, stack);
  const Tensor cx = frame.tensor(2);
  const Tensor gates = frame.tensor(4);
  frame.finish(
      {at::empty(gates.sizes(), gates.options()), at::empty_like(cx),
       frame.flag(5) ? at::empty({gates.size(1)}, gates.options()) : Tensor()});
}

constexpr int64_t kGruGates = 3;
constexpr int64_t kGruWorkspace = 5;
void fused_gru_cell(const OpTraits& traits, Stack& stack) {
  Frame frame(traits, stack);
  const Tensor hx = frame.tensor(2);
  frame.finish(
      {at::empty(hx.sizes(), hx.options()),
       at::empty({hx.size(0), hx.size(1) * kGruWorkspace}, hx.options())});
}

void fused_gru_cell_backward(const OpTraits& traits, Stack& stack) {
  Frame frame(traits, stack);
  const Tensor grad = frame.tensor(0);
  const int64_t gates = grad.size(1) * kGruGates;
  const auto make = [&] {
    return at::empty({grad.size(0), gates}, grad.options());
  };
  const auto bias = [&] {
    return frame.flag(2) ? at::empty({gates}, grad.options()) : Tensor();
  };
  frame.finish({make(), make(), at::empty_like(grad), bias(), bias()});
}

void cudnn_grid_sampler(const OpTraits& traits, Stack& stack) {
  Frame frame(traits, stack);
  const Tensor input = frame.tensor(0);
  const Tensor grid = frame.tensor(1);
  frame.finish(
      {at::empty({input.size(0), input.size(1), grid.size(1), grid.size(2)},
                 input.options())});
}

void cudnn_grid_sampler_backward(const OpTraits& traits, Stack& stack) {
  Frame frame(traits, stack);
  const Tensor input = frame.tensor(0);
  const Tensor grid = frame.tensor(1);
  frame.finish({at::empty(input.sizes(), input.options()),
                at::empty(grid.sizes(), grid.options())});
}

void cudnn_batch_norm(const OpTraits& traits, Stack& stack) {
  Frame frame(traits, stack);
  const Tensor input = frame.tensor(0);
  const Tensor weight = frame.tensor(1);
  const auto saved = [&] {
    return at::empty({frame.flag(5) ? weight.numel() : 0}, weight.options());
  };
  frame.finish(
      {at::empty(input.sizes(),
                 input.options().memory_format(input.suggest_memory_format())),
       saved(), saved(), at::empty({0}, input.options().dtype(at::kByte))});
}

void cudnn_batch_norm_backward(const OpTraits& traits, Stack& stack) {
  Frame frame(traits, stack);
  const Tensor input = frame.tensor(0);
  const Tensor weight = frame.tensor(2);
  frame.finish({at::empty(input.sizes(), input.options().memory_format(
                                             input.suggest_memory_format())),
                at::empty(weight.sizes(), weight.options()),
                at::empty(weight.sizes(), weight.options())});
}

// ---- cuDNN's recurrent layers --------------------------------------------

// A state of its generator for each of a GPU's threads: "slightly over 2 MB".
constexpr int64_t kDropoutStateBytes = 2 << 20;
void cudnn_dropout_state(const OpTraits& traits, Stack& stack) {
  Frame frame(traits, stack);
  frame.finish({at::empty({kDropoutStateBytes},
                          at::TensorOptions(at::kMeta).dtype(at::kByte))});
}

// The weights as cuDNN wants them, in one piece with two biases, there or not.
int64_t flat_elements(const c10::List<Tensor>& weights, bool biases) {
  int64_t count = 0;
  int64_t rows = 0;
  for (const Tensor& each : weights) {
    count += each.numel();
    rows += each.dim() == 2 ? each.size(0) : 0;
  }
  return biases ? count : count + rows;
}

// The results of a layer lie time by time, and are shown batch by batch.
Tensor sequence(c10::IntArrayRef sizes, const at::TensorOptions& options,
                bool transposed) {
  if (!transposed) return at::empty(sizes, options);
  return at::empty({sizes[1], sizes[0], sizes[2]}, options).transpose(0, 1);
}

// What backward reads is cuDNN's secret. At least it is what its formulas read:
// the gates, and what each layer hands on, in each direction.
void cudnn_rnn(const OpTraits& traits, Stack& stack) {
  Frame frame(traits, stack);
  const Tensor input = frame.tensor(0);
  const auto weights = frame.argument(1).toTensorList();
  const int64_t stride = frame.argument(2).toInt();
  const auto flat = frame.argument(3).toOptional<Tensor>();
  const Tensor hx = frame.tensor(4);
  const auto cx = frame.argument(5).toOptional<Tensor>();
  const int64_t hidden = frame.argument(7).toInt();
  const int64_t layers = frame.argument(9).toInt();
  const int64_t directions = frame.flag(13) ? 2 : 1;
  const bool packed = !frame.argument(14).toIntList().empty();

  c10::DimVector sizes(input.sizes());
  const int64_t rows = c10::multiply_integers(sizes) / sizes.back();
  sizes.back() = hx.size(2) * directions;
  const int64_t gates = weights.get(0).size(0); // of one step
  const int64_t kept =
      rows * layers * directions * (gates + hidden) * input.element_size();
  const auto bytes = input.options().dtype(at::kByte);
  frame.finish({sequence(sizes, input.options(), frame.flag(10) && !packed),
                at::empty(hx.sizes(), hx.options()),
                cx ? at::empty(cx->sizes(), cx->options())
                   : at::empty({0}, hx.options()),
                at::empty({frame.flag(12) ? kept : 0}, bytes),
                flat ? *flat
                     : at::empty({flat_elements(weights, stride >= 4)},
                                 weights.get(0).options())});
}

// Gradients of weights are views of one piece.
void cudnn_rnn_backward(const OpTraits& traits, Stack& stack) {
  Frame frame(traits, stack);
  const Tensor input = frame.tensor(0);
  const auto weights = frame.argument(1).toTensorList();
  const Tensor hx = frame.tensor(4);
  // Autograd hands on an undefined one where there is none.
  const Tensor cx = frame.argument(5).toOptional<Tensor>().value_or(Tensor());
  const bool packed = !frame.argument(18).toIntList().empty();
  c10::List<Tensor> grads;
  if (frame.argument(21).toBoolList()[3]) {
    const bool biases = frame.argument(2).toInt() >= 4;
    const Tensor all =
        at::empty({flat_elements(weights, biases)}, weights.get(0).options());
    int64_t offset = 0;
    for (const Tensor& each : weights) {
      grads.push_back(all.narrow(0, offset, each.numel()).view(each.sizes()));
      offset += each.numel();
    }
  }
  frame.finish(
      {sequence(input.sizes(), input.options(), frame.flag(14) && !packed),
       at::empty(hx.sizes(), hx.options()),
       cx.defined() ? at::empty(cx.sizes(), cx.options()) : Tensor(), grads});
}

// ---- shapes that depend on values ----------------------------------------

void nonzero(const OpTraits& traits, Stack& stack) {
  Frame frame(traits, stack);
  const Tensor self = frame.tensor(0);
  const int64_t rows = frame.guess(self, self.numel());
  frame.finish({at::empty_strided({rows, self.dim()}, {1, rows}, longs(self))});
}

void masked_select(const OpTraits& traits, Stack& stack) {
  Frame frame(traits, stack);
  const Tensor self = frame.tensor(0);
  const Tensor mask = frame.tensor(1);
  const auto sizes = at::infer_size(self.sizes(), mask.sizes());
  const int64_t selected = frame.guess(mask, c10::multiply_integers(sizes));
  frame.finish({at::empty({selected}, self.options())});
}

void unique(Frame& frame, bool inverse, bool counts, bool has_counts) {
  const Tensor self = frame.tensor(0);
  const int64_t found = frame.guess(self, self.numel(), /*distinct=*/true);
  std::vector<c10::IValue> results{at::empty({found}, self.options())};
  results.emplace_back(inverse ? at::empty(self.sizes(), longs(self))
                               : at::empty({0}, longs(self)));
  if (has_counts) {
    results.emplace_back(at::empty({counts ? found : 0}, longs(self)));
  }
  frame.finish(std::move(results));
}

void unique_rows(Frame& frame, int64_t dim, bool inverse, bool counts) {
  const Tensor self = frame.tensor(0);
  const int64_t rows = self.size(dim);
  c10::DimVector sizes(self.sizes());
  int64_t& found =
      sizes[static_cast<std::size_t>(c10::maybe_wrap_dim(dim, self.dim()))];
  // Rows may differ where their elements do not.
  found = frame.guess(self.dim() == 1 ? self : Tensor(), rows,
                      /*distinct=*/true);
  frame.finish({at::empty(sizes, self.options()),
                at::empty({inverse ? rows : 0}, longs(self)),
                at::empty({counts ? found : 0}, longs(self))});
}

void unique_1(const OpTraits& traits, Stack& stack) {
  Frame frame(traits, stack);
  unique(frame, frame.flag(2), false, false);
}
void unique_2(const OpTraits& traits, Stack& stack) {
  Frame frame(traits, stack);
  unique(frame, frame.flag(2), frame.flag(3), true);
}
void unique_consecutive(const OpTraits& traits, Stack& stack) {
  Frame frame(traits, stack);
  const bool inverse = frame.flag(1);
  const bool counts = frame.flag(2);
  if (frame.argument(3).isNone()) return unique(frame, inverse, counts, true);
  unique_rows(frame, frame.argument(3).toInt(), inverse, counts);
}
void unique_dim(const OpTraits& traits, Stack& stack) {
  Frame frame(traits, stack);
  unique_rows(frame, frame.argument(1).toInt(), frame.flag(3), frame.flag(4));
}
void unique_dim_consecutive(const OpTraits& traits, Stack& stack) {
  Frame frame(traits, stack);
  unique_rows(frame, frame.argument(1).toInt(), frame.flag(2), frame.flag(3));
}

void bincount(const OpTraits& traits, Stack& stack) {
  Frame frame(traits, stack);
  const Tensor self = frame.tensor(0);
  const auto weights = frame.argument(1).toOptional<Tensor>();
  at::TensorOptions options = longs(self);
  if (self.numel() == 0) { // the size is known, and weights do not count
    return frame.finish({at::empty({frame.argument(2).toInt()}, options)});
  }
  if (weights && weights->defined()) {
    const bool is_float = weights->scalar_type() == at::kFloat;
    options = options.dtype(is_float ? at::kFloat : at::kDouble);
  }
  const int64_t bins =
      std::max<int64_t>({1, frame.argument(2).toInt(), frame.choices(self)});
  frame.finish({at::empty({bins}, options)});
}

// Every element once, unless the size is given.
void repeat_interleave(const OpTraits& traits, Stack& stack) {
  Frame frame(traits, stack);
  const Tensor repeats = frame.tensor(0);
  int64_t size = repeats.numel();
  if (frame.argument(1).isNone()) {
    size = frame.sum(repeats);
  } else {
    size = frame.argument(1).toInt();
  }
  frame.finish({at::empty({size}, repeats.options())});
}

void equal(const OpTraits& traits, Stack& stack) {
  Frame frame(traits, stack);
  guessed(traits.name);
  frame.finish({frame.tensor(0).sizes() == frame.tensor(1).sizes()});
}

// A mask among indices has so many rows, but one on the CPU is as it is; then
// the op's own Meta kernel knows.
template <std::size_t Indices>
void without_masks(const OpTraits& traits, Stack& stack) {
  Frame frame(traits, stack);
  c10::List<std::optional<Tensor>> indices;
  for (const c10::IValue& element : frame.argument(Indices).toListRef()) {
    if (!element.isTensor()) {
      indices.push_back(std::nullopt);
      continue;
    }
    const Tensor index = element.toTensor();
    if (index.scalar_type() != at::kBool && index.scalar_type() != at::kByte) {
      indices.push_back(index);
      continue;
    }
    if (index.is_cpu()) { // has values
      for (Tensor& each : index.nonzero_numpy()) indices.push_back(each);
      continue;
    }
    const int64_t rows = frame.guess(index, index.numel());
    for (int64_t i = 0; i < index.dim(); ++i) {
      indices.push_back(at::empty({rows}, longs(index).device(at::kMeta)));
    }
  }
  frame.argument(Indices) = std::move(indices);
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(
      std::string(base_name(traits.name)).c_str(),
      traits.name.size() > base_name(traits.name).size()
          ? traits.name.c_str() + base_name(traits.name).size() + 1
          : "");
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::Meta), &stack);
}

const std::unordered_map<std::string_view, ShapeFunction>& shape_table() {
  static const auto* rows =
      new std::unordered_map<std::string_view, ShapeFunction>{
          {"aten::_cummax_helper", &in_place},
          {"aten::_cummin_helper", &in_place},
          {"aten::mse_loss", &loss},
          {"aten::smooth_l1_loss", &loss},
          {"aten::_fused_sgd_", &in_place},
          {"aten::_fused_sgd_.tensor_lr", &in_place},
          {"aten::_fused_adagrad_", &in_place},
          {"aten::_fused_adagrad_.tensor_lr", &in_place},
          {"aten::_fused_adam_.tensor_lr", &in_place},
          {"aten::_fused_adamw_.tensor_lr", &in_place},
          {"aten::convolution", &convolution},
          {"aten::convolution_backward", &convolution_backward},
          {"aten::_convolution", &convolution},
          {"aten::convolution_overrideable", &convolution},
          {"aten::_standard_gamma", &contiguous_like<0>},
          {"aten::_standard_gamma_grad", &contiguous_like<0>},
          {"aten::_sample_dirichlet", &contiguous_like<0>},
          {"aten::_dirichlet_grad", &contiguous_like<0>},
          {"aten::binomial", &contiguous_like<0>},
          {"aten::_logcumsumexp", &contiguous_like<0>},
          {"aten::_masked_softmax", &like<0>},
          {"aten::_masked_softmax_backward", &like<0>},
          {"aten::_add_relu.Scalar", &like<0>},
          {"aten::_ctc_loss_backward", &contiguous_like<1>},
          {"aten::_ctc_loss_backward.Tensor", &contiguous_like<1>},
          {"aten::multi_margin_loss_backward", &contiguous_like<1>},
          {"aten::multilabel_margin_loss_backward", &contiguous_like<1>},
          {"aten::fractional_max_pool3d_backward", &contiguous_like<1>},
          {"aten::batch_norm_elemt", &like<0>},
          {"aten::batch_norm_backward_elemt", &like<0>},
          {"aten::glu_jvp", &like<0>},
          {"aten::_aminmax", &aminmax},
          {"aten::_aminmax.dim", &aminmax_dim},
          {"aten::_fused_rms_norm", &fused_rms_norm},
          {"aten::_fused_rms_norm_backward", &fused_rms_norm_backward},
          {"aten::_thnn_fused_lstm_cell", &fused_lstm_cell},
          {"aten::_thnn_fused_lstm_cell_backward_impl",
           &fused_lstm_cell_backward},
          {"aten::_thnn_fused_gru_cell", &fused_gru_cell},
          {"aten::_thnn_fused_gru_cell_backward", &fused_gru_cell_backward},
          {"aten::cudnn_batch_norm", &cudnn_batch_norm},
          {"aten::cudnn_batch_norm_backward", &cudnn_batch_norm_backward},
          {"aten::_cudnn_init_dropout_state", &cudnn_dropout_state},
          {"aten::_cudnn_rnn", &cudnn_rnn},
          {"aten::_cudnn_rnn_backward", &cudnn_rnn_backward},
          {"aten::cudnn_grid_sampler", &cudnn_grid_sampler},
          {"aten::cudnn_grid_sampler_backward", &cudnn_grid_sampler_backward},
          {"aten::_pack_padded_sequence", &pack_padded_sequence},
          {"aten::nonzero", &nonzero},
          {"aten::masked_select", &masked_select},
          {"aten::_unique", &unique_1},
          {"aten::_unique2", &unique_2},
          {"aten::unique_consecutive", &unique_consecutive},
          {"aten::unique_dim", &unique_dim},
          {"aten::unique_dim_consecutive", &unique_dim_consecutive},
          {"aten::bincount", &bincount},
          {"aten::repeat_interleave.Tensor", &repeat_interleave},
          {"aten::equal", &equal},
          {"aten::index.Tensor", &without_masks<1>},
          {"aten::_unsafe_index.Tensor", &without_masks<1>},
          {"aten::index_put", &without_masks<1>},
          {"aten::index_put_", &without_masks<1>},
          {"aten::_index_put_impl_", &without_masks<1>},
      };
  return *rows;
}

} // namespace

ShapeFunction find_shape_function(std::string_view name) {
  const auto row = shape_table().find(name);
  return row == shape_table().end() ? nullptr : row->second;
}

} // namespace chameleon::kernels::simulated
