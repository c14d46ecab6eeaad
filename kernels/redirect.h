// The redirect: one boxed kernel, registered for PrivateUse1 on every op of
// the op set, that runs the native kernel of the same op on alias tensors.
//
// The op set is the same on every physical device: the union of all ops with a
// CUDA or a CPU kernel, minus views, manual ops and CompositeImplicit ops,
// plus a few composites that look at the device. Registering needs no device
// and touches no driver.
//
// Tests: conformance.
//
// Thread safety: the thread that loads the extension registers; the list of
// names never changes after that.
#pragma once

#include <string>
#include <vector>

namespace chameleon::kernels {

// Registers everything; called once, when the extension is loaded, after the
// manual kernels. Throws when an op returns a view and has no manual kernel.
void register_redirects();

// Names of the redirected ops, sorted.
const std::vector<std::string>& redirected_ops();

} // namespace chameleon::kernels
