#include "kernels/direct_ops.h"

#include <map>
#include <string>

#include <ATen/core/jit_type.h>
#include <ATen/ops/_foreach_add_ops.h>
#include <ATen/ops/_foreach_addcdiv_ops.h>
#include <ATen/ops/_foreach_addcmul_ops.h>
#include <ATen/ops/_foreach_div_ops.h>
#include <ATen/ops/_foreach_mul_ops.h>
#include <ATen/ops/_foreach_sqrt_ops.h>
#include <ATen/ops/_softmax_backward_data_ops.h>
#include <ATen/ops/_softmax_ops.h>
#include <ATen/ops/add_ops.h>
#include <ATen/ops/addcmul_ops.h>
#include <ATen/ops/addmm_ops.h>
#include <ATen/ops/argmax_ops.h>
#include <ATen/ops/clone_ops.h>
#include <ATen/ops/cumsum_ops.h>
#include <ATen/ops/embedding_dense_backward_ops.h>
#include <ATen/ops/embedding_ops.h>
#include <ATen/ops/gather_ops.h>
#include <ATen/ops/gelu_backward_ops.h>
#include <ATen/ops/gelu_ops.h>
#include <ATen/ops/index_select_ops.h>
#include <ATen/ops/lerp_ops.h>
#include <ATen/ops/max_ops.h>
#include <ATen/ops/max_pool2d_with_indices_ops.h>
#include <ATen/ops/mse_loss_backward_ops.h>
#include <ATen/ops/mse_loss_ops.h>
#include <ATen/ops/mul_ops.h>
#include <ATen/ops/native_batch_norm_backward_ops.h>
#include <ATen/ops/native_batch_norm_ops.h>
#include <ATen/ops/native_dropout_backward_ops.h>
#include <ATen/ops/native_dropout_ops.h>
#include <ATen/ops/native_layer_norm_backward_ops.h>
#include <ATen/ops/native_layer_norm_ops.h>
#include <ATen/ops/nll_loss_backward_ops.h>
#include <ATen/ops/nll_loss_forward_ops.h>
#include <ATen/ops/relu_ops.h>
#include <ATen/ops/sum_ops.h>
#include <ATen/ops/where_ops.h>

#include "kernels/direct_kernel.h"

namespace chameleon::kernels {
namespace {

using Install = void (*)(torch::Library&, const char*,
                         const c10::OperatorHandle&, const OpTraits*,
                         const c10::BoxedKernel&);

template <typename Signature>
void install(torch::Library& library, const char* name,
             const c10::OperatorHandle& op, const OpTraits* traits,
             const c10::BoxedKernel& general) {
  library.impl(
      name, torch::CppFunction(DirectKernel<Signature>(op, traits, general)));
}

struct Row {
  const char* name;
  const char* overload;
  Install install;
};

template <typename Op>
constexpr Row row() {
  return {Op::name, Op::overload_name, &install<typename Op::schema>};
}

// One op for each signature that is common in training.
constexpr Row kExamples[] = {
    row<at::_ops::relu>(),
    row<at::_ops::clone>(),
    row<at::_ops::add_Tensor>(),
    row<at::_ops::add_Scalar>(),
    row<at::_ops::mul_Tensor>(),
    row<at::_ops::mul_Scalar>(),
    row<at::_ops::where_self>(),
    row<at::_ops::addmm>(),
    row<at::_ops::addcmul>(),
    row<at::_ops::gelu>(),
    row<at::_ops::gelu_backward>(),
    row<at::_ops::_softmax>(),
    row<at::_ops::_softmax_backward_data>(),
    row<at::_ops::sum>(),
    row<at::_ops::sum_dim_IntList>(),
    row<at::_ops::cumsum>(),
    row<at::_ops::argmax>(),
    row<at::_ops::embedding>(),
    row<at::_ops::embedding_dense_backward>(),
    row<at::_ops::nll_loss_forward>(),
    row<at::_ops::nll_loss_backward>(),
    row<at::_ops::mse_loss>(),
    row<at::_ops::mse_loss_backward>(),
    row<at::_ops::native_layer_norm>(),
    row<at::_ops::native_layer_norm_backward>(),
    row<at::_ops::native_batch_norm>(),
    row<at::_ops::native_batch_norm_backward>(),
    row<at::_ops::native_dropout>(),
    row<at::_ops::native_dropout_backward>(),
    row<at::_ops::max_dim>(),
    row<at::_ops::max_pool2d_with_indices>(),
    row<at::_ops::index_select>(),
    row<at::_ops::gather>(),
    row<at::_ops::relu_>(),
    row<at::_ops::add__Tensor>(),
    row<at::_ops::add__Scalar>(),
    row<at::_ops::mul__Tensor>(),
    row<at::_ops::mul__Scalar>(),
    row<at::_ops::addcmul_>(),
    row<at::_ops::lerp__Tensor>(),
    row<at::_ops::_foreach_add__Scalar>(),
    row<at::_ops::_foreach_add__List>(),
    row<at::_ops::_foreach_mul__List>(),
    row<at::_ops::_foreach_addcmul__Scalar>(),
    row<at::_ops::_foreach_addcdiv__ScalarList>(),
    row<at::_ops::_foreach_div__ScalarList>(),
    row<at::_ops::_foreach_sqrt>(),
    row<at::_ops::_foreach_add_List>(),
    row<at::_ops::_foreach_mul_Scalar>(),
};

std::string type_text(const c10::Argument& argument) {
  const auto* alias = argument.alias_info();
  return argument.real_type()->str() +
         (alias != nullptr && alias->isWrite() ? "!" : "");
}

// Ops of equal text have one C++ signature.
std::string signature_text(const c10::FunctionSchema& schema) {
  std::string text;
  for (const c10::Argument& argument : schema.arguments()) {
    text += type_text(argument) + ",";
  }
  text += "->";
  for (const c10::Argument& result : schema.returns()) {
    text += type_text(result) + ",";
  }
  return text;
}

const std::map<std::string, Install>& signatures() {
  static const auto* table = [] {
    auto* signatures = new std::map<std::string, Install>;
    for (const Row& row : kExamples) {
      signatures->emplace(
          signature_text(c10::Dispatcher::singleton()
                             .findSchemaOrThrow(row.name, row.overload)
                             .schema()),
          row.install);
    }
    return signatures;
  }();
  return *table;
}

bool is_ordinary(const OpTraits& traits) {
  for (const ArgumentTraits& argument : traits.arguments) {
    if (argument.kind != ArgumentKind::kTensor &&
        argument.kind != ArgumentKind::kTensorList &&
        argument.kind != ArgumentKind::kOtherList) {
      return false;
    }
  }
  for (const ResultTraits& result : traits.results) {
    if (result.kind == ResultKind::kOther || result.written_argument > 0) {
      return false;
    }
  }
  return true;
}

} // namespace

bool register_direct(torch::Library& library, const char* name,
                     const c10::OperatorHandle& op, const OpTraits* traits,
                     const c10::BoxedKernel& general) {
  if (!is_ordinary(*traits)) return false;
  const auto found = signatures().find(signature_text(op.schema()));
  if (found == signatures().end()) return false;
  found->second(library, name, op, traits, general);
  return true;
}

} // namespace chameleon::kernels
