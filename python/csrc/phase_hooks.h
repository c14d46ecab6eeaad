// torch's profilers see what the pager does on the threads that run ops: its
// phases (memory/phase_range.h) are ranges as record_function() makes them,
// "chameleon::fetch" and so on.
//
// Thread safety: installed once, at import; the hooks run on any thread.
#pragma once

namespace chameleon::python {

// Once, at import. Uses no device.
void install_phase_hooks();

} // namespace chameleon::python
