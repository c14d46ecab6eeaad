// Which operands an op overwrites: it writes every element and reads none, so
// that bytes that are not in HBM need not be fetched for it. As data, and
// conservative: what is not listed is taken to be read.
#pragma once

#include <string_view>

namespace chameleon::kernels {

// Each argument that the op writes. `op` with its overload ("aten::add.out").
bool overwrites_unread(std::string_view op);

} // namespace chameleon::kernels
