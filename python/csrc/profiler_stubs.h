// torch.autograd.profiler.profile(use_device="chameleon"), which does not go
// through Kineto by default: an event before and behind each op of torch.
//
// Thread safety: installed once, at import; the stubs run on any thread.
#pragma once

namespace chameleon::python {

// Once, at import. Uses no device.
void register_profiler_stubs();

} // namespace chameleon::python
