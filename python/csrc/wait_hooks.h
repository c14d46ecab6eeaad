// A thread that waits for another op call must not hold the GIL: the other
// call may need it to end.
#pragma once

namespace chameleon::python {

void install_wait_hooks();

} // namespace chameleon::python
