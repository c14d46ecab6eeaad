// A simulated device has no values. Whoever asks for one gets zeros, or an
// error where the option `simulated_reads` is "raise"; the first time with a
// warning, since a program may take another turn than with real values.
//
// Thread safety: any thread.
#pragma once

#include <string_view>

namespace chameleon::kernels::simulated {

// `op` reads values and gets zeros. Throws where that is not wanted.
void read_zeros(std::string_view op);

// The shape of `op`'s result depends on values and was made up.
void guessed(std::string_view op);

} // namespace chameleon::kernels::simulated
