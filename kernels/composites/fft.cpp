// Fourier transforms of half precision. The composites promote what they get,
// and refuse half where the device is not CUDA; whether they do must be the
// target's choice. Half is promoted here, the rest is native's: a transform
// that makes its operand complex takes a complex one as it is, and one of real
// numbers is put together as native does.
//
// Tests: conformance.
#include <algorithm>
#include <numeric>

#include <ATen/ATen.h>
#include <ATen/NativeFunctions.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/native/SpectralOpsUtils.h>
#include <torch/library.h>

#include "backend/torch/device.h"

namespace chameleon::kernels {
namespace {

using at::Tensor;
using c10::SymInt;
using Norm = std::optional<c10::string_view>;

// Real, and half once it is promoted, where native would not refuse that.
bool is_half(const Tensor& self) {
  if (backend::target().type == c10::DeviceType::CPU) return false;
  const at::ScalarType type = self.scalar_type();
  return type == at::kHalf ||
         (at::isIntegralType(type, /*includeBool=*/true) &&
          c10::typeMetaToScalarType(c10::get_default_dtype()) == at::kHalf);
}

// ---- what is made complex first -------------------------------------------

template <auto native>
struct OfComplex;
template <typename Result, typename... Args,
          Result (*native)(const Tensor&, Args...)>
struct OfComplex<native> {
  static Result run(const Tensor& self, Args... args) {
    if (!is_half(self)) return native(self, std::forward<Args>(args)...);
    return native(self.to(at::kComplexHalf), std::forward<Args>(args)...);
  }
};

// ---- of real numbers ------------------------------------------------------

int64_t norm_of(const Norm& norm, bool forward) {
  using at::native::fft_norm_mode;
  const auto mode = [&] {
    if (!norm || *norm == "backward") {
      return forward ? fft_norm_mode::none : fft_norm_mode::by_n;
    }
    if (*norm == "forward") {
      return forward ? fft_norm_mode::by_n : fft_norm_mode::none;
    }
    TORCH_CHECK(*norm == "ortho", "Invalid normalization mode: \"", *norm,
                "\"");
    return fft_norm_mode::by_root_n;
  };
  return static_cast<int64_t>(mode());
}

// What is transformed: sizes[i] elements of dims[i].
struct Extent {
  c10::SymDimVector sizes;
  c10::DimVector dims;
};

// Cut, or with zeros behind.
Tensor resized(Tensor x, const Extent& extent) {
  const c10::SymDimVector before(x.sym_sizes());
  c10::SymDimVector pad(before.size() * 2);
  bool grows = false;
  for (std::size_t i = 0; i < extent.dims.size(); ++i) {
    const auto dim = static_cast<std::size_t>(extent.dims[i]);
    const SymInt& size = extent.sizes[i];
    if (before[dim] < size) {
      grows = true;
      pad[pad.size() - 2 * dim - 1] = size - before[dim];
    } else if (before[dim] > size) {
      x = x.slice_symint(extent.dims[i], 0, size);
    }
  }
  return grows ? at::constant_pad_nd_symint(x, pad) : x;
}

Tensor promoted(const Tensor& self) { return self.to(at::kHalf); }

// ---- in one dimension

template <bool forward, bool onesided>
Tensor transform(const Tensor& self, const std::optional<SymInt>& n,
                 int64_t dim, const Norm& norm, Tensor* out) {
  TORCH_CHECK(out == nullptr || out->is_complex(),
              "fft expects a complex output tensor, but got ",
              out == nullptr ? at::kHalf : out->scalar_type());
  Tensor input = promoted(self);
  dim = at::maybe_wrap_dim(dim, input.dim(), /*wrap_scalar=*/false);
  const SymInt size = n.value_or(input.sym_size(dim));
  TORCH_CHECK(size >= 1, "Invalid number of data points (", size,
              ") specified");
  if (n) input = resized(input, {{size}, {dim}});
  const int64_t mode = norm_of(norm, forward);
  if constexpr (forward) {
    return out == nullptr ? at::_fft_r2c(input, dim, mode, onesided)
                          : at::_fft_r2c_out(*out, input, dim, mode, onesided);
  }
  const Tensor result = at::_fft_r2c(input, dim, mode, onesided);
  return out == nullptr ? result.conj() : at::conj_physical_out(*out, result);
}

template <bool forward, bool onesided, auto native>
Tensor of_real(const Tensor& self, std::optional<SymInt> n, int64_t dim,
               Norm norm) {
  if (!is_half(self)) return native(self, std::move(n), dim, norm);
  return transform<forward, onesided>(self, n, dim, norm, nullptr);
}

template <bool forward, bool onesided, auto native>
Tensor& of_real_out(const Tensor& self, std::optional<SymInt> n, int64_t dim,
                    Norm norm, Tensor& out) {
  if (!is_half(self)) return native(self, std::move(n), dim, norm, out);
  transform<forward, onesided>(self, n, dim, norm, &out);
  return out;
}

// ---- in several dimensions

Extent extent_of(const Tensor& self, at::OptionalSymIntArrayRef sizes,
                 at::OptionalIntArrayRef dims) {
  Extent extent;
  if (dims) {
    extent.dims.assign(dims->begin(), dims->end());
    at::maybe_wrap_dims(extent.dims, self.dim(), /*wrap_scalars=*/false);
    c10::DimVector sorted = extent.dims;
    std::sort(sorted.begin(), sorted.end());
    TORCH_CHECK(
        std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end(),
        "FFT dims must be unique");
  }
  if (sizes) {
    TORCH_CHECK(
        !dims || dims->size() == sizes->size(),
        "When given, dim and shape arguments must have the same length");
    TORCH_CHECK(static_cast<int64_t>(sizes->size()) <= self.dim(),
                "Got shape with ", sizes->size(),
                " values but input tensor only has ", self.dim(),
                " dimensions.");
  }
  if (!dims) {
    const auto count = static_cast<int64_t>(
        sizes ? sizes->size() : static_cast<std::size_t>(self.dim()));
    extent.dims.resize(static_cast<std::size_t>(count));
    std::iota(extent.dims.begin(), extent.dims.end(), self.dim() - count);
  }
  for (std::size_t i = 0; i < extent.dims.size(); ++i) {
    const bool given = sizes && (*sizes)[i] != -1;
    extent.sizes.push_back(given ? (*sizes)[i] : self.sym_size(extent.dims[i]));
    TORCH_CHECK(extent.sizes.back() > 0, "Invalid number of data points (",
                extent.sizes.back(), ") specified");
  }
  TORCH_CHECK(!extent.sizes.empty(), "fft must transform at least one axis");
  return extent;
}

struct Rfftn {
  static Tensor run(const Tensor& self, const Extent& extent, const Norm& norm,
                    Tensor* out) {
    const Tensor x = resized(promoted(self), extent);
    const int64_t mode = norm_of(norm, /*forward=*/true);
    return out == nullptr
               ? at::_fft_r2c(x, extent.dims, mode, /*onesided=*/true)
               : at::_fft_r2c_out(*out, x, extent.dims, mode, true);
  }
};

struct Ihfftn {
  static Tensor run(const Tensor& self, const Extent& extent, const Norm& norm,
                    Tensor* out) {
    const Tensor x = resized(promoted(self), extent);
    const int64_t mode = norm_of(norm, /*forward=*/false);
    const Tensor last =
        at::_fft_r2c(x, extent.dims.back(), mode, /*onesided=*/true);
    const auto others =
        at::IntArrayRef(extent.dims).slice(0, extent.dims.size() - 1);
    if (others.empty()) {
      return out == nullptr ? last.conj() : at::conj_physical_out(*out, last);
    }
    const Tensor half = at::conj_physical(last);
    return out == nullptr ? at::_fft_c2c(half, others, mode, /*forward=*/false)
                          : at::_fft_c2c_out(*out, half, others, mode, false);
  }
};

// Of the n-dimensional and of the two-dimensional form, with `out` or without.
template <typename Transform, auto native>
struct OfReals;
template <typename Transform, typename Dims,
          Tensor (*native)(const Tensor&, at::OptionalSymIntArrayRef, Dims,
                           Norm)>
struct OfReals<Transform, native> {
  static Tensor run(const Tensor& self, at::OptionalSymIntArrayRef sizes,
                    Dims dims, Norm norm) {
    if (!is_half(self)) return native(self, sizes, dims, norm);
    return Transform::run(self, extent_of(self, sizes, dims), norm, nullptr);
  }
};
template <typename Transform, typename Dims,
          Tensor& (*native)(const Tensor&, at::OptionalSymIntArrayRef, Dims,
                            Norm, Tensor&)>
struct OfReals<Transform, native> {
  static Tensor& run(const Tensor& self, at::OptionalSymIntArrayRef sizes,
                     Dims dims, Norm norm, Tensor& out) {
    if (!is_half(self)) return native(self, sizes, dims, norm, out);
    Transform::run(self, extent_of(self, sizes, dims), norm, &out);
    return out;
  }
};

#define CHAMELEON_COMPLEX(name)                                        \
  m.impl(#name, TORCH_FN(OfComplex<&at::native::name##_symint>::run)); \
  m.impl(#name ".out", TORCH_FN(OfComplex<&at::native::name##_symint_out>::run))
#define CHAMELEON_REAL(name, forward, onesided)                               \
  m.impl(#name,                                                               \
         TORCH_FN((of_real<forward, onesided, &at::native::name##_symint>))); \
  m.impl(#name ".out",                                                        \
         TORCH_FN((                                                           \
             of_real_out<forward, onesided, &at::native::name##_symint_out>)))
#define CHAMELEON_REALS(name, Transform)                                   \
  m.impl(#name,                                                            \
         TORCH_FN((OfReals<Transform, &at::native::name##_symint>::run))); \
  m.impl(#name ".out",                                                     \
         TORCH_FN((OfReals<Transform, &at::native::name##_symint_out>::run)))

void register_transforms(torch::Library& m) {
  CHAMELEON_COMPLEX(fft_irfft);
  CHAMELEON_COMPLEX(fft_hfft);
  CHAMELEON_COMPLEX(fft_fft2);
  CHAMELEON_COMPLEX(fft_ifft2);
  CHAMELEON_COMPLEX(fft_irfft2);
  CHAMELEON_COMPLEX(fft_hfft2);
  CHAMELEON_COMPLEX(fft_fftn);
  CHAMELEON_COMPLEX(fft_ifftn);
  CHAMELEON_COMPLEX(fft_irfftn);
  CHAMELEON_COMPLEX(fft_hfftn);
  CHAMELEON_REAL(fft_fft, true, false);
  CHAMELEON_REAL(fft_ifft, false, false);
  CHAMELEON_REAL(fft_rfft, true, true);
  CHAMELEON_REAL(fft_ihfft, false, true);
  CHAMELEON_REALS(fft_rfft2, Rfftn);
  CHAMELEON_REALS(fft_rfftn, Rfftn);
  CHAMELEON_REALS(fft_ihfft2, Ihfftn);
  CHAMELEON_REALS(fft_ihfftn, Ihfftn);
}

#undef CHAMELEON_COMPLEX
#undef CHAMELEON_REAL
#undef CHAMELEON_REALS

TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, m) { register_transforms(m); }
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) { register_transforms(m); }

} // namespace
} // namespace chameleon::kernels
