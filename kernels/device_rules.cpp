#include "kernels/device_rules.h"

#include <algorithm>
#include <array>

namespace chameleon::kernels {
namespace {

struct ArgumentRow {
  std::string_view op;
  std::string_view argument;
};

// Arguments that CUDA takes from the CPU in any shape.
constexpr std::array kAnyCpu{
    ArgumentRow{"aten::index", "indices"},
    ArgumentRow{"aten::index_put", "indices"},
    ArgumentRow{"aten::index_put_", "indices"},
    ArgumentRow{"aten::_index_put_impl_", "indices"},
    ArgumentRow{"aten::_unsafe_index", "indices"},
    ArgumentRow{"aten::_unsafe_index_put", "indices"},
    ArgumentRow{"aten::_pack_padded_sequence", "lengths"},
    ArgumentRow{"aten::_ctc_loss", "input_lengths"},
    ArgumentRow{"aten::_ctc_loss", "target_lengths"},
    ArgumentRow{"aten::tensor_split", "tensor_indices_or_sections"},
    ArgumentRow{"aten::repeat_interleave", "repeats"},
    ArgumentRow{"aten::histogramdd", "bins"},
};

struct ResultRow {
  std::string_view op;
  std::size_t index;
};

constexpr std::array kCpuResults{
    ResultRow{"aten::_pack_padded_sequence", 1}, // batch_sizes
};

// Running statistics are written in training mode.
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
};

template <typename Table>
bool contains(const Table& table, std::string_view op,
              std::string_view argument) {
  return std::any_of(table.begin(), table.end(), [&](const ArgumentRow& row) {
    return row.op == op && row.argument == argument;
  });
}

} // namespace

CpuRule cpu_rule(std::string_view op, std::string_view argument, bool writes) {
  if (writes) return CpuRule::kNever;
  return contains(kAnyCpu, op, argument) ? CpuRule::kAny : CpuRule::kScalar;
}

bool result_stays_on_cpu(std::string_view op, std::size_t index) {
  return std::any_of(
      kCpuResults.begin(), kCpuResults.end(),
      [&](const ResultRow& row) { return row.op == op && row.index == index; });
}

bool writes_unannounced(std::string_view op, std::string_view argument) {
  return contains(kUnannounced, op, argument);
}

} // namespace chameleon::kernels
