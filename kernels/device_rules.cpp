#include "kernels/device_rules.h"

#include <algorithm>
#include <array>
#include <string>

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

namespace chameleon::kernels {
namespace {

// Ops whose CUDA wrapper compares the devices of all operands, so that not
// even a 0-dim tensor may be on the CPU. Sorted.
constexpr std::string_view kSameDevice[] = {
#include "kernels/same_device_ops.inc"
};

struct ArgumentRow {
  std::string_view op;
  std::string_view argument;
};

// Arguments that CUDA takes from the CPU in any shape.
constexpr std::array kAnyCpu{
    ArgumentRow{"aten::index", "indices"},
    ArgumentRow{"aten::_index_put_impl_", "indices"},
    ArgumentRow{"aten::_cudnn_ctc_loss", "input_lengths"},
    ArgumentRow{"aten::_cudnn_ctc_loss", "target_lengths"},
    ArgumentRow{"aten::_cudnn_ctc_loss", "targets"},
    ArgumentRow{"aten::_use_cudnn_ctc_loss", "input_lengths"},
    ArgumentRow{"aten::_use_cudnn_ctc_loss", "target_lengths"},
    ArgumentRow{"aten::_use_cudnn_ctc_loss", "targets"},
    ArgumentRow{"aten::_nested_from_padded", "cpu_nested_shape_example"},
    ArgumentRow{"aten::_foreach_addcmul", "scalars"},
    ArgumentRow{"aten::_foreach_addcmul_", "scalars"},
    ArgumentRow{"aten::_foreach_addcdiv", "scalars"},
    ArgumentRow{"aten::_foreach_addcdiv_", "scalars"},
};

// Running statistics are written in training mode; the backwards of oneDNN and
// cuDNN use the forward's workspace as scratch memory, and cuDNN's dropout
// moves its generator on. tests/gpu/silent_writers.py finds the next one.
constexpr std::array kUnannounced{
    ArgumentRow{"aten::native_batch_norm", "running_mean"},
    ArgumentRow{"aten::native_batch_norm", "running_var"},
    ArgumentRow{"aten::cudnn_batch_norm", "running_mean"},
    ArgumentRow{"aten::cudnn_batch_norm", "running_var"},
    ArgumentRow{"aten::miopen_batch_norm", "running_mean"},
    ArgumentRow{"aten::miopen_batch_norm", "running_var"},
    ArgumentRow{"aten::batch_norm_update_stats", "running_mean"},
    ArgumentRow{"aten::batch_norm_update_stats", "running_var"},
    ArgumentRow{"aten::batch_norm_gather_stats", "running_mean"},
    ArgumentRow{"aten::batch_norm_gather_stats", "running_var"},
    ArgumentRow{"aten::batch_norm_gather_stats_with_counts", "running_mean"},
    ArgumentRow{"aten::batch_norm_gather_stats_with_counts", "running_var"},
    ArgumentRow{"aten::mkldnn_rnn_layer_backward", "workspace"},
    // mutant: unannounced
    ArgumentRow{"aten::_cudnn_rnn", "dropout_state"},
    ArgumentRow{"aten::_cudnn_rnn_backward", "reserve"},
};

template <typename Table>
bool contains(const Table& table, std::string_view op,
              std::string_view argument) {
  return std::any_of(table.begin(), table.end(), [&](const ArgumentRow& row) {
    return row.op == op && row.argument == argument;
  });
}

} // namespace

CpuRule cpu_rule(std::string_view op, const c10::Argument& argument,
                 bool writes) {
  if (writes) return CpuRule::kNever;
  // The wrappers look at positional operands and at what is written.
  if (!argument.kwarg_only() &&
      std::binary_search(std::begin(kSameDevice), std::end(kSameDevice), op)) {
    return CpuRule::kNever;
  }
  return contains(kAnyCpu, op.substr(0, op.find('.')), argument.name())
             ? CpuRule::kAny
             : CpuRule::kScalar;
}

void refuse_mixed_devices(c10::DeviceIndex ours, c10::Device other,
                          std::string_view op, std::string_view argument) {
  std::string where;
  if (!argument.empty()) {
    where = c10::str(" (when checking argument for argument ", argument, " in ",
                     op, ")");
  }
  TORCH_CHECK(false,
              "Expected all tensors to be on the same device, but found at "
              "least two devices, chameleon:",
              static_cast<int>(ours), " and ", other.str(), "!", where);
}

bool writes_unannounced(std::string_view op, std::string_view argument) {
  return contains(kUnannounced, op, argument);
}

// A fused optimizer's kernel stores a gradient only where it has unscaled it.
// So one that was written back is clean after the step, and is given up for
// nothing.
std::string_view written_only_with(std::string_view op,
                                   std::string_view argument) {
  const bool is_fused = op == "aten::_fused_adam_" ||
                        op == "aten::_fused_adamw_" ||
                        op == "aten::_fused_sgd_";
  return is_fused && argument == "grads" ? "grad_scale" : "";
}

} // namespace chameleon::kernels
