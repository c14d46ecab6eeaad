// Plans the step of a trace and prints what the planner's model says: one JSON
// object a line, all figures modelled.
//
//   plan_trace [--k K] [--all] [--candidates] [--tile N] < trace.jsonl
//
//   --k K         budget = the trace's peak / K (default 2)
//   --all         try the whole portfolio, not its usual few
//   --candidates  a line for each candidate first
//   --tile N      N steps of the trace as one: how planning time grows
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "memory/policy/plan/plan_model.h"
#include "memory/policy/swapping/planner.h"
#include "tests/benchmarks/policy/traced_step.h"
#include "tests/cpp/memory/policy/demand_model.h"

namespace chameleon::benchmarks {
namespace {

using Clock = std::chrono::steady_clock;

struct Arguments {
  double k = 2;
  int tiles = 1;
  bool all = false;
  bool candidates = false;
};

double milliseconds(Clock::duration duration) {
  return std::chrono::duration<double, std::milli>(duration).count();
}

void print(std::string_view what, const memory::ModelledStep& step) {
  std::printf("\"%.*s_ms\":%.3f,\"%.*s_in_gb\":%.3f,\"%.*s_out_gb\":%.3f,",
              static_cast<int>(what.size()), what.data(),
              step.duration_ns / 1e6, static_cast<int>(what.size()),
              what.data(), static_cast<double>(step.bytes_in) / 1e9,
              static_cast<int>(what.size()), what.data(),
              static_cast<double>(step.bytes_out) / 1e9);
}

void print(const memory::Candidate& candidate) {
  const memory::GapParameters& gaps = candidate.parameters.gaps;
  std::printf("{");
  print("plan", candidate.modelled);
  std::printf(
      "\"dirty_price\":%g,\"planning_margin\":%g,\"window\":%g,\"refill\":%s,"
      "\"spread\":%s,\"lead\":%g}\n",
      gaps.dirty_price, gaps.planning_margin, gaps.window,
      gaps.refill ? "true" : "false", gaps.spread ? "true" : "false",
      candidate.parameters.lead);
}

int fail(const std::string& message) {
  std::fprintf(stderr, "plan_trace: %s\n", message.c_str());
  return 1;
}

int run(const Arguments& arguments) {
  const std::string text{std::istreambuf_iterator<char>(std::cin), {}};
  runtime::Result<TracedStep> step = read_step(text);
  if (!step.ok()) return fail(step.error().message());
  const profiler::Cycle cycle = tile(step->cycle, arguments.tiles);
  memory::PlannerOptions options;
  options.budget_bytes = budget_bytes(step->cycle, arguments.k);
  options.link = step->link;
  options.portfolio = memory::plan_portfolio(arguments.all);

  const Clock::time_point begin = Clock::now();
  runtime::Result<memory::UseTable> made =
      memory::make_use_table(cycle, options);
  if (!made.ok()) return fail(made.error().message());
  const Clock::time_point tabled = Clock::now();
  const memory::Plan once =
      memory::plan_once(*made, options, options.portfolio.front());
  const Clock::time_point planned = Clock::now();
  memory::model_plan(*made, once, options.link);
  const Clock::time_point scored = Clock::now();
  std::vector<memory::Candidate> tried;
  const memory::PlanPtr plan =
      memory::plan_cycle(cycle, options, &tried).value();
  const Clock::time_point done = Clock::now();

  if (arguments.candidates) {
    for (const memory::Candidate& candidate : tried) print(candidate);
  }
  std::printf("{\"k\":%g,\"ops\":%zu,\"uses\":%zu,\"compute_ms\":%.3f,",
              arguments.k, cycle.ops(), made->uses(),
              plan->modelled.compute_ns / 1e6);
  print("plan", plan->modelled);
  const auto budget = static_cast<std::int64_t>(options.budget_bytes);
  print("lru",
        memory::model_demand_paging(*made, memory::Victims::kLeastRecentlyUsed,
                                    budget, options.link));
  print("min",
        memory::model_demand_paging(*made, memory::Victims::kFarthestNextUse,
                                    budget, options.link));
  print("first", tried.front().modelled);
  std::printf(
      "\"stall_ms\":%.3f,\"copies\":%zu,\"actions\":%zu,\"candidates\":%zu,"
      "\"table_time_ms\":%.2f,\"candidate_time_ms\":%.2f,"
      "\"score_time_ms\":%.2f,\"all_time_ms\":%.1f}\n",
      plan->modelled.stall_ns() / 1e6,
      static_cast<std::size_t>(plan->modelled.copies), plan->actions.size(),
      tried.size(), milliseconds(tabled - begin),
      milliseconds(planned - tabled), milliseconds(scored - planned),
      milliseconds(done - scored));
  return 0;
}

} // namespace
} // namespace chameleon::benchmarks

int main(int count, char** values) {
  using chameleon::benchmarks::fail;
  chameleon::benchmarks::Arguments arguments;
  for (int i = 1; i < count; ++i) {
    const std::string_view name = values[i];
    if (name == "--all") {
      arguments.all = true;
    } else if (name == "--candidates") {
      arguments.candidates = true;
    } else if ((name == "--k" || name == "--tile") && i + 1 < count) {
      const double number = std::atof(values[++i]);
      if (!(number >= 1)) return fail(std::string(name) + " must be >= 1");
      if (name == "--k") arguments.k = number;
      if (name == "--tile") arguments.tiles = static_cast<int>(number);
    } else {
      return fail("unknown argument " + std::string(name));
    }
  }
  return chameleon::benchmarks::run(arguments);
}
