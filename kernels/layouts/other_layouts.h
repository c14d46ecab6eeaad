// Quantized tensors: what is not composed of dense ones is refused.
//
// Tests: test_layouts.py.
//
// Thread safety: any thread.
#pragma once

#include <string_view>

namespace chameleon::kernels {

// Throws NotImplementedError with one sentence. `op`: its name.
void refuse_quantized(std::string_view op);

} // namespace chameleon::kernels
