// Random numbers: a generator tagged "chameleon:i" over one of the target, so
// that a seeded run consumes one stream exactly as the native device does.
//
// Tests: test_generators.py.
//
// Thread safety: as of native generators, callers hold its mutex.
#pragma once

#include <ATen/core/Generator.h>

namespace chameleon::backend {

// Device i's default generator; wraps the target's default generator.
const at::Generator& default_generator(c10::DeviceIndex index);
at::Generator new_generator(c10::DeviceIndex index);
// At first use on CUDA: what was seeded before seeds CUDA's default generator.
void hand_on_seed(c10::DeviceIndex index);

// A generator of its own like `outer`, in `state` (Generator::get_state()).
at::Generator generator_in_state(const at::Generator& outer,
                                 const at::Tensor& state);

// The target's generator inside `outer`. Throws what CUDA throws when `outer`
// belongs to another device.
at::Generator inner_generator(const at::Generator& outer);

} // namespace chameleon::backend
