#include "kernels/overwriting_ops.h"

#include <algorithm>
#include <iterator>

namespace chameleon::kernels {
namespace {

// out= ops with one implementation for fresh memory and for `out`. Sorted.
constexpr std::string_view kOut[] = {
#include "kernels/overwriting_ops.inc"
};

// Others, all that they write: fills, copies, random numbers.
// Sorted.
constexpr std::string_view kMore[] = {
    "aten::_foreach_copy_",
    "aten::_foreach_zero_",
    "aten::arange.start_out",
    "aten::bernoulli.out",
    "aten::bernoulli_.Tensor",
    "aten::bernoulli_.float",
    "aten::cauchy_",
    "aten::exponential_",
    "aten::eye.m_out",
    "aten::eye.out",
    "aten::fill_.Scalar",
    "aten::fill_.Tensor",
    "aten::full.out",
    "aten::geometric_",
    "aten::index_select.out",
    "aten::linspace.out",
    "aten::log_normal_",
    "aten::logspace.out",
    "aten::normal_",
    "aten::ones.out",
    "aten::random_",
    "aten::random_.from",
    "aten::random_.to",
    "aten::randperm.generator_out",
    "aten::uniform_",
    "aten::where.self_out",
    "aten::zero_",
    "aten::zeros.out",
    "chameleon::copy_within_",
};

} // namespace

bool overwrites_unread(std::string_view op) {
  return std::binary_search(std::begin(kOut), std::end(kOut), op) ||
         std::binary_search(std::begin(kMore), std::end(kMore), op);
}

} // namespace chameleon::kernels
