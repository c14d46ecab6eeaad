// What an op's kernels cost on a GPU: floating point operations of matrix
// products, convolutions and attention by formula, and bytes moved through
// device memory. Time follows by roofline in the runtime.
//
// Thread safety: functions of their arguments.
#pragma once

#include "backend/runtime/device_runtime.h"
#include "kernels/simulated/call_view.h"

namespace chameleon::kernels::simulated {

runtime::OpCost cost_of(const CallView& call);

} // namespace chameleon::kernels::simulated
