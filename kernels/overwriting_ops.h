// Which operands an op overwrites: it writes every element and reads none, so
// that bytes that are not in HBM need not be fetched for it. As data, and
// conservative: what is not listed is taken to be read.
//
// Tests: test_overwrites.py.
//
// Thread safety: any thread; tables that never change.
#pragma once

#include <string_view>

namespace chameleon::kernels {

// True: the op overwrites each argument that it writes, whole and unread. `op`
// with its overload ("aten::add.out").
bool overwrites_unread(std::string_view op);

} // namespace chameleon::kernels
