// Which ops are redirected.
#pragma once

#include <string>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>

namespace chameleon::kernels {

// Every op that gets the boxed kernel, sorted by name. Looks at the
// dispatcher's tables only.
std::vector<c10::OperatorHandle> collect_op_set();

} // namespace chameleon::kernels
