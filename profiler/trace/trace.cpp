#include "profiler/trace/trace.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace chameleon::profiler {

using runtime::Error;
using runtime::ErrorCode;
using runtime::Result;

Trace make_trace(const CycleMap& map, const OpNames& names,
                 TraceHeader header) {
  const Cycle& cycle = map.cycle;
  Trace trace;
  trace.header = std::move(header);
  std::vector<bool> freed(cycle.values());
  for (const ValueIndex value : cycle.freed) freed[value] = true;
  std::int64_t time_ns = 0;
  for (std::size_t i = 0; i < cycle.ops(); ++i) {
    TraceOp op;
    op.op = names.name(map.op_names[i]);
    op.time_ns = time_ns;
    op.duration_ns = cycle.duration_ns[i];
    op.workspace_bytes = cycle.workspace_bytes[i];
    op.may_rerun = !cycle.may_rerun.empty() && cycle.may_rerun[i] != 0;
    time_ns += op.duration_ns;
    for (const Operand operand : cycle.operandsOf(i)) {
      const std::uint64_t number = operand.value() + 1;
      const std::uint64_t bytes = cycle.value_bytes[operand.value()];
      (operand.creates() ? op.out : op.in).emplace_back(number, bytes);
      if (operand.dirties()) op.write.push_back(number);
      if (operand.creates() &&
          map.values[operand.value()].output >= PathValue::kExternalInput) {
        op.fresh.push_back(number);
      }
      if (!operand.creates() && !operand.needsBytes()) {
        op.over.push_back(number);
      }
    }
    for (const ValueIndex value : cycle.freedAfter(i)) {
      op.free.push_back(value + 1);
    }
    trace.ops.push_back(std::move(op));
  }
  // Transients that nobody saw die make room for their successors.
  for (std::size_t i = 0; i < trace.ops.size(); ++i) {
    const std::size_t before = (i > 0 ? i : trace.ops.size()) - 1;
    for (const TraceOp::Storage& storage : trace.ops[i].out) {
      if (!freed[storage.first - 1]) {
        trace.ops[before].free.push_back(storage.first);
      }
    }
  }
  trace.step_ends.push_back(trace.ops.size());
  return trace;
}

namespace {

// A list of storages, to ask for each of thousands whether it is there.
class Numbers {
 public:
  explicit Numbers(std::vector<std::uint64_t> list) : sorted_(std::move(list)) {
    std::sort(sorted_.begin(), sorted_.end());
  }
  bool have(std::uint64_t number) const {
    return std::binary_search(sorted_.begin(), sorted_.end(), number);
  }

 private:
  std::vector<std::uint64_t> sorted_;
};

// Storage numbers of one step as values of a cycle. A number that is created
// again after it was freed is another value.
class StepValues {
 public:
  explicit StepValues(Cycle& cycle) : cycle_(cycle) {}

  ValueIndex of(const TraceOp::Storage& storage) {
    const auto [at, added] = values_.try_emplace(storage.first, 0);
    if (added) at->second = cycle_.addValue(storage.second);
    return at->second;
  }
  ValueIndex create(const TraceOp::Storage& storage) {
    if (created_.insert(storage.first).second) return of(storage);
    return values_[storage.first] = cycle_.addValue(storage.second);
  }
  bool known(std::uint64_t number) const { return values_.contains(number); }
  ValueIndex at(std::uint64_t number) const { return values_.at(number); }

 private:
  Cycle& cycle_;
  std::unordered_map<std::uint64_t, ValueIndex> values_;
  std::unordered_set<std::uint64_t> created_;
};

} // namespace

Result<Cycle> make_cycle(const Trace& trace, std::size_t step) {
  if (step >= trace.step_ends.size()) {
    return Error(ErrorCode::kInvalidArgument,
                 "step " + std::to_string(step) + " of a trace with " +
                     std::to_string(trace.step_ends.size()) + " steps");
  }
  const std::size_t begin = step == 0 ? 0 : trace.step_ends[step - 1];
  const std::size_t end = trace.step_ends[step];
  std::unordered_map<std::uint64_t, std::uint64_t> created; // and its bytes
  for (std::size_t i = begin; i < end; ++i) {
    for (const TraceOp::Storage& storage : trace.ops[i].out) {
      created.insert(storage);
    }
  }
  Cycle cycle;
  StepValues values(cycle);
  for (std::size_t i = begin; i < end; ++i) {
    const TraceOp& op = trace.ops[i];
    const Numbers written(op.write);
    const Numbers overwritten(op.over);
    cycle.addOp(op.duration_ns, op.workspace_bytes);
    cycle.may_rerun.push_back(op.may_rerun ? 1 : 0);
    for (const TraceOp::Storage& storage : op.in) {
      const std::uint32_t writes =
          written.have(storage.first) ? Operand::kWrites : 0;
      cycle.addOperand(
          values.of(storage),
          writes | (overwritten.have(storage.first) ? Operand::kOverwrites
                                                    : Operand::kReads));
    }
    for (const TraceOp::Storage& storage : op.out) {
      cycle.addOperand(values.create(storage),
                       Operand::kCreates | Operand::kWrites);
    }
    for (const std::uint64_t number : op.free) {
      const auto made = created.find(number);
      if (made == created.end()) continue; // persists in this step
      cycle.addFree(values.of(*made));
    }
  }
  const std::string problem = cycle.problem();
  if (!problem.empty()) {
    return Error(ErrorCode::kInvalidArgument,
                 "the step is no cycle: " + problem);
  }
  return cycle;
}

} // namespace chameleon::profiler
