// Runs the steps of a trace through the pager on the simulated GPU, again and
// again: the shipping code on a modelled clock, without a framework above it.
//
// Thread safety: none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "backend/runtime/device_runtime.h"
#include "memory/pager.h"
#include "profiler/cycle.h"
#include "profiler/trace/trace.h"

namespace chameleon::benchmarks {

// All steps of a trace as one cycle.
runtime::Result<profiler::Cycle> cycle_of(profiler::Trace trace);

class TraceReplay {
 public:
  struct Options {
    std::size_t budget_bytes = 0; // of HBM
    std::string policy = "forecast";
    bool recompute = false; // ops may be run again, if the trace says so
  };

  // An error of the pager, here and in step(), ends the process with its
  // message. REQUIRES: both outlive it; cycle_of(trace) is the cycle.
  TraceReplay(const profiler::Trace& trace, const profiler::Cycle& cycle,
              const Options& options);
  ~TraceReplay();
  TraceReplay(const TraceReplay&) = delete;
  TraceReplay& operator=(const TraceReplay&) = delete;

  std::size_t steps() const noexcept { return step_ends_.size(); }
  // The next one; after the last the first comes again. The host runs on into
  // the next step, as the bounds and the models have it.
  void step();

  // On the compute stream: where each step so far began, and the last one
  // ended.
  std::vector<runtime::Moment> moments();
  memory::Pager& pager() noexcept { return *pager_; }
  runtime::DeviceRuntime& runtime() noexcept { return *runtime_; }

 private:
  void mark();
  void run(std::size_t op);
  void record(memory::Call& call, std::size_t op,
              const std::vector<memory::Operand>& operands);

  const profiler::Cycle& cycle_;
  const std::vector<std::size_t> step_ends_; // ops before each one
  std::unique_ptr<runtime::DeviceRuntime> runtime_;
  std::unique_ptr<memory::Pager> pager_;
  std::size_t next_ = 0;                   // step
  std::vector<runtime::Event> boundaries_; // of the steps
  std::vector<memory::Block*> blocks_;     // per value
  std::vector<std::pair<std::uint32_t, profiler::Token>> tokens_; // by name
  std::unordered_map<std::uint32_t, memory::OpMemory> memory_;    // per name
};

} // namespace chameleon::benchmarks
