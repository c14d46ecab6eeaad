// What CUDA computes in dtypes for which the CPU has no kernel. Code that asks
// "is this the CPU?" hands such tensors to every other device, ours included:
// where the CPU is the target, it computes them in a dtype that it has.
//
// Tests: conformance.
#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

namespace chameleon::kernels {
namespace {

// Counts of integers are integers (mixture-of-experts layers count tokens).
// Exact: float64 holds every int32, and bins and counts stay far below 2^53.
at::Tensor native_histc(const at::Tensor& self, int64_t bins,
                        const at::Scalar& min, const at::Scalar& max) {
  if (!self.is_cpu() || !c10::isIntegralType(self.scalar_type(),
                                             /*includeBool=*/false)) {
    return at::histc(self, bins, min, max);
  }
  return at::histc(self.to(at::kDouble), bins, min, max).to(self.scalar_type());
}

at::Tensor histc(const at::Tensor& self, int64_t bins, const at::Scalar& min,
                 const at::Scalar& max) {
  static const auto op =
      c10::Dispatcher::singleton()
          .findSchemaOrThrow("chameleon::histc", "")
          .typed<at::Tensor(const at::Tensor&, int64_t, const at::Scalar&,
                            const at::Scalar&)>();
  return op.call(self, bins, min, max);
}

TORCH_LIBRARY_FRAGMENT(chameleon, m) {
  m.def("histc(Tensor self, int bins, Scalar min, Scalar max) -> Tensor");
}
TORCH_LIBRARY_IMPL(chameleon, CPU, m) {
  m.impl("histc", TORCH_FN(native_histc));
}
TORCH_LIBRARY_IMPL(chameleon, CUDA, m) {
  m.impl("histc", TORCH_FN(native_histc));
}
TORCH_LIBRARY_IMPL(chameleon, Meta, m) {
  m.impl("histc", TORCH_FN(native_histc));
}
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) { m.impl("histc", TORCH_FN(histc)); }

} // namespace
} // namespace chameleon::kernels
