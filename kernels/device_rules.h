// Where CUDA accepts CPU tensors, as data. CPU kernels accept any mix, so
// without this table code would pass here and fail on a GPU.
//
// Thread safety: any thread; tables that never change.
#pragma once

#include <string_view>

#include <ATen/core/function_schema.h>

#include "kernels/op_plan.h"

namespace chameleon::kernels {

// `op` with its overload ("aten::index.Tensor"). `writes`: the op writes the
// argument, whether its schema says so or not.
CpuRule cpu_rule(std::string_view op, const c10::Argument& argument,
                 bool writes);

// The op (without overload: "aten::index") writes `argument` although its
// schema does not say so.
bool writes_unannounced(std::string_view op, std::string_view argument);

} // namespace chameleon::kernels
