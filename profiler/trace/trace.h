// A trace: which ops ran, on which storages, for how long. The format is JSON
// lines, readable by anything:
//
//   {"trace":1,"name":"...","hbm_budget":8589934592,
//    "bw_in":5.5e10,"bw_out":5.5e10,"bw_both":9e10,"copy_latency_ns":7000}
//   {"op":"aten::mm","t":0,"dur_ns":52578,"in":[[2,1048576],[7,4096]],
//    "out":[[8,4096]],"write":[8],"free":[7]}
//   ...
//   {"step":1}
//
// One header, one op a line, a step line at each step's end. `in`: operands
// that have a value before the op; `out`: storages that begin with it; `write`:
// those of both that it writes; `free`: those that die after it. Four fields
// may be missing: `over`, those of `in` and `write` that it overwrites
// completely and unread (none); `fresh`, those of `out` that are external
// inputs: the op does not make them, but gets them as memory that no op has
// used before (none); `workspace`, what it takes from the arena and gives back
// before it ends, at most at one time (0); and `may_rerun`, 1 if the op may be
// run again (0). Numbers are storages, sizes bytes, `t` the time of the op's
// begin in ns. Bandwidths are bytes per second, one way alone and both ways
// together; 0: not known.
//
// A step repeats: a storage that no op of it creates was there before. One that
// is freed before it is created again lived across the step's end.
//
// Thread safety: plain values.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "backend/runtime/result.h"
#include "profiler/cycle.h"
#include "profiler/cycle_builder.h"
#include "profiler/op_names.h"

namespace chameleon::profiler {

struct TraceHeader {
  std::string name;
  std::uint64_t hbm_budget_bytes = 0; // 0: not known
  double in_bytes_per_second = 0;
  double out_bytes_per_second = 0;
  double both_bytes_per_second = 0;
  std::int64_t copy_latency_ns = 0;
};

struct TraceOp {
  std::string op;
  std::int64_t time_ns = 0;
  std::int64_t duration_ns = 0;
  using Storage = std::pair<std::uint64_t, std::uint64_t>; // number, bytes
  std::vector<Storage> in;
  std::vector<Storage> out;
  std::vector<std::uint64_t> write;
  std::vector<std::uint64_t> free;
  std::vector<std::uint64_t> over;
  std::vector<std::uint64_t> fresh;
  std::uint64_t workspace_bytes = 0;
  bool may_rerun = false;
};

struct Trace {
  TraceHeader header;
  std::vector<TraceOp> ops;
  std::vector<std::size_t> step_ends; // ops before each step's end
};

// One step of a known sequence.
Trace make_trace(const CycleMap& map, const OpNames& names, TraceHeader header);
// One step of a trace (from 0) as a cycle. What is freed in it and created
// nowhere in it persists there. kInvalidArgument: the trace has no such step.
runtime::Result<Cycle> make_cycle(const Trace& trace, std::size_t step = 0);

} // namespace chameleon::profiler
