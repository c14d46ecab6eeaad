#include "kernels/simulated/sparse_models.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <unordered_map>

#include <ATen/ATen.h>

#include "kernels/layouts/sparse_parts.h"
#include "kernels/simulated/reads.h"

namespace chameleon::kernels::simulated {
namespace {

using at::Tensor;
using torch::jit::Stack;

// Native's code for these is one for all devices, made of ops on the values.
constexpr std::array<std::string_view, 37> kOfDenseOps = {
    "_to_dense", "abs",        "any",         "asin", "asinh",   "atan",
    "atanh",     "cat",        "ceil",        "div",  "deg2rad", "erf",
    "erfinv",    "expm1",      "floor",       "frac", "isinf",   "isnan",
    "log1p",     "nan_to_num", "native_norm", "neg",  "norm",    "pow",
    "rad2deg",   "relu",       "round",       "sgn",  "sign",    "signbit",
    "sin",       "sinh",       "sqrt",        "sum",  "tan",     "tanh",
    "trunc",
};

// Of each element: the row of a table whose rows are the dense parts.
Tensor rows_of(const Tensor& sparse) {
  const Tensor indices = sparse._indices();
  Tensor rows = indices.select(0, 0);
  for (int64_t i = 1; i < indices.size(0); ++i) {
    rows = rows.mul(sparse.size(i)).add(indices.select(0, i));
  }
  return rows;
}

// `dense` as such a table.
Tensor as_table(const Tensor& dense, int64_t sparse_dim) {
  return dense.reshape([&] {
    c10::DimVector shape{-1};
    for (const int64_t size : dense.sizes().slice(sparse_dim)) {
      shape.push_back(size);
    }
    return shape;
  }());
}

Tensor make(const Tensor& like, const Tensor& indices, const Tensor& values,
            bool coalesced) {
  return at::_sparse_coo_tensor_unsafe(indices, values, like.sizes(),
                                       values.options().layout(at::kSparse),
                                       coalesced);
}

// As on CUDA: indices are sorted, and values summed in that order.
Tensor coalesced(const Tensor& self) {
  guessed("aten::_coalesce");
  const Tensor order = std::get<1>(rows_of(self).sort());
  return make(self, self._indices().index_select(1, order),
              self._values().index_select(0, order), true);
}

void add_to_dense(const Tensor& dense, const Tensor& sparse,
                  const at::Scalar& alpha) {
  as_table(dense, sparse.sparse_dim())
      .index_add_(0, rows_of(sparse), sparse._values().to(dense.scalar_type()),
                  alpha);
}

Tensor plus(const Tensor& self, const Tensor& other, const at::Scalar& alpha) {
  TORCH_CHECK(other.is_sparse(),
              "add(sparse, dense) is not supported. Use "
              "add(dense, sparse) instead.");
  if (!self.is_sparse()) {
    Tensor sum = self.clone();
    add_to_dense(sum, other, alpha);
    return sum;
  }
  return make(self, at::cat({self._indices(), other._indices()}, 1),
              at::cat({self._values(), other._values().mul(alpha)}), false);
}

Tensor times(const Tensor& self, const Tensor& other) {
  if (!self.is_sparse()) return times(other, self);
  Tensor values;
  if (other.dim() == 0) {
    values = self._values().mul(other);
  } else if (!other.is_sparse()) {
    values = self._values().mul(
        as_table(other, self.sparse_dim()).index_select(0, rows_of(self)));
  } else if (self._nnz() <= other._nnz()) {
    values = self._values().mul(other._values().index_select(0, rows_of(self)));
  } else {
    return times(other, self);
  }
  return make(self, self._indices().clone(), values, self.is_coalesced());
}

Tensor masked(const Tensor& self, const Tensor& mask) {
  TORCH_CHECK_NOT_IMPLEMENTED(!self.is_sparse(),
                              "aten::sparse_mask: a simulated chameleon knows "
                              "it of dense tensors only");
  return make(mask, mask._indices().clone(),
              as_table(self, mask.sparse_dim()).index_select(0, rows_of(mask)),
              mask.is_coalesced());
}

// ---- by name, of what is on the stack

using Model = void (*)(Stack&);

Tensor argument(const Stack& stack, std::size_t count, std::size_t i) {
  return stack[stack.size() - count + i].toTensor();
}
void finish(Stack& stack, std::size_t count, Tensor result) {
  torch::jit::drop(stack, count);
  stack.emplace_back(std::move(result));
}

void run_coalesce(Stack& stack) {
  finish(stack, 1, coalesced(argument(stack, 1, 0)));
}
// `sign`: of the second operand.
template <int sign>
void run_add(Stack& stack) {
  finish(stack, 3,
         plus(argument(stack, 3, 0), argument(stack, 3, 1),
              sign > 0 ? stack.back().toScalar() : -stack.back().toScalar()));
}
template <int sign>
void run_add_(Stack& stack) {
  const Tensor self = argument(stack, 3, 0);
  const Tensor other = argument(stack, 3, 1);
  const at::Scalar alpha =
      sign > 0 ? stack.back().toScalar() : -stack.back().toScalar();
  if (self.is_sparse()) {
    copy_sparse(*plus(self, other, alpha).unsafeGetTensorImpl(),
                *self.unsafeGetTensorImpl());
  } else {
    add_to_dense(self, other, alpha);
  }
  finish(stack, 3, self);
}
void run_mul(Stack& stack) {
  finish(stack, 2, times(argument(stack, 2, 0), argument(stack, 2, 1)));
}
void run_mul_(Stack& stack) {
  const Tensor self = argument(stack, 2, 0);
  copy_sparse(*times(self, argument(stack, 2, 1)).unsafeGetTensorImpl(),
              *self.unsafeGetTensorImpl());
  finish(stack, 2, self);
}
void run_sparse_mask(Stack& stack) {
  finish(stack, 2, masked(argument(stack, 2, 0), argument(stack, 2, 1)));
}

const std::unordered_map<std::string_view, Model>& models() {
  static const auto* table = new std::unordered_map<std::string_view, Model>{
      {"aten::_coalesce", &run_coalesce},
      {"aten::add.Tensor", &run_add<1>},
      {"aten::add_.Tensor", &run_add_<1>},
      {"aten::sub.Tensor", &run_add<-1>},
      {"aten::sub_.Tensor", &run_add_<-1>},
      {"aten::mul.Tensor", &run_mul},
      {"aten::mul_.Tensor", &run_mul_},
      {"aten::sparse_mask", &run_sparse_mask},
  };
  return *table;
}

bool is_of_dense_ops(std::string_view name) {
  name.remove_prefix(std::string_view("aten::").size());
  const bool in_place = !name.empty() && name.back() == '_';
  return std::find(kOfDenseOps.begin(), kOfDenseOps.end(), name) !=
             kOfDenseOps.end() ||
         (in_place &&
          std::find(kOfDenseOps.begin(), kOfDenseOps.end(),
                    name.substr(0, name.size() - 1)) != kOfDenseOps.end());
}

} // namespace

void run_sparse(const c10::OperatorHandle& op, Stack& stack) {
  if (is_of_dense_ops(op.operator_name().name)) {
    return op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::SparseCPU),
                              &stack);
  }
  const std::string name = c10::toString(op.operator_name());
  const auto model = models().find(name);
  TORCH_CHECK_NOT_IMPLEMENTED(
      model != models().end(), name,
      ": a simulated device has no model of it for sparse tensors; run it on "
      "CPU tensors instead");
  model->second(stack);
}

} // namespace chameleon::kernels::simulated
