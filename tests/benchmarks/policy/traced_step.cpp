#include "tests/benchmarks/policy/traced_step.h"

#include <algorithm>
#include <cstdio>
#include <utility>
#include <vector>

#include "memory/policy/plan/use_table.h"
#include "memory/policy/what_if.h"
#include "profiler/trace/trace_reader.h"
#include "tests/benchmarks/policy/rerun_names.h"

namespace chameleon::benchmarks {

using profiler::Operand;
using profiler::ValueIndex;

void mark_reruns(profiler::Trace& trace) {
  std::vector<profiler::TraceOp>& ops = trace.ops;
  if (std::ranges::any_of(ops, &profiler::TraceOp::may_rerun)) return;
  for (profiler::TraceOp& op : ops) op.may_rerun = may_rerun(op.op);
}

std::string unpacked(const std::string& path) {
  const std::string command = "gzip -dc '" + path + "'";
  std::FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return {};
  std::string text;
  char part[1 << 16];
  for (std::size_t size; (size = std::fread(part, 1, sizeof part, pipe)) > 0;) {
    text.append(part, size);
  }
  return pclose(pipe) == 0 ? text : std::string();
}

runtime::Result<TracedStep> read_step(std::string_view text) {
  runtime::Result<profiler::Trace> trace = profiler::read_trace(text);
  if (!trace.ok()) return trace.takeError();
  mark_reruns(*trace);
  const std::size_t last = trace->step_ends.size() - 1;
  runtime::Result<profiler::Cycle> cycle = profiler::make_cycle(*trace, last);
  if (!cycle.ok()) return cycle.takeError();
  TracedStep step;
  step.cycle = std::move(*cycle);
  step.link = memory::link_of(trace->header);
  return step;
}

std::uint64_t budget_bytes(const profiler::Cycle& cycle, double k) {
  const memory::UseTable table(cycle, 0);
  return static_cast<std::uint64_t>(static_cast<double>(table.peakBytes()) / k);
}

profiler::Cycle tile(const profiler::Cycle& cycle, int times) {
  profiler::Cycle tiled;
  std::vector<ValueIndex> now(cycle.values());
  std::vector<bool> transient(cycle.values());
  for (const Operand operand : cycle.operands) {
    if (operand.creates()) transient[operand.value()] = true;
  }
  for (ValueIndex value = 0; value < cycle.values(); ++value) {
    now[value] = tiled.addValue(cycle.value_bytes[value]);
  }
  for (int time = 0; time < times; ++time) {
    for (ValueIndex value = 0; time > 0 && value < cycle.values(); ++value) {
      if (!transient[value]) continue;
      now[value] = tiled.addValue(cycle.value_bytes[value]);
    }
    for (std::size_t op = 0; op < cycle.ops(); ++op) {
      tiled.addOp(cycle.duration_ns[op], cycle.workspace_bytes[op]);
      if (!cycle.may_rerun.empty()) {
        tiled.may_rerun.push_back(cycle.may_rerun[op]);
      }
      for (const Operand operand : cycle.operandsOf(op)) {
        tiled.addOperand(now[operand.value()], operand.flags());
      }
      for (const ValueIndex value : cycle.freedAfter(op)) {
        tiled.addFree(now[value]);
      }
    }
  }
  return tiled;
}

} // namespace chameleon::benchmarks
