// What CUDA kernels allocate beside their results, which Meta kernels do not
// show: workspaces and temporaries, at their peak.
//
// Tests: test_simulated_ops.py.
//
// Thread safety: functions of their arguments.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "kernels/simulated/call_view.h"

namespace chameleon::kernels::simulated {

// 0: nothing known.
std::size_t workspace_bytes(const CallView& call);

// Ops that something is known of, in alphabetical order.
std::vector<std::string_view> workspace_ops();

} // namespace chameleon::kernels::simulated
