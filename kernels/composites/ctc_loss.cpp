// CTC loss. The composite asks cuDNN whether it takes the sequences where they
// are CUDA's, lengths as tensors first, then as numbers. So is it here. A
// simulated device takes PyTorch's own kernel.
//
// Tests: test_target_branches.py.
#include <ATen/ATen.h>
#include <ATen/NativeFunctions.h>
#include <ATen/TensorSubclassLikeUtils.h>
#include <ATen/core/Reduction.h>
#include <torch/library.h>

#include "backend/torch/device.h"

namespace chameleon::kernels {
namespace {

using at::IntArrayRef;
using at::Tensor;

struct Options {
  int64_t blank;
  int64_t reduction;
  bool zero_infinity;
};

bool may_take_cudnn() {
  return backend::target().type == c10::DeviceType::CUDA;
}

// As the composite divides by them.
Tensor divisor(IntArrayRef lengths, const at::TensorOptions& options) {
  return at::tensor(lengths, options).clamp_min(1);
}
Tensor divisor(const Tensor& lengths, const at::TensorOptions& /*options*/) {
  return lengths.clamp_min(1);
}

// REQUIRES: cuDNN takes it.
template <typename Lengths>
Tensor cudnn_loss(const Tensor& log_probs, const Tensor& targets,
                  Lengths input_lengths, Lengths target_lengths,
                  const Options& options) {
  const bool is_batched = log_probs.dim() == 3;
  Tensor loss = std::get<0>(
      at::_cudnn_ctc_loss(is_batched ? log_probs : log_probs.unsqueeze(1),
                          targets, input_lengths, target_lengths, options.blank,
                          /*deterministic=*/true, options.zero_infinity));
  if (options.reduction == at::Reduction::Mean) {
    return (loss / divisor(target_lengths, loss.options())).mean();
  }
  if (options.reduction == at::Reduction::Sum) return loss.sum();
  return is_batched ? loss : loss.squeeze(0);
}

Tensor ctc_loss_of_numbers(const Tensor& log_probs, const Tensor& targets,
                           IntArrayRef input_lengths,
                           IntArrayRef target_lengths, int64_t blank,
                           int64_t reduction, bool zero_infinity) {
  if (may_take_cudnn() &&
      at::_use_cudnn_ctc_loss(
          log_probs.dim() == 3 ? log_probs : log_probs.unsqueeze(1), targets,
          input_lengths, target_lengths, blank)) {
    return cudnn_loss(log_probs, targets, input_lengths, target_lengths,
                      {blank, reduction, zero_infinity});
  }
  return at::native::ctc_loss(log_probs, targets, input_lengths, target_lengths,
                              blank, reduction, zero_infinity);
}

Tensor ctc_loss_of_tensors(const Tensor& log_probs, const Tensor& targets,
                           const Tensor& input_lengths,
                           const Tensor& target_lengths, int64_t blank,
                           int64_t reduction, bool zero_infinity) {
  if (may_take_cudnn() &&
      at::_use_cudnn_ctc_loss(log_probs, targets, input_lengths, target_lengths,
                              blank)) {
    return cudnn_loss<const Tensor&>(log_probs, targets, input_lengths,
                                     target_lengths,
                                     {blank, reduction, zero_infinity});
  }
  // Native reads the lengths, and goes on with numbers, unless it is asked to
  // leave them alone.
  if (!may_take_cudnn() ||
      at::areAnyTensorSubclassLike(
          {log_probs, targets, input_lengths, target_lengths}) ||
      !at::isIntegralType(input_lengths.scalar_type(), false) ||
      !at::isIntegralType(target_lengths.scalar_type(), false)) {
    return at::native::ctc_loss(log_probs, targets, input_lengths,
                                target_lengths, blank, reduction,
                                zero_infinity);
  }
  const auto numbers = [](const Tensor& lengths) {
    return lengths.to(c10::Device(at::kCPU), at::kLong).contiguous();
  };
  const Tensor inputs = numbers(input_lengths);
  const Tensor outputs = numbers(target_lengths);
  const auto view = [](const Tensor& lengths) {
    return IntArrayRef(lengths.const_data_ptr<int64_t>(),
                       static_cast<std::size_t>(lengths.numel()));
  };
  return ctc_loss_of_numbers(log_probs, targets, view(inputs), view(outputs),
                             blank, reduction, zero_infinity);
}

void register_losses(torch::Library& m) {
  m.impl("ctc_loss.IntList", TORCH_FN(ctc_loss_of_numbers));
  m.impl("ctc_loss.Tensor", TORCH_FN(ctc_loss_of_tensors));
}

TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, m) { register_losses(m); }
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) { register_losses(m); }

} // namespace
} // namespace chameleon::kernels
