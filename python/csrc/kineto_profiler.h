// torch.profiler shows what the device did: a plugin of Kineto that turns the
// timeline (profiler/timeline/timeline.h) into activities of device
// "chameleon", on the clock of Kineto's own.
//
// Off until a profiler asks for device activities; then, from its start to its
// stop, the timeline records. One that was recording already goes on after it.
//
// Thread safety: as Kineto calls it, one session at a time.
#pragma once

namespace chameleon::python {

// Once, at import. Uses no device.
void register_kineto_profiler();

} // namespace chameleon::python
