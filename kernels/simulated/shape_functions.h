// Shapes of results where PyTorch has no Meta kernel, or has one that refuses
// because the shape depends on values. Values do not exist here, so these ops
// get a stand-in: what follows from what is known of them (facts.h), else the
// largest result that there can be (a mask is all true, all elements differ),
// times the option `simulated_share`; or one, where there is no largest.
//
// Thread safety: functions of their arguments.
#pragma once

#include <string_view>

#include <ATen/core/stack.h>

#include "kernels/op_traits.h"

namespace chameleon::kernels::simulated {

// Takes the op's arguments, Meta alias tensors, from the stack and leaves Meta
// results.
using ShapeFunction = void (*)(const OpTraits& traits,
                               torch::jit::Stack& stack);

// Null: the op's Meta kernel knows. `name` with its overload.
ShapeFunction find_shape_function(std::string_view name);

} // namespace chameleon::kernels::simulated
