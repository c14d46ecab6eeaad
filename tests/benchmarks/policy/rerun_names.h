// Which ops of the recorded traces may be run again. Traces that say it
// themselves do not need this: the others carry names and no more, so this
// table stands in for what the running system knows of its ops. The same
// operands give the same bits, and nothing else happens. Names are bare, or as
// profiler.export_trace() writes them ("aten::add.Tensor").
//
// Left out, with the reason: what only takes memory or is handed in (empty,
// empty_like: its bytes come from elsewhere); updates of parameters and
// optimizer state (fused_adamw, fe_*: their inputs are gone); sums in no fixed
// order (embedding_dense_backward, max_pool2d_with_indices_backward,
// *_attention_backward); and what is only found after the turn. In these
// traces dropout is off and batch norm only reads its running statistics.
#pragma once

#include <algorithm>
#include <array>
#include <string_view>

namespace chameleon::benchmarks {

inline bool may_rerun(std::string_view op) {
  static constexpr std::array<std::string_view, 23> kNames = {
      "_convolution",
      "_log_softmax",
      "_scaled_dot_product_flash_attention",
      "_to_copy",
      "add",
      "cat",
      "convolution",
      "div",
      "embedding",
      "max_pool2d_with_indices",
      "mean",
      "mm",
      "mul",
      "native_batch_norm",
      "neg",
      "nll_loss_forward",
      "ones_like",
      "pow",
      "relu_",
      "rsqrt",
      "silu",
      "sum",
      "threshold_backward",
  };
  static constexpr std::string_view kNamespace = "aten::";
  if (op.starts_with(kNamespace)) {
    op.remove_prefix(kNamespace.size());
    op = op.substr(0, op.find('.'));
  }
  return std::find(kNames.begin(), kNames.end(), op) != kNames.end();
}

} // namespace chameleon::benchmarks
