#include "kernels/reruns/rerun_rules.h"

#include <algorithm>
#include <array>
#include <iterator>

#include "kernels/op_traits.h"

namespace chameleon::kernels {
namespace {

struct RuleRow {
  std::string_view op; // without its overload
  RerunRule why;
};

using enum RerunRule;

// Sorted by name. Beside what torch.use_deterministic_algorithms() lists: ops
// that do not repeat on the CPU either.
constexpr RuleRow kRows[] = {
    // Rows are added from several threads, or in no order.
    {"_adaptive_avg_pool2d_backward", kNondeterministic},
    {"_adaptive_avg_pool3d_backward", kNondeterministic},
    {"_ctc_loss_backward", kNondeterministic},
    // cuDNN's generator state is an operand that its kernel changes.
    {"_cudnn_ctc_loss", kNondeterministic},
    {"_cudnn_rnn", kHiddenState},
    {"_cudnn_rnn_backward", kHiddenState},
    {"_embedding_bag", kNondeterministic},
    {"_embedding_bag_backward", kNondeterministic},
    {"_embedding_bag_dense_backward", kNondeterministic},
    {"_embedding_bag_forward_only", kNondeterministic},
    {"_embedding_bag_per_sample_weights_backward", kNondeterministic},
    {"_histogramdd_from_bin_cts", kNondeterministic},
    {"_histogramdd_from_bin_tensors", kNondeterministic},
    {"_index_put_impl_", kNondeterministic},
    {"_segment_reduce_backward", kNondeterministic},
    {"adaptive_max_pool2d_backward", kNondeterministic},
    {"adaptive_max_pool3d_backward", kNondeterministic},
    {"avg_pool3d_backward", kNondeterministic},
    {"bincount", kNondeterministic},
    {"cudnn_grid_sampler_backward", kNondeterministic},
    {"cumsum", kNondeterministic},
    {"cumsum_", kNondeterministic},
    {"embedding_dense_backward", kNondeterministic},
    {"embedding_renorm_", kNondeterministic},
    {"fractional_max_pool2d_backward", kNondeterministic},
    {"fractional_max_pool3d_backward", kNondeterministic},
    {"grid_sampler_2d_backward", kNondeterministic},
    {"grid_sampler_3d_backward", kNondeterministic},
    {"histc", kNondeterministic},
    {"index_add", kNondeterministic},
    {"index_add_", kNondeterministic},
    {"index_copy", kNondeterministic},
    {"index_copy_", kNondeterministic},
    {"index_put", kNondeterministic},
    {"index_put_", kNondeterministic},
    {"index_reduce", kNondeterministic},
    {"index_reduce_", kNondeterministic},
    {"kthvalue", kNondeterministic},
    // The CPU's does not repeat: its workspace is as it was found.
    {"linalg_lstsq", kNondeterministic},
    {"max_pool2d_with_indices_backward", kNondeterministic},
    {"max_pool3d_with_indices_backward", kNondeterministic},
    {"max_unpool2d", kNondeterministic},
    {"max_unpool3d", kNondeterministic},
    {"median", kNondeterministic},
    {"miopen_rnn", kHiddenState},
    {"miopen_rnn_backward", kHiddenState},
    {"mkldnn_rnn_layer_backward", kHiddenState},
    {"mode", kNondeterministic},
    {"nanmedian", kNondeterministic},
    {"nll_loss2d_backward", kNondeterministic},
    {"nll_loss2d_forward", kNondeterministic},
    {"put", kNondeterministic},
    {"put_", kNondeterministic},
    {"reflection_pad1d_backward", kNondeterministic},
    {"reflection_pad2d_backward", kNondeterministic},
    {"reflection_pad3d_backward", kNondeterministic},
    {"replication_pad1d_backward", kNondeterministic},
    {"replication_pad2d_backward", kNondeterministic},
    {"replication_pad3d_backward", kNondeterministic},
    {"scatter", kNondeterministic},
    {"scatter_", kNondeterministic},
    {"scatter_add", kNondeterministic},
    {"scatter_add_", kNondeterministic},
    {"scatter_reduce", kNondeterministic},
    {"scatter_reduce_", kNondeterministic},
    {"upsample_bicubic2d_backward", kNondeterministic},
    {"upsample_bilinear2d_backward", kNondeterministic},
    {"upsample_linear1d_backward", kNondeterministic},
    {"upsample_nearest1d_backward", kNondeterministic},
    {"upsample_nearest2d_backward", kNondeterministic},
    {"upsample_nearest3d_backward", kNondeterministic},
    {"upsample_trilinear3d_backward", kNondeterministic},
    {"_upsample_bicubic2d_aa_backward", kNondeterministic},
    {"_upsample_bilinear2d_aa_backward", kNondeterministic},
    {"_upsample_nearest_exact1d_backward", kNondeterministic},
    {"_upsample_nearest_exact2d_backward", kNondeterministic},
    {"_upsample_nearest_exact3d_backward", kNondeterministic},
};

struct SideEffect {
  std::string_view op;
  std::string_view argument;
};

// Batch norm moves its running statistics towards those of the batch, and
// normalises by the latter.
constexpr SideEffect kSideEffects[] = {
    {"aten::_batch_norm_with_update", "running_mean"},
    {"aten::_batch_norm_with_update", "running_var"},
    {"aten::_native_batch_norm_legit", "running_mean"},
    {"aten::_native_batch_norm_legit", "running_var"},
    {"aten::cudnn_batch_norm", "running_mean"},
    {"aten::cudnn_batch_norm", "running_var"},
    {"aten::miopen_batch_norm", "running_mean"},
    {"aten::miopen_batch_norm", "running_var"},
    {"aten::native_batch_norm", "running_mean"},
    {"aten::native_batch_norm", "running_var"},
};

constexpr std::array<at::Tag, 2> kValueTags{at::Tag::dynamic_output_shape,
                                            at::Tag::data_dependent_output};

bool returns_fresh_or_written_tensors(const OpTraits& traits) {
  // What is written is a result too, announced or not.
  if (traits.results.empty()) return false;
  return std::all_of(traits.results.begin(), traits.results.end(),
                     [](const ResultTraits& result) {
                       return result.kind == ResultKind::kTensor;
                     });
}

bool has_plain_arguments(const c10::FunctionSchema& schema,
                         const OpTraits& traits) {
  const bool are_known =
      std::all_of(traits.arguments.begin(), traits.arguments.end(),
                  [](const auto& argument) {
                    return argument.kind == ArgumentKind::kTensor ||
                           argument.kind == ArgumentKind::kTensorList ||
                           argument.kind == ArgumentKind::kOptionalList ||
                           argument.kind == ArgumentKind::kGenerator;
                  });
  return are_known &&
         std::all_of(schema.arguments().begin(), schema.arguments().end(),
                     [](const c10::Argument& argument) {
                       return argument.real_type()->kind() !=
                              c10::TypeKind::ClassType;
                     });
}

// Ops that write without saying so, other than as kSideEffects has it.
bool writes_secretly(const c10::FunctionSchema& schema,
                     const OpTraits& traits) {
  return std::any_of(
      traits.arguments.begin(), traits.arguments.end(),
      [&](const auto& argument) {
        const c10::Argument& declared = schema.arguments()[argument.index];
        const auto* alias = declared.alias_info();
        const bool announced = alias != nullptr && alias->isWrite();
        return argument.writes && !announced && !argument.side_effect;
      });
}

} // namespace

RerunRule rerun_rule(const c10::OperatorHandle& op, const OpTraits& traits) {
  const c10::FunctionSchema& schema = op.schema();
  const std::string_view base = schema.name();
  constexpr std::string_view kAten = "aten::";
  if (base == "chameleon::copy_within_")
    return kMay; // copy_, inside the device
  if (!base.starts_with(kAten)) return kOtherLibrary;
  if (traits.is_list_op || base.starts_with("aten::_foreach_") ||
      base.starts_with("aten::_fused_ada") ||
      base.starts_with("aten::_fused_sgd") || base.starts_with("aten::_amp_")) {
    return kListOp;
  }
  if (!has_plain_arguments(schema, traits)) return kArguments;
  if (!returns_fresh_or_written_tensors(traits)) return kResults;
  for (const at::Tag tag : kValueTags) {
    if (op.hasTag(tag)) return kDependsOnValues;
  }
  if (op.hasTag(at::Tag::nondeterministic_bitwise)) return kNondeterministic;
  if (op.hasTag(at::Tag::maybe_aliasing_or_mutating) ||
      op.hasTag(at::Tag::inplace_view) || writes_secretly(schema, traits)) {
    return kHiddenState;
  }
  const std::string_view name = base.substr(kAten.size());
  for (const std::string_view prefix : {"empty", "new_empty", "resize"}) {
    if (name.starts_with(prefix)) return kUninitialized;
  }
  const auto* const row =
      std::find_if(std::begin(kRows), std::end(kRows),
                   [&](const RuleRow& each) { return each.op == name; });
  return row != std::end(kRows) ? row->why : kMay;
}

std::string_view rerun_rule_name(RerunRule rule) noexcept {
  switch (rule) {
    case kMay:
      return "may";
    case kOtherLibrary:
      return "other library";
    case kListOp:
      return "list op";
    case kArguments:
      return "arguments";
    case kResults:
      return "results";
    case kDependsOnValues:
      return "depends on values";
    case kNondeterministic:
      return "nondeterministic";
    case kUninitialized:
      return "uninitialized";
    case kHiddenState:
      return "hidden state";
  }
  return "?";
}

bool is_side_effect(std::string_view base, std::string_view argument) {
  return std::any_of(std::begin(kSideEffects), std::end(kSideEffects),
                     [&](const SideEffect& row) {
                       return row.op == base && row.argument == argument;
                     });
}

} // namespace chameleon::kernels
