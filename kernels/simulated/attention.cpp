#include "kernels/simulated/attention.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>

#include "backend/runtime/options.h"
#include "backend/torch/error.h"

namespace chameleon::kernels::simulated {
namespace {

using at::SDPBackend;
using at::Tensor;

// Fixed at first use, as the option is.
const runtime::GpuProfile& profile() {
  static const auto* chosen = new runtime::GpuProfile( // leaked, as options
      backend::value_or_throw(runtime::chosen_gpu_profile()));
  return *chosen;
}

bool rows_are_dense(const Tensor& tensor) { return tensor.sym_stride(-1) == 1; }

bool flash_takes(const Tensor& query, const Tensor& key, const Tensor& value,
                 bool has_mask) {
  constexpr int64_t kMaxHeadSize = 256;
  const bool short_type =
      query.scalar_type() == at::kHalf || query.scalar_type() == at::kBFloat16;
  return profile().flash_attention &&
         at::globalContext().userEnabledFlashSDP() && short_type && !has_mask &&
         query.sym_size(-1) == key.sym_size(-1) &&
         query.sym_size(-1) == value.sym_size(-1) &&
         query.sym_size(-1) <= kMaxHeadSize;
}

bool efficient_takes(const Tensor& query, const Tensor& key,
                     const Tensor& value, bool enable_gqa) {
  const at::ScalarType type = query.scalar_type();
  const bool known_type =
      type == at::kHalf || type == at::kBFloat16 || type == at::kFloat;
  const bool groups = enable_gqa && query.sym_size(1) != key.sym_size(1);
  return profile().efficient_attention &&
         at::globalContext().userEnabledMemEfficientSDP() && known_type &&
         !groups && query.sym_size(-1) == key.sym_size(-1) &&
         value.dim() == query.dim();
}

} // namespace

SDPBackend choose_attention(const Tensor& query, const Tensor& key,
                            const Tensor& value,
                            const std::optional<Tensor>& mask,
                            bool enable_gqa) {
  const bool has_mask = mask && mask->defined();
  const bool dense = query.dim() == 4 && key.dim() == 4 && value.dim() == 4 &&
                     query.scalar_type() == key.scalar_type() &&
                     query.scalar_type() == value.scalar_type() &&
                     rows_are_dense(query) && rows_are_dense(key) &&
                     rows_are_dense(value) && query.sym_numel() != 0 &&
                     key.sym_numel() != 0;
  if (dense && flash_takes(query, key, value, has_mask)) {
    return SDPBackend::flash_attention;
  }
  if (dense && efficient_takes(query, key, value, enable_gqa)) {
    return SDPBackend::efficient_attention;
  }
  TORCH_CHECK(at::globalContext().userEnabledMathSDP(),
              "No available kernel. Aborting execution.");
  return SDPBackend::math;
}

FusedAttention fused_attention(const Tensor& query, const Tensor& key,
                               const Tensor& value,
                               const std::optional<Tensor>& mask,
                               double dropout_p, bool is_causal,
                               std::optional<double> scale) {
  const Tensor none;
  if (choose_attention(query, key, value, mask, /*enable_gqa=*/true) ==
      SDPBackend::flash_attention) {
    auto [output, logsumexp, q, k, max_q, max_k, seed, offset, debug] =
        at::_scaled_dot_product_flash_attention(query, key, value, dropout_p,
                                                is_causal, false, scale);
    return {output, logsumexp, none, none, max_q, max_k, seed, offset, none};
  }
  auto [output, logsumexp, seed, offset] =
      at::_scaled_dot_product_efficient_attention(query, key, value, mask,
                                                  /*compute_log_sumexp=*/true,
                                                  dropout_p, is_causal, scale);
  return {output, logsumexp, none, none, 0, 0, seed, offset, none};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> fused_attention_backward(
    const AttentionGradient& g) {
  if (g.max_q != 0) {
    const Tensor none;
    auto [query, key, value] =
        at::_scaled_dot_product_flash_attention_backward_symint(
            g.grad, g.query, g.key, g.value, g.output, g.logsumexp, none, none,
            g.max_q, g.max_k, g.dropout_p, g.is_causal, g.seed, g.offset,
            g.scale);
    return {query, key, value, Tensor()};
  }
  return at::_scaled_dot_product_efficient_attention_backward(
      g.grad, g.query, g.key, g.value, g.mask, g.output, g.logsumexp, g.seed,
      g.offset, g.dropout_p, g.wanted, g.is_causal, g.scale);
}

} // namespace chameleon::kernels::simulated
