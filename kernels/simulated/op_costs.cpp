#include "kernels/simulated/op_costs.h"

#include <algorithm>
#include <unordered_map>

#include <ATen/Context.h>

#include "backend/torch/storage.h"

namespace chameleon::kernels::simulated {
namespace {

using c10::TensorImpl;
using runtime::MathType;
using runtime::OpCost;

double count(const TensorImpl& tensor) {
  return static_cast<double>(tensor.numel());
}
double size(const TensorImpl& tensor, int64_t dim) {
  return static_cast<double>(tensor.size(dim < 0 ? dim + tensor.dim() : dim));
}

// ---- floating point operations -------------------------------------------
// A multiplication and an addition are two. Each formula names the positions
// of what it looks at; they are the schema's.

// Product of matrices: every element of the left one meets a row of the right.
template <std::size_t Left, std::size_t Right>
double matmul_flops(const CallView& call) {
  return 2 * count(*call.argument(Left)) * size(*call.argument(Right), -1);
}

// Groups of rows, of columns, or of what is summed over.
double grouped_flops(const CallView& call) {
  const TensorImpl& left = *call.argument(0);
  const bool groups_of_columns =
      left.dim() == 3 && call.argument(1)->dim() == 2;
  return matmul_flops<0, 1>(call) / (groups_of_columns ? size(left, 0) : 1.0);
}

template <std::size_t Matrix>
double matvec_flops(const CallView& call) {
  return 2 * count(*call.argument(Matrix));
}

// Every output position (of a transposed one: input position) meets the whole
// weight.
constexpr std::size_t kTransposed = 6;
double convolution_flops(const CallView& call) {
  const TensorImpl& input = *call.argument(0);
  const TensorImpl& weight = *call.argument(1);
  const TensorImpl& positions =
      call.flag(kTransposed) ? input : *call.result(0);
  return 2 * count(positions) / std::max(1.0, size(positions, 1)) *
         count(weight);
}

constexpr std::size_t kBackwardTransposed = 7;
constexpr std::size_t kBackwardMask = 10;
double convolution_backward_flops(const CallView& call) {
  const TensorImpl& positions =
      *call.argument(call.flag(kBackwardTransposed) ? 1 : 0);
  const double each = 2 * count(positions) / std::max(1.0, size(positions, 1)) *
                      count(*call.argument(2));
  const auto mask = call.arguments[kBackwardMask].toBoolList();
  return each * (static_cast<double>(mask[0]) + static_cast<double>(mask[1]));
}

// q k^T and p v; below the diagonal only, where causal.
double attention_flops(const TensorImpl& query, const TensorImpl& key,
                       double products_of_d, const TensorImpl& value,
                       double products_of_dv, bool causal) {
  const double pairs = size(query, 0) * size(query, 1) * size(query, 2) *
                       size(key, 2) * (causal ? 0.5 : 1.0);
  return 2 * pairs *
         (products_of_d * size(query, -1) + products_of_dv * size(value, -1));
}

template <std::size_t Causal>
double attention_forward_flops(const CallView& call) {
  return attention_flops(*call.argument(0), *call.argument(1), 1,
                         *call.argument(2), 1, call.flag(Causal));
}

// The scores again, then grad p, grad v (by dv); grad q, grad k (by d).
template <std::size_t Causal>
double attention_backward_flops(const CallView& call) {
  return attention_flops(*call.argument(1), *call.argument(2), 3,
                         *call.argument(3), 2, call.flag(Causal));
}

// Of a recurrent layer: each step meets all matrices. Backward does so for the
// gradients of what it was given, and once more for those of the matrices.
template <int Times>
double recurrent_flops(const CallView& call) {
  const TensorImpl& input = *call.argument(0);
  double elements = 0;
  for (const c10::IValue& each : call.arguments[1].toListRef()) {
    const TensorImpl* weight = CallView::tensor(each);
    if (weight != nullptr && weight->dim() == 2) elements += count(*weight);
  }
  const double steps = count(input) / std::max(1.0, size(input, -1));
  return 2 * Times * steps * elements;
}

struct FlopRow {
  double (*flops)(const CallView&);
  std::size_t like;   // the argument whose type says how
  bool cudnn = false; // may have TF32 where cuDNN's flag says so
};

const std::unordered_map<std::string_view, FlopRow>& flop_table() {
  static const auto* table = new std::unordered_map<std::string_view, FlopRow>{
      {"aten::mm", {matmul_flops<0, 1>, 0}},
      {"aten::bmm", {matmul_flops<0, 1>, 0}},
      {"aten::addmm", {matmul_flops<1, 2>, 1}},
      {"aten::addmm_", {matmul_flops<1, 2>, 1}},
      {"aten::_addmm_activation", {matmul_flops<1, 2>, 1}},
      {"aten::baddbmm", {matmul_flops<1, 2>, 1}},
      {"aten::baddbmm_", {matmul_flops<1, 2>, 1}},
      {"aten::addbmm", {matmul_flops<1, 2>, 1}},
      {"aten::_grouped_mm", {grouped_flops, 0}},
      {"aten::_scaled_mm", {matmul_flops<0, 1>, 0}},
      {"aten::_int_mm", {matmul_flops<0, 1>, 0}},
      {"aten::mv", {matvec_flops<0>, 0}},
      {"aten::addmv", {matvec_flops<1>, 1}},
      {"aten::addmv_", {matvec_flops<1>, 1}},
      {"aten::dot", {matvec_flops<0>, 0}},
      {"aten::vdot", {matvec_flops<0>, 0}},
      {"aten::convolution", {convolution_flops, 0, true}},
      {"aten::_convolution", {convolution_flops, 0, true}},
      {"aten::convolution_overrideable", {convolution_flops, 0, true}},
      {"aten::convolution_backward", {convolution_backward_flops, 1, true}},
      {"aten::convolution_backward_overrideable",
       {convolution_backward_flops, 1, true}},
      {"aten::_cudnn_rnn", {recurrent_flops<1>, 0, true}},
      {"aten::_cudnn_rnn_backward", {recurrent_flops<2>, 0, true}},
      {"aten::_scaled_dot_product_flash_attention",
       {attention_forward_flops<4>, 0}},
      {"aten::_scaled_dot_product_flash_attention_backward",
       {attention_backward_flops<11>, 1}},
      {"aten::_scaled_dot_product_efficient_attention",
       {attention_forward_flops<6>, 0}},
      {"aten::_scaled_dot_product_efficient_attention_backward",
       {attention_backward_flops<11>, 1}},
      {"aten::_scaled_dot_product_cudnn_attention",
       {attention_forward_flops<6>, 0}},
      {"aten::_scaled_dot_product_cudnn_attention_backward",
       {attention_backward_flops<14>, 1}},
  };
  return *table;
}

MathType math_type(at::ScalarType type, bool cudnn) {
  switch (type) {
    case at::kDouble:
    case at::kComplexDouble:
      return MathType::kFp64;
    case at::kHalf:
      return MathType::kFp16;
    case at::kBFloat16:
      return MathType::kBf16;
    case at::kFloat:
    case at::kComplexFloat: {
      const at::Context& settings = at::globalContext();
      const bool tf32 =
          cudnn ? settings.allowTF32CuDNN() : settings.allowTF32CuBLAS();
      return tf32 ? MathType::kTf32 : MathType::kFp32;
    }
    default: // 8-bit types: at least as fast
      return MathType::kBf16;
  }
}

// ---- bytes ---------------------------------------------------------------

enum class Traffic : std::uint8_t {
  kAll,      // every operand once, every result once
  kFills,    // what is written was not read before
  kGathers,  // argument 0 is read where the result is written
  kScatters, // argument 0 is changed where other arguments say so
};

Traffic traffic_of(std::string_view op) {
  static const auto* table = new std::unordered_map<std::string_view, Traffic>{
      {"aten::zero_", Traffic::kFills},
      {"aten::fill_", Traffic::kFills},
      {"aten::normal_", Traffic::kFills},
      {"aten::uniform_", Traffic::kFills},
      {"aten::random_", Traffic::kFills},
      {"aten::bernoulli_", Traffic::kFills},
      {"aten::exponential_", Traffic::kFills},
      {"aten::geometric_", Traffic::kFills},
      {"aten::cauchy_", Traffic::kFills},
      {"aten::log_normal_", Traffic::kFills},
      {"aten::_foreach_zero_", Traffic::kFills},
      {"chameleon::copy_within_", Traffic::kFills},
      {"aten::embedding", Traffic::kGathers},
      {"aten::index_select", Traffic::kGathers},
      {"aten::index", Traffic::kGathers},
      {"aten::gather", Traffic::kGathers},
      {"aten::take", Traffic::kGathers},
      {"aten::index_put_", Traffic::kScatters},
      {"aten::_index_put_impl_", Traffic::kScatters},
      {"aten::index_add_", Traffic::kScatters},
      {"aten::index_copy_", Traffic::kScatters},
      {"aten::index_fill_", Traffic::kScatters},
      {"aten::scatter_", Traffic::kScatters},
      {"aten::scatter_add_", Traffic::kScatters},
      {"aten::scatter_reduce_", Traffic::kScatters},
  };
  const auto row = table->find(op);
  return row == table->end() ? Traffic::kAll : row->second;
}

// Of all tensors in a value: bytes on the device.
double bytes_in(const c10::IValue& value) {
  if (value.isTensor()) {
    const TensorImpl* tensor = CallView::tensor(value);
    return tensor != nullptr && backend::is_chameleon(*tensor)
               ? touched_bytes(*tensor)
               : 0;
  }
  double bytes = 0;
  if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) {
      bytes += bytes_in(element);
    }
  }
  return bytes;
}

double bytes_of(const CallView& call, Traffic traffic) {
  double bytes = 0;
  for (const ArgumentTraits& argument : call.traits.arguments) {
    const double own = bytes_in(call.arguments[argument.index]);
    const bool selective =
        argument.index == 0 &&
        (traffic == Traffic::kGathers || traffic == Traffic::kScatters);
    if (selective) continue;
    const bool fills =
        argument.writes && (traffic == Traffic::kFills ||
                            call.schema.arguments()[argument.index].is_out());
    bytes += argument.writes && !fills ? 2 * own : own;
    // Read and written once more at the places that they name.
    if (traffic == Traffic::kScatters) bytes += own;
  }
  for (std::size_t i = 0; i < call.traits.results.size(); ++i) {
    if (call.traits.results[i].written_argument >= 0) continue;
    const double own = bytes_in(call.results[i]);
    bytes += traffic == Traffic::kGathers ? 2 * own : own;
  }
  return bytes;
}

} // namespace

OpCost cost_of(const CallView& call) {
  const std::string_view op = base_name(call.traits.name);
  OpCost cost;
  cost.bytes = bytes_of(call, traffic_of(op));
  const auto row = flop_table().find(op);
  if (row != flop_table().end()) {
    const FlopRow& formula = row->second;
    const at::ScalarType type =
        c10::typeMetaToScalarType(call.argument(formula.like)->dtype());
    cost.flops = formula.flops(call) * (at::isComplexType(type) ? 4 : 1);
    cost.math = math_type(type, formula.cudnn);
  }
  return cost;
}

} // namespace chameleon::kernels::simulated
