// Which attention kernel PyTorch would take on the simulated GPU, and those
// kernels: CUDA's own ops, redirected like all others.
//
// Tests: test_simulated_ops.py.
//
// Thread safety: any thread; constant after registration.
#pragma once

#include <array>
#include <optional>
#include <tuple>

#include <ATen/SDPBackend.h>
#include <ATen/core/Tensor.h>
#include <c10/core/SymInt.h>

namespace chameleon::kernels::simulated {

// flash_attention, efficient_attention or math, as CUDA's selection has it for
// dense tensors: by the profile's kernels, the user's switches, types, head
// sizes and mask.
at::SDPBackend choose_attention(const at::Tensor& query, const at::Tensor& key,
                                const at::Tensor& value,
                                const std::optional<at::Tensor>& mask,
                                bool enable_gqa);

// As _scaled_dot_product_fused_attention_overrideable and its backward.
using FusedAttention =
    std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, c10::SymInt,
               c10::SymInt, at::Tensor, at::Tensor, at::Tensor>;
FusedAttention fused_attention(const at::Tensor& query, const at::Tensor& key,
                               const at::Tensor& value,
                               const std::optional<at::Tensor>& mask,
                               double dropout_p, bool is_causal,
                               std::optional<double> scale);

struct AttentionGradient {
  const at::Tensor& grad;
  const at::Tensor& query;
  const at::Tensor& key;
  const at::Tensor& value;
  const at::Tensor& mask;
  std::array<bool, 4> wanted; // query, key, value, mask
  const at::Tensor& output;
  const at::Tensor& logsumexp;
  c10::SymInt max_q; // 0: the efficient kernel ran
  c10::SymInt max_k;
  double dropout_p;
  bool is_causal;
  const at::Tensor& seed;
  const at::Tensor& offset;
  std::optional<double> scale;
};
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>
fused_attention_backward(const AttentionGradient& gradient);

} // namespace chameleon::kernels::simulated
