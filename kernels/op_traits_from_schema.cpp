// OpTraits's constructor: what follows from an op's schema, its tags and
// tables.
//
// Tests: op_traits_test.cpp.
#include <algorithm>

#include <ATen/core/jit_type.h>

#include "kernels/algorithm_choice.h"
#include "kernels/device_rules.h"
#include "kernels/op_traits.h"
#include "kernels/overwriting_ops.h"
#include "kernels/reruns/rerun_rules.h"
#include "profiler/op_names.h"

namespace chameleon::kernels {
namespace {

// Lists that torch.optim hands over whole: element i depends on elements i of
// the other lists only.
bool is_element_wise_list_op(std::string_view op) {
  return op.starts_with("aten::_foreach_") ||
         op == "aten::_amp_foreach_non_finite_check_and_unscale_" ||
         (op.starts_with("aten::_fused_ada") && op.back() == '_') ||
         op == "aten::_fused_sgd_";
}

// -1: the schema has no such argument.
std::int16_t index_of(const c10::FunctionSchema& schema,
                      std::string_view argument) {
  const std::optional<int> index = schema.argumentIndexWithName(argument);
  return static_cast<std::int16_t>(index.value_or(-1));
}

std::optional<ArgumentKind> kind_of(const c10::Argument& argument) {
  c10::TypePtr type = argument.real_type();
  if (auto wrapped = type->cast<c10::OptionalType>()) {
    type = wrapped->getElementType();
  }
  switch (type->kind()) {
    case c10::TypeKind::TensorType:
      return ArgumentKind::kTensor;
    case c10::TypeKind::GeneratorType:
      return ArgumentKind::kGenerator;
    case c10::TypeKind::DeviceObjType:
      return ArgumentKind::kDevice;
    case c10::TypeKind::StreamObjType:
      return ArgumentKind::kStream;
    case c10::TypeKind::ListType: {
      c10::TypePtr element = type->castRaw<c10::ListType>()->getElementType();
      if (element->kind() == c10::TypeKind::TensorType) {
        return ArgumentKind::kTensorList;
      }
      if (element->kind() == c10::TypeKind::OptionalType) {
        return ArgumentKind::kOptionalList;
      }
      if (element->kind() == c10::TypeKind::NumberType) {
        return ArgumentKind::kOtherList;
      }
      return std::nullopt;
    }
    default:
      return std::nullopt;
  }
}

} // namespace

OpTraits::OpTraits(const c10::OperatorHandle& op)
    : handle(op),
      name(c10::toString(op.operator_name())),
      number(profiler::op_names().add(name)),
      quick(number),
      argument_count(
          static_cast<std::uint16_t>(op.schema().arguments().size())),
      searches_algorithms(kernels::searches_algorithms(op.schema().name())) {
  const c10::FunctionSchema& schema = op.schema();
  const std::string& base = schema.name();
  const auto& schema_arguments = schema.arguments();

  for (std::size_t i = 0; i < schema_arguments.size(); ++i) {
    const c10::Argument& argument = schema_arguments[i];
    const std::optional<ArgumentKind> what = kind_of(argument);
    if (!what) continue;
    const auto* alias = argument.alias_info();
    const bool written = (alias != nullptr && alias->isWrite()) ||
                         writes_unannounced(base, argument.name());
    const std::string_view with = written_only_with(base, argument.name());
    arguments.push_back({static_cast<std::uint16_t>(i), *what, written,
                         index_of(schema, with),
                         written && overwrites_unread(name),
                         written && is_side_effect(base, argument.name()),
                         cpu_rule(name, argument, written)});
    writes = writes || written;
    random = random || *what == ArgumentKind::kGenerator;
  }
  random = random || op.hasTag(at::Tag::nondeterministic_seeded);
  is_list_op =
      is_element_wise_list_op(base) &&
      std::any_of(arguments.begin(), arguments.end(), [](const auto& traits) {
        return traits.kind == ArgumentKind::kTensorList;
      });
  counts_versions = writes && base.starts_with("aten::_foreach_");
  if (!is_list_op) {
    std::erase_if(arguments, [](const ArgumentTraits& traits) {
      return traits.kind == ArgumentKind::kOtherList;
    });
  }

  for (const c10::Argument& returned : schema.returns()) {
    ResultTraits result{ResultKind::kOther, -1};
    const c10::TypePtr& type = returned.type();
    if (type->kind() == c10::TypeKind::TensorType) {
      result.kind = ResultKind::kTensor;
    } else if (type->kind() == c10::TypeKind::ListType &&
               type->castRaw<c10::ListType>()->getElementType()->kind() ==
                   c10::TypeKind::TensorType) {
      result.kind = ResultKind::kTensorList;
    }
    if (const auto* alias = returned.alias_info();
        alias != nullptr && alias->isWrite()) {
      for (std::size_t a = 0; a < schema_arguments.size(); ++a) {
        const auto* other = schema_arguments[a].alias_info();
        if (other != nullptr && *other == *alias) {
          result.written_argument = static_cast<std::int16_t>(a);
        }
      }
    }
    results.push_back(result);
  }
  may_rerun = rerun_rule(op, *this) == RerunRule::kMay;
  if (may_rerun) profiler::op_names().allowRerun(number);
  kind = {.name = name, .memory = &memory, .may_retry = mayRetry()};
}

} // namespace chameleon::kernels
