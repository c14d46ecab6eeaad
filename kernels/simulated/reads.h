// A simulated device has no values. Whoever asks for one gets what is known of
// it (facts.h), else zeros, or an error where the option `simulated_reads` is
// "raise"; the first time with a warning, since a program may take another turn
// than with real values.
//
// Tests: test_simulated_values.py.
//
// Thread safety: any thread.
#pragma once

#include <string_view>

namespace chameleon::kernels::simulated {

// `op` reads values and gets zeros. Throws where that is not wanted.
void read_zeros(std::string_view op);

// The shape of `op`'s result depends on values and was made up; `known`: by
// what is known of them.
void guessed(std::string_view op, bool known = false);

// Is told of it, on the thread of the call, whose operands are pinned. Null, as
// it is at first: nobody.
using GuessListener = void (*)(bool known);
void set_guess_listener(GuessListener listener);

// Zeros were read, of which nothing is known; no lock is held.
void read_unknown();
// Is told of it, on the thread that reads, and may throw. Null: nobody.
using ReadListener = void (*)();
void set_read_listener(ReadListener listener);

} // namespace chameleon::kernels::simulated
