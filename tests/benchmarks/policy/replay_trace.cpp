// Runs the step of a trace through the pager on the simulated GPU, again and
// again: the shipping code on a modelled clock, without a framework above it.
// Prints one JSON object.
//
//   replay_trace [--k K] [--policy P] [--steps N] [--recompute 1] < trace.jsonl
//
//   --k K        budget = the trace's peak / K (default 2)
//   --policy P   lru, forecast (default)
//   --steps N    before those that the figures are means of (default 6, of 20);
//                more where plans are still being compared
//   --recompute  ops may be run again (mark_reruns())
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "profiler/trace/trace_reader.h"
#include "tests/benchmarks/policy/trace_replay.h"
#include "tests/benchmarks/policy/traced_step.h"

namespace chameleon::benchmarks {
namespace {

constexpr int kSteady = 20; // last steps, for the figures
constexpr int kMost = 240;  // before these

struct Arguments {
  double k = 2;
  std::string policy = "forecast";
  int steps = 6;
  bool recompute = false;
};

double milliseconds(std::int64_t ns) { return static_cast<double>(ns) / 1e6; }

int run(const Arguments& arguments) {
  const std::string text{std::istreambuf_iterator<char>(std::cin), {}};
  auto trace = profiler::read_trace(text);
  if (!trace.ok()) {
    std::fprintf(stderr, "%s\n", trace.error().message().c_str());
    return 1;
  }
  mark_reruns(*trace);
  const profiler::Cycle cycle = cycle_of(*trace).value();
  const auto budget = budget_bytes(cycle, arguments.k) & ~std::size_t{511};
  TraceReplay replay(*trace, cycle,
                     {budget, arguments.policy, arguments.recompute});
  for (int i = 0; i < arguments.steps ||
                  (i < kMost && replay.pager().policy().costs().is_trying);
       ++i) {
    replay.step();
  }
  replay.pager().resetStats();
  for (int i = 0; i < kSteady; ++i) replay.step();
  const std::vector<runtime::Moment> moments = replay.moments();
  const memory::Stats stats = replay.pager().stats();
  std::printf("{\"k\":%g,\"policy\":\"%s\",\"steps_ms\":[", arguments.k,
              arguments.policy.c_str());
  for (std::size_t i = 1; i < moments.size(); ++i) {
    std::printf("%s%.1f", i == 1 ? "" : ",",
                milliseconds(moments[i].time_ns - moments[i - 1].time_ns));
  }
  const runtime::Moment& begin = moments[moments.size() - 1 - kSteady];
  const runtime::Moment& end = moments.back();
  const std::optional<memory::StepFigures> last =
      replay.pager().meter().lastStep();
  std::printf(
      "],\"ms\":%.2f,\"compute_ms\":%.2f,\"in_gb\":%.2f,\"out_gb\":%.2f,"
      "\"faults\":%.0f,\"evictions\":%.0f,\"compactions\":%.0f,"
      "\"prefetched_gb\":%.2f,\"stall_ms\":%.2f,\"rerun_ops\":%.0f,"
      "\"plan_ms\":%.2f}\n",
      milliseconds(end.time_ns - begin.time_ns) / kSteady,
      milliseconds(end.compute.busy_ns - begin.compute.busy_ns) / kSteady,
      static_cast<double>(stats.bytes_in) / (kSteady * 1e9),
      static_cast<double>(stats.bytes_out) / (kSteady * 1e9),
      static_cast<double>(stats.faults) / kSteady,
      static_cast<double>(stats.evictions) / kSteady,
      static_cast<double>(stats.compactions) / kSteady,
      static_cast<double>(stats.prefetched_bytes) / (kSteady * 1e9),
      milliseconds(end.compute.stalled_ns - begin.compute.stalled_ns) / kSteady,
      static_cast<double>(stats.rerun_ops) / kSteady,
      last && last->plan ? last->plan->modelled.duration_ns / 1e6 : 0.0);
  return 0;
}

} // namespace
} // namespace chameleon::benchmarks

int main(int count, char** values) {
  chameleon::benchmarks::Arguments arguments;
  for (int i = 1; i + 1 < count; i += 2) {
    const std::string_view name = values[i];
    if (name == "--k") arguments.k = std::atof(values[i + 1]);
    if (name == "--policy") arguments.policy = values[i + 1];
    if (name == "--steps") arguments.steps = std::atoi(values[i + 1]);
    if (name == "--recompute") arguments.recompute = values[i + 1][0] == '1';
  }
  return chameleon::benchmarks::run(arguments);
}
