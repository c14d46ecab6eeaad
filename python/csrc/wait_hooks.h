// A thread that waits for another op call must not hold the GIL: the other
// call may need it to end.
//
// Thread safety: installed once, at import; the hooks run on any thread.
#pragma once

namespace chameleon::python {

void install_wait_hooks();

} // namespace chameleon::python
