// Which list ops may be deferred (deferred_lists.h): those that cannot fail any
// more once their operands were looked at, and whose results are known before
// they run.
//
// Thread safety: functions of their arguments.
#pragma once

#include <ATen/core/stack.h>

#include "backend/torch/device.h"
#include "kernels/op_traits.h"

namespace chameleon::kernels {

// True: an in-place or functional element-wise `_foreach_*` op, or a fused
// optimizer (Adam, AdamW, SGD), with its arguments on top of `stack`: all
// tensors on `device`, ordinary, dense, of one floating type; of one index of
// one shape (but a fused optimizer's counts of steps, and its lists that it
// does not use); scalars that the type can hold; room in the budget for each
// index on its own. No tensor is pinned: a native
// tensor of torch_chameleon.resident() could show its bytes to anybody. Not in
// inference mode, whose tensors have no versions to count.
bool is_deferrable(const OpTraits& traits, const torch::jit::Stack& stack,
                   const backend::DeviceContext& device);

// Length of a list op's first list; 0 when it has none.
std::size_t list_length(const OpTraits& traits, const torch::jit::Stack& stack);

// The device of the first element that is ours; null: there is none.
backend::DeviceContext* device_of_lists(const OpTraits& traits,
                                        const torch::jit::Stack& stack);

} // namespace chameleon::kernels
