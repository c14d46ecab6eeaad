// Where CUDA accepts or returns CPU tensors, as data. CPU kernels accept any
// mix, so without this table code would pass here and fail on a GPU.
#pragma once

#include <string_view>

#include "kernels/op_plan.h"

namespace chameleon::kernels {

// `op` without overload ("aten::index"), `argument` by its schema name.
CpuRule cpu_rule(std::string_view op, std::string_view argument, bool writes);

// Result `index` of `op` is a CPU tensor on CUDA, too.
bool result_stays_on_cpu(std::string_view op, std::size_t index);

// The op writes `argument` although its schema does not say so.
bool writes_unannounced(std::string_view op, std::string_view argument);

} // namespace chameleon::kernels
