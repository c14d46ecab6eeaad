// Plans the step of a trace with re-runs and prints what the planner's model
// says: one JSON object, all figures modelled.
//
//   joint_trace [--k K] [--seconds S] [--tile N] [--progress] [--gpu NAME]
//               < trace.jsonl
//
//   --k K         budget = the trace's peak / K (default 2)
//   --seconds S   how long to search, at most (default 10)
//   --tile N      N steps of the trace as one: how planning time grows
//   --gpu NAME    h200 (default) or rtx4090: a slower link and slower ops
//   --progress    a line for each better plan
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <iterator>
#include <string>
#include <string_view>

#include "memory/policy/joint_planner.h"
#include "tests/benchmarks/policy/trace_reader.h"

namespace chameleon::benchmarks {
namespace {

using Clock = std::chrono::steady_clock;

struct Arguments {
  double k = 2;
  double seconds = 10;
  int tiles = 1;
  bool progress = false;
};

double milliseconds(Clock::duration duration) {
  return std::chrono::duration<double, std::milli>(duration).count();
}

int fail(const std::string& message) {
  std::fprintf(stderr, "joint_trace: %s\n", message.c_str());
  return 1;
}

int run(const Arguments& arguments) {
  const std::string text{std::istreambuf_iterator<char>(std::cin), {}};
  runtime::Result<Trace> read = read_trace(text);
  if (!read.ok()) return fail(read.error().message());
  const profiler::Cycle cycle = tile(read->cycle, arguments.tiles);
  memory::PlannerOptions options;
  options.budget_bytes =
      static_cast<std::uint64_t>(read->peak_bytes / arguments.k);
  options.link = {read->bytes_in_per_s / 1e9, read->bytes_out_per_s / 1e9,
                  read->bytes_both_per_s / 1e9, read->copy_latency_ns};

  const Clock::time_point begin = Clock::now();
  auto swapping = memory::plan_cycle(cycle, options);
  const memory::PlanPtr swaps = swapping.ok() ? *swapping : nullptr;
  const Clock::time_point swapped = Clock::now();
  memory::JointPlanner planner(cycle, options, swaps);
  const Clock::time_point made = Clock::now();
  double first_ms = 0;
  double last = 0;
  bool more = true;
  while (more && milliseconds(Clock::now() - made) < arguments.seconds * 1e3) {
    more = planner.tryNext();
    if (first_ms == 0) first_ms = milliseconds(Clock::now() - made);
    if (arguments.progress) {
      const double now = planner.searched_ns();
      if (now != last) {
        std::printf("%8.0f ms %4u planned %4u skipped: %.2f\n",
                    milliseconds(Clock::now() - made), planner.planned(),
                    planner.skipped(), now / 1e6);
      }
      last = now;
    }
  }
  const double search_ms = milliseconds(Clock::now() - made);
  const memory::PlanPtr plan = planner.best();
  if (plan == nullptr) return fail("no plan fits");
  std::printf(
      "{\"k\":%g,\"ops\":%zu,\"compute_ms\":%.3f,\"swap_ms\":%.3f,"
      "\"joint_ms\":%.3f,\"rerun_ms\":%.3f,\"in_gb\":%.3f,\"out_gb\":%.3f,"
      "\"recorded\":%zu,\"planned\":%u,\"skipped\":%u,\"swap_time_ms\":%.1f,"
      "\"setup_time_ms\":%.1f,\"first_time_ms\":%.1f,"
      "\"search_time_ms\":%.0f}\n",
      arguments.k, cycle.ops(),
      (plan->modelled.compute_ns - planner.rerun_ns()) / 1e6,
      swaps == nullptr ? 0 : swaps->modelled.duration_ns / 1e6,
      plan->modelled.duration_ns / 1e6, planner.rerun_ns() / 1e6,
      static_cast<double>(plan->modelled.bytes_in) / 1e9,
      static_cast<double>(plan->modelled.bytes_out) / 1e9,
      plan->recorded.size(), planner.planned(), planner.skipped(),
      milliseconds(swapped - begin), milliseconds(made - swapped), first_ms,
      search_ms);
  return 0;
}

} // namespace
} // namespace chameleon::benchmarks

int main(int count, char** values) {
  using chameleon::benchmarks::fail;
  chameleon::benchmarks::Arguments arguments;
  for (int i = 1; i < count; ++i) {
    const std::string_view name = values[i];
    if (name == "--progress") {
      arguments.progress = true;
    } else if ((name == "--k" || name == "--tile" || name == "--seconds") &&
               i + 1 < count) {
      const double number = std::atof(values[++i]);
      if (name != "--seconds" && !(number >= 1)) {
        return fail(std::string(name) + " must be >= 1");
      }
      if (name == "--k") arguments.k = number;
      if (name == "--seconds") arguments.seconds = number;
      if (name == "--tile") arguments.tiles = static_cast<int>(number);
    } else {
      return fail("unknown argument " + std::string(name));
    }
  }
  return chameleon::benchmarks::run(arguments);
}
