#include "kernels/simulated/workspaces.h"

#include <algorithm>
#include <unordered_map>

#include <ATen/ExpandUtils.h>
#include <ATen/core/Reduction.h>

namespace chameleon::kernels::simulated {
namespace {

using c10::TensorImpl;

std::size_t elements(const TensorImpl& tensor) {
  return static_cast<std::size_t>(tensor.numel());
}
std::size_t dim_size(const TensorImpl& tensor, int64_t dim) {
  return static_cast<std::size_t>(
      tensor.size(dim < 0 ? dim + tensor.dim() : dim));
}
std::size_t up(std::size_t value, std::size_t unit) {
  return (value + unit - 1) / unit * unit;
}

constexpr std::size_t kFloat = 4;
constexpr std::size_t kLong = 8;

// grad query is summed up in float, padded to blocks of 128 rows and heads of
// a multiple of 32; and a float a row. With fewer key than query heads the
// gradients of key and value are first made for all heads.
std::size_t flash_backward(const CallView& call) {
  const TensorImpl& query = *call.argument(1);
  const TensorImpl& key = *call.argument(2);
  const std::size_t rows =
      dim_size(query, 0) * dim_size(query, 1) * up(dim_size(query, 2), 128);
  std::size_t bytes = rows * (up(dim_size(query, -1), 32) + 1) * kFloat;
  if (dim_size(key, 1) != dim_size(query, 1)) {
    bytes += 2 * dim_size(query, 0) * dim_size(query, 1) * dim_size(key, 2) *
             dim_size(key, -1) * query.dtype().itemsize();
  }
  return bytes;
}

// A float a row; and grad query in float where the type is a shorter one.
std::size_t efficient_backward(const CallView& call) {
  const TensorImpl& query = *call.argument(1);
  const std::size_t rows = elements(query) / dim_size(query, -1);
  const bool is_short = query.dtype().itemsize() < kFloat;
  return rows * kFloat + (is_short ? elements(query) * kFloat : 0);
}

// Indices are sorted with their positions, each with a second buffer.
template <std::size_t Indices>
std::size_t sorted_indices(const CallView& call) {
  const TensorImpl* indices = call.argument(Indices);
  return indices == nullptr ? 0 : 4 * kLong * elements(*indices);
}

// Radix sort: a second buffer for keys and one for positions.
std::size_t sort(const CallView& call) {
  const TensorImpl& keys = *call.argument(0);
  return elements(keys) * (keys.dtype().itemsize() + kLong);
}

// unique: sorted keys, positions, and the buffers of the sort.
std::size_t unique(const CallView& call) {
  const TensorImpl& keys = *call.argument(0);
  return elements(keys) * 2 * (keys.dtype().itemsize() + kLong);
}

// Accumulating in a defined order: linear indices, sorted, with positions.
std::size_t index_put(const CallView& call) {
  if (!call.flag(3)) return 0;
  std::size_t largest = 0;
  for (const c10::IValue& element : call.arguments[1].toListRef()) {
    const TensorImpl* index = CallView::tensor(element);
    if (index != nullptr) largest = std::max(largest, elements(*index));
  }
  return 5 * kLong * largest;
}

// Elements of the first two arguments, one broadcast against the other.
std::size_t broadcast(const CallView& call) {
  const TensorImpl& input = *call.argument(0);
  const auto sizes = at::infer_size(input.sizes(), call.argument(1)->sizes());
  return static_cast<std::size_t>(c10::multiply_integers(sizes)) *
         input.dtype().itemsize();
}

// Losses are made element by element, then reduced (argument `Reduction`).
template <std::size_t Reduction>
std::size_t loss(const CallView& call) {
  const bool reduced = call.arguments[Reduction].toInt() != at::Reduction::None;
  return reduced ? broadcast(call) : 0;
}

// Two terms of the loss before they are added.
constexpr std::size_t kLogitsReduction = 4;
std::size_t loss_with_logits(const CallView& call) {
  return 2 * loss<kLogitsReduction>(call);
}

// The largest of each row, and the exponentials of all.
std::size_t logsumexp(const CallView& call) {
  const TensorImpl& input = *call.argument(0);
  const TensorImpl& output = *call.result(0);
  return (elements(input) + elements(output)) * input.dtype().itemsize();
}

using Formula = std::size_t (*)(const CallView&);

// After what PyTorch 2.11's kernels are known to allocate. Losses and logsumexp
// are the same code on the CPU, where
// tests/integration/simulated/test_workspaces.py compares them, and names for
// each of the others why it cannot be compared; those are CUDA's own and were
// not measured on a GPU.
//
// Not here, because their size is the library's secret: workspaces of cuDNN
// convolutions, and cuBLAS' (one a stream, kept, 32 MiB on Hopper).
const std::unordered_map<std::string_view, Formula>& workspace_table() {
  static const auto* rows = new std::unordered_map<std::string_view, Formula>{
      {"aten::_scaled_dot_product_flash_attention_backward", &flash_backward},
      {"aten::_scaled_dot_product_efficient_attention_backward",
       &efficient_backward},
      {"aten::mse_loss", &loss<2>},
      {"aten::smooth_l1_loss", &loss<2>},
      {"aten::huber_loss", &loss<2>},
      {"aten::binary_cross_entropy_with_logits", &loss_with_logits},
      {"aten::logsumexp", &logsumexp},
      {"aten::embedding_dense_backward", &sorted_indices<1>},
      {"aten::sort", &sort},
      {"aten::argsort", &sort},
      {"aten::_unique", &unique},
      {"aten::_unique2", &unique},
      {"aten::unique_consecutive", &unique},
      {"aten::index_put", &index_put},
      {"aten::index_put_", &index_put},
      {"aten::_index_put_impl_", &index_put},
  };
  return *rows;
}

} // namespace

std::size_t workspace_bytes(const CallView& call) {
  const auto row = workspace_table().find(base_name(call.traits.name));
  return row == workspace_table().end() ? 0 : row->second(call);
}

std::vector<std::string_view> workspace_ops() {
  std::vector<std::string_view> names;
  for (const auto& [name, formula] : workspace_table()) names.push_back(name);
  std::sort(names.begin(), names.end());
  return names;
}

} // namespace chameleon::kernels::simulated
