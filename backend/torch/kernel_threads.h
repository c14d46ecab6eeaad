// How many threads a CPU kernel may use while autograd runs it.
//
// torch.set_num_threads() speaks for the thread that calls it. The CPU's
// backward runs on that thread; a device's runs on a thread of autograd's own,
// which keeps the count that it began with, and a reduction over another
// number of threads has other bits.
//
// Tests: test_threads.py.
//
// Thread safety: free functions for any thread.
#pragma once

namespace chameleon::backend {

// On the thread that calls backward(): its count is what backward gets.
void note_caller_threads();

// On one of autograd's threads: takes over the count last noted. Anywhere
// else: nothing.
void follow_caller_threads();

} // namespace chameleon::backend
