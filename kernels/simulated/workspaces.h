// What CUDA kernels allocate beside their results, which Meta kernels do not
// show: workspaces and temporaries, at their peak.
#pragma once

#include <cstddef>

#include "kernels/simulated/call_view.h"

namespace chameleon::kernels::simulated {

// 0: nothing known.
std::size_t workspace_bytes(const CallView& call);

} // namespace chameleon::kernels::simulated
