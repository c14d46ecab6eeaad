#include "memory/policy/oracle.h"

#include <string>
#include <utility>

#include "backend/runtime/options.h"
#include "memory/policy/forecast_policy.h"
#include "profiler/trace.h"
#include "profiler/trace_reader.h"

namespace chameleon::memory {

using runtime::Error;
using runtime::ErrorCode;
using runtime::Result;

Result<std::unique_ptr<Policy>> make_oracle(const PolicyInputs& inputs) {
  const std::string file = runtime::option_text("oracle_trace").value_or("");
  if (file.empty()) {
    return Error(ErrorCode::kInvalidArgument,
                 "torch_chameleon.config.policy = \"oracle\" needs a trace: "
                 "set torch_chameleon.config.oracle_trace to a file that "
                 "torch_chameleon.profiler.export_trace() wrote");
  }
  Result<profiler::Trace> trace = profiler::read_trace_file(file);
  if (!trace.ok()) return trace.takeError();
  const profiler::PathId id = inputs.profiler.nextPath();
  // The last step is the one that repeats.
  Result<profiler::OpPath> path = profiler::make_path(
      *trace, trace->step_ends.size() - 1, profiler::op_names(), id);
  if (!path.ok()) {
    return Error(ErrorCode::kInvalidArgument,
                 file + ": " + path.error().message());
  }
  inputs.profiler.expect(std::move(*path));
  auto policy = std::make_unique<ForecastPolicy>(inputs, "oracle");
  policy->planFor(id);
  return std::unique_ptr<Policy>(std::move(policy));
}

} // namespace chameleon::memory
