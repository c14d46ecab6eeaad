// Scaled dot product attention. The composite asks which backend to take; the
// answer is the target's own, asked on tensors that look like the operands
// (requires_grad, mask and gqa included: a mask that requires grad takes the
// math path). The composite runs efficient and cuDNN attention as they are, on
// any device; a flash choice runs through the overrideable op, never through
// the composite's flash branch, which would call a kernel of another device.
//
// Tests: test_attention.py.
#include "kernels/simulated/attention.h"

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>
#include <ATen/ops/_fused_sdp_choice_ops.h>
#include <torch/library.h>

#include "backend/torch/device.h"
#include "kernels/alias_tensors.h"

namespace chameleon::kernels {
namespace {

// Same metadata on the target, no bytes: backend choices look at shapes only.
at::Tensor without_bytes(const at::Tensor& outer) {
  at::Tensor metadata = make_metadata_tensor(outer);
  metadata.set_requires_grad(outer.requires_grad());
  return metadata;
}

bool simulated_target(const at::Tensor& query) {
  backend::context(query.device().index(), "attention"); // fixes the target
  return !backend::target().holds_data;
}

int64_t choose(const at::Tensor& query, const at::Tensor& key,
               const at::Tensor& value, const std::optional<at::Tensor>& mask,
               double dropout_p, bool is_causal, std::optional<double> scale,
               bool enable_gqa) {
  if (simulated_target(query)) {
    return static_cast<int64_t>(
        simulated::choose_attention(query, key, value, mask, enable_gqa) ==
                at::SDPBackend::math
            ? at::SDPBackend::math
            : at::SDPBackend::overrideable);
  }
  std::optional<at::Tensor> mask_metadata;
  if (mask && mask->defined()) {
    mask_metadata = mask->device().is_cpu() ? *mask : without_bytes(*mask);
  }
  // A question, not an op: nobody above may see it.
  const int64_t choice = at::_ops::_fused_sdp_choice::redispatch(
      backend::target().dispatch_key, without_bytes(query), without_bytes(key),
      without_bytes(value), mask_metadata, dropout_p, is_causal, scale,
      enable_gqa);
  return choice == static_cast<int64_t>(at::SDPBackend::flash_attention)
             ? static_cast<int64_t>(at::SDPBackend::overrideable)
             : choice;
}

using Forward =
    std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, c10::SymInt,
               c10::SymInt, at::Tensor, at::Tensor, at::Tensor>;

// What the composite does around CUDA's flash attention, which wants rows of a
// multiple of eight elements: zeros are added behind, and cut off again.
constexpr int64_t kFlashRow = 8;

at::Tensor padded(const at::Tensor& tensor) {
  const int64_t size = tensor.size(-1);
  const int64_t missing = (kFlashRow - size % kFlashRow) % kFlashRow;
  return missing == 0 ? tensor : at::constant_pad_nd(tensor, {0, missing});
}

at::Tensor cut(const at::Tensor& tensor, int64_t size) {
  return tensor.size(-1) == size ? tensor : tensor.narrow(-1, 0, size);
}

double scale_of(const at::Tensor& query, std::optional<double> scale) {
  return sdp::calculate_scale(query, scale).guard_float(__FILE__, __LINE__);
}

Forward cuda_flash(const at::Tensor& query, const at::Tensor& key,
                   const at::Tensor& value, double dropout_p, bool is_causal,
                   std::optional<double> scale) {
  auto [output, logsumexp, cum_q, cum_k, max_q, max_k, seed, offset, debug] =
      at::_scaled_dot_product_flash_attention(
          padded(query), padded(key), padded(value), dropout_p, is_causal,
          /*return_debug_mask=*/false, scale_of(query, scale));
  // Empty. Who asks for shapes beforehand is told that there is no mask.
  const at::Tensor none;
  return {cut(output, value.size(-1)),
          logsumexp,
          cum_q,
          cum_k,
          max_q,
          max_k,
          seed,
          offset,
          none};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> cuda_flash_backward(
    const at::Tensor& grad, const at::Tensor& query, const at::Tensor& key,
    const at::Tensor& value, const at::Tensor& output,
    const at::Tensor& logsumexp, const at::Tensor& cum_q,
    const at::Tensor& cum_k, int64_t max_q, int64_t max_k, double dropout_p,
    bool is_causal, const at::Tensor& seed, const at::Tensor& offset,
    std::optional<double> scale) {
  auto [grad_query, grad_key, grad_value] =
      at::_scaled_dot_product_flash_attention_backward(
          padded(grad), padded(query), padded(key), padded(value),
          padded(output), logsumexp, cum_q, cum_k, max_q, max_k, dropout_p,
          is_causal, seed, offset, scale_of(query, scale));
  return {cut(grad_query, query.size(-1)), cut(grad_key, key.size(-1)),
          cut(grad_value, value.size(-1)), at::Tensor()};
}

bool on_cuda() { return backend::target().type == c10::DeviceType::CUDA; }

// On cpu the only fused kernel is flash attention for CPU, itself redirected.
Forward fused(const at::Tensor& query, const at::Tensor& key,
              const at::Tensor& value, const std::optional<at::Tensor>& mask,
              double dropout_p, bool is_causal, bool /*return_debug_mask*/,
              std::optional<double> scale) {
  if (simulated_target(query)) {
    return simulated::fused_attention(query, key, value, mask, dropout_p,
                                      is_causal, scale);
  }
  if (on_cuda()) {
    return cuda_flash(query, key, value, dropout_p, is_causal, scale);
  }
  auto [output, logsumexp] = at::_scaled_dot_product_flash_attention_for_cpu(
      query, key, value, dropout_p, is_causal, mask, scale);
  const at::Tensor none;
  // A compiled forward, which runs without grad mode, returns seed and offset
  // for its backward, as tensors. Eagerly nobody looks at them, and the
  // backward would have two operands that it has not natively. No op makes
  // them.
  at::Tensor unused;
  if (!at::GradMode::is_enabled()) {
    unused = at::Tensor(at::detail::empty_cpu({0}, at::kLong));
  }
  return {output,          logsumexp, none,   none, query.sym_size(2),
          key.sym_size(2), unused,    unused, none};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> fused_backward(
    const at::Tensor& grad, const at::Tensor& query, const at::Tensor& key,
    const at::Tensor& value, const at::Tensor& mask,
    std::array<bool, 4> grad_input_mask, const at::Tensor& output,
    const at::Tensor& logsumexp, const at::Tensor& cum_q,
    const at::Tensor& cum_k, c10::SymInt max_q, c10::SymInt max_k,
    double dropout_p, bool is_causal, const at::Tensor& seed,
    const at::Tensor& offset, std::optional<double> scale) {
  if (!backend::target().holds_data) {
    return simulated::fused_attention_backward(
        {grad, query, key, value, mask, grad_input_mask, output, logsumexp,
         max_q, max_k, dropout_p, is_causal, seed, offset, scale});
  }
  if (on_cuda()) {
    return cuda_flash_backward(grad, query, key, value, output, logsumexp,
                               cum_q, cum_k,
                               max_q.guard_int(__FILE__, __LINE__),
                               max_k.guard_int(__FILE__, __LINE__), dropout_p,
                               is_causal, seed, offset, scale);
  }
  auto [grad_query, grad_key, grad_value] =
      at::_scaled_dot_product_flash_attention_for_cpu_backward(
          grad, query, key, value, output, logsumexp, dropout_p, is_causal,
          mask.defined() ? std::optional<at::Tensor>(mask) : std::nullopt,
          scale);
  // A mask that wants a gradient is never sent here (see choose()).
  return {grad_query, grad_key, grad_value, at::Tensor()};
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_fused_sdp_choice", TORCH_FN(choose));
  m.impl("_scaled_dot_product_fused_attention_overrideable", TORCH_FN(fused));
  m.impl("_scaled_dot_product_fused_attention_overrideable_backward",
         TORCH_FN(fused_backward));
}

} // namespace
} // namespace chameleon::kernels

namespace at::native {
// The composite asks this stub, not the op.
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub,
                              &chameleon::kernels::choose)
} // namespace at::native
