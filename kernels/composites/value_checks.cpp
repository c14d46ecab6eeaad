// Composites that look at values on the CPU to refuse bad ones, and do not on
// other devices, where looking would wait. Whether they look must be the
// target's choice: the check is made here, the rest is native's.
//
// Tests: conformance.
#include <ATen/ATen.h>
#include <ATen/NativeFunctions.h>
#include <ATen/TensorSubclassLikeUtils.h>
#include <torch/library.h>

#include "backend/torch/device.h"

namespace chameleon::kernels {
namespace {

using at::Tensor;

bool target_looks() { return backend::target().type == c10::DeviceType::CPU; }

Tensor one_hot(const Tensor& self, int64_t classes) {
  const bool looks = target_looks() && self.scalar_type() == at::kLong &&
                     self.sym_numel() != 0;
  if (looks) {
    TORCH_CHECK(self.min().item().toLong() >= 0,
                "Class values must be non-negative.");
    if (classes != -1) {
      TORCH_CHECK(classes > self.max().item().toLong(),
                  "Class values must be smaller than num_classes.");
    }
  }
  return at::native::one_hot(self, classes);
}

// What native refuses before it looks at the values is left to it.
void check_range(const Tensor& self, const Tensor& q) {
  if (!target_looks() || self.sym_numel() == 0 || q.dim() > 1 ||
      !at::isFloatingType(self.scalar_type()) ||
      q.scalar_type() != self.scalar_type() || q.device() != self.device()) {
    return;
  }
  TORCH_CHECK(at::is_scalar_tensor_true(q.ge(0).logical_and_(q.le(1)).all()),
              "quantile() q values must be in the range [0, 1]");
}

Tensor as_tensor(const Tensor& self, double q) {
  TORCH_CHECK(q >= 0 && q <= 1,
              "quantile() q must be in the range [0, 1] but got ", q);
  return at::scalar_tensor(q, self.options());
}

using Dim = std::optional<int64_t>;
using Function = Tensor (*)(const Tensor&, const Tensor&, Dim, bool,
                            c10::string_view);
using OutFunction = Tensor& (*)(const Tensor&, const Tensor&, Dim, bool,
                                c10::string_view, Tensor&);

template <Function native>
Tensor quantile(const Tensor& self, const Tensor& q, Dim dim, bool keepdim,
                c10::string_view interpolation) {
  check_range(self, q);
  return native(self, q, dim, keepdim, interpolation);
}

template <Function native>
Tensor quantile_of_scalar(const Tensor& self, double q, Dim dim, bool keepdim,
                          c10::string_view interpolation) {
  return quantile<native>(self, as_tensor(self, q), dim, keepdim,
                          interpolation);
}

template <OutFunction native>
Tensor& quantile_out(const Tensor& self, const Tensor& q, Dim dim, bool keepdim,
                     c10::string_view interpolation, Tensor& out) {
  check_range(self, q);
  return native(self, q, dim, keepdim, interpolation, out);
}

template <OutFunction native>
Tensor& quantile_out_of_scalar(const Tensor& self, double q, Dim dim,
                               bool keepdim, c10::string_view interpolation,
                               Tensor& out) {
  return quantile_out<native>(self, as_tensor(self, q), dim, keepdim,
                              interpolation, out);
}

constexpr Function kQuantile = &at::native::quantile;
constexpr Function kNanquantile = &at::native::nanquantile;
constexpr OutFunction kQuantileOut = &at::native::quantile_out;
constexpr OutFunction kNanquantileOut = &at::native::nanquantile_out;

void register_checks(torch::Library& m) {
  m.impl("one_hot", TORCH_FN(one_hot));
  m.impl("quantile", TORCH_FN(quantile<kQuantile>));
  m.impl("quantile.scalar", TORCH_FN(quantile_of_scalar<kQuantile>));
  m.impl("quantile.out", TORCH_FN(quantile_out<kQuantileOut>));
  m.impl("quantile.scalar_out", TORCH_FN(quantile_out_of_scalar<kQuantileOut>));
  m.impl("nanquantile", TORCH_FN(quantile<kNanquantile>));
  m.impl("nanquantile.scalar", TORCH_FN(quantile_of_scalar<kNanquantile>));
  m.impl("nanquantile.out", TORCH_FN(quantile_out<kNanquantileOut>));
  m.impl("nanquantile.scalar_out",
         TORCH_FN(quantile_out_of_scalar<kNanquantileOut>));
}

TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, m) { register_checks(m); }
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) { register_checks(m); }

} // namespace
} // namespace chameleon::kernels
