// Plans the step of a trace with re-runs and prints what the planner's model
// says: one JSON object, all figures modelled.
//
//   joint_trace [--k K] [--seconds S] [--tile N] [--progress]
//               [--equal | --noise SEED] [--thought F] [--slower F]
//               [--link IN,OUT,BOTH] < trace.jsonl
//
//   --k K         budget = the trace's peak / K (default 2)
//   --seconds S   how long to search, at most (default 60)
//   --tile N      N steps of the trace as one: how planning time grows
//   --progress    a line for each better plan
// Another machine:
//   --slower F    all ops take F times as long
//   --link I,O,B  GB/s in, out, both together
// What the planner is told wrong; the plan is then judged by what is true:
//   --equal       all ops take the same time
//   --noise SEED  op times are off by a lognormal factor (sigma 0.3)
//   --thought F   the link is thought F times as fast
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <iterator>
#include <numeric>
#include <random>
#include <string>
#include <string_view>

#include "memory/policy/plan/plan_model.h"
#include "memory/policy/recomputing/joint_planner.h"
#include "tests/benchmarks/policy/traced_step.h"

namespace chameleon::benchmarks {
namespace {

using Clock = std::chrono::steady_clock;
using memory::JointPlanner;
using memory::PlannerOptions;
using profiler::Cycle;

struct Arguments {
  double k = 2;
  double seconds = 60;
  int tiles = 1;
  bool progress = false;
  bool equal = false;
  int noise = 0;
  double thought = 1;
  double slower = 1;
  double in = 0;
  double out = 0;
  double both = 0;
};

double milliseconds(Clock::duration duration) {
  return std::chrono::duration<double, std::milli>(duration).count();
}

int fail(const std::string& message) {
  std::fprintf(stderr, "joint_trace: %s\n", message.c_str());
  return 1;
}

Cycle mistaken(const Cycle& cycle, const Arguments& arguments) {
  Cycle wrong = cycle;
  if (arguments.equal) {
    const std::int64_t sum = std::accumulate(
        cycle.duration_ns.begin(), cycle.duration_ns.end(), std::int64_t{0});
    std::fill(wrong.duration_ns.begin(), wrong.duration_ns.end(),
              sum / static_cast<std::int64_t>(cycle.ops()));
  }
  if (arguments.noise > 0) {
    std::mt19937_64 random(static_cast<std::uint64_t>(arguments.noise));
    std::normal_distribution<double> normal(0, 0.3);
    for (std::int64_t& ns : wrong.duration_ns) {
      ns = std::llround(static_cast<double>(ns) * std::exp(normal(random)));
    }
  }
  return wrong;
}

void search(JointPlanner& planner, const Arguments& arguments) {
  const Clock::time_point begin = Clock::now();
  double last = 0;
  for (bool more = true; more;) {
    const double spent = milliseconds(Clock::now() - begin);
    if (spent > arguments.seconds * 1e3) return;
    more = planner.tryNext();
    const double now = planner.searched_ns();
    if (arguments.progress && now != last) {
      std::printf("%8.0f ms %4u planned %4u skipped: %.2f\n", spent,
                  planner.planned(), planner.skipped(), now / 1e6);
    }
    last = now;
  }
}

// What was dropped by mistake, with swaps planned by what is true; and all of
// the plan, as it is.
void judge(const JointPlanner& planner, const memory::Plan& plan,
           const Cycle& cycle, const PlannerOptions& options) {
  const memory::ExtendedCycle extended = memory::extend_cycle(
      cycle, memory::RerunGraph(cycle), planner.bestDropped());
  auto again = memory::plan_cycle(extended.cycle, options);
  auto table = memory::make_use_table(extended.cycle, options);
  if (!again.ok() || !table.ok()) return;
  const memory::PlanPtr carried = planner.bestExtendedPlan();
  const memory::ModelledStep as_it_is = memory::model_plan(
      *table, carried == nullptr ? plan : *carried, options.link);
  std::printf("\"replanned_ms\":%.3f,\"mistaken_ms\":%.3f,",
              (*again)->modelled.duration_ns / 1e6, as_it_is.duration_ns / 1e6);
}

int run(const Arguments& arguments) {
  const std::string text{std::istreambuf_iterator<char>(std::cin), {}};
  runtime::Result<TracedStep> step = read_step(text);
  if (!step.ok()) return fail(step.error().message());
  Cycle cycle = tile(step->cycle, arguments.tiles);
  for (std::int64_t& ns : cycle.duration_ns) {
    ns = std::llround(static_cast<double>(ns) * arguments.slower);
  }
  PlannerOptions options;
  options.budget_bytes = budget_bytes(step->cycle, arguments.k);
  options.link = step->link;
  if (arguments.in > 0) {
    options.link = {arguments.in, arguments.out, arguments.both,
                    step->link.latency_ns};
  }
  PlannerOptions thought = options;
  thought.link = options.link.times(arguments.thought);
  const Cycle believed = mistaken(cycle, arguments);

  const Clock::time_point begin = Clock::now();
  auto swapping = memory::plan_cycle(believed, thought);
  const memory::PlanPtr swaps = swapping.ok() ? *swapping : nullptr;
  const Clock::time_point swapped = Clock::now();
  JointPlanner planner(believed, thought, swaps);
  (void)planner.tryNext();
  const Clock::time_point first = Clock::now();
  search(planner, arguments);
  const Clock::time_point done = Clock::now();
  const memory::PlanPtr plan = planner.best();
  if (plan == nullptr) return fail("no plan fits");
  std::printf("{\"k\":%g,\"ops\":%zu,", arguments.k, cycle.ops());
  judge(planner, *plan, cycle, options);
  std::printf(
      "\"compute_ms\":%.3f,\"swap_ms\":%.3f,\"joint_ms\":%.3f,"
      "\"rerun_ms\":%.3f,\"in_gb\":%.3f,\"out_gb\":%.3f,\"recorded\":%zu,"
      "\"planned\":%u,\"skipped\":%u,\"swap_time_ms\":%.1f,"
      "\"first_time_ms\":%.1f,\"search_time_ms\":%.0f}\n",
      (plan->modelled.compute_ns - planner.rerun_ns()) / 1e6,
      swaps == nullptr ? 0 : swaps->modelled.duration_ns / 1e6,
      plan->modelled.duration_ns / 1e6, planner.rerun_ns() / 1e6,
      static_cast<double>(plan->modelled.bytes_in) / 1e9,
      static_cast<double>(plan->modelled.bytes_out) / 1e9,
      plan->recorded.size(), planner.planned(), planner.skipped(),
      milliseconds(swapped - begin), milliseconds(first - swapped),
      milliseconds(done - first));
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
    } else if (name == "--equal") {
      arguments.equal = true;
    } else if (i + 1 == count) {
      return fail("unknown argument " + std::string(name));
    } else if (name == "--link") {
      if (std::sscanf(values[++i], "%lf,%lf,%lf", &arguments.in, &arguments.out,
                      &arguments.both) != 3) {
        return fail("--link takes IN,OUT,BOTH in GB/s");
      }
    } else {
      const double number = std::atof(values[++i]);
      if (!(number > 0)) return fail(std::string(name) + " must be > 0");
      if (name == "--k") {
        arguments.k = number;
      } else if (name == "--seconds") {
        arguments.seconds = number;
      } else if (name == "--tile") {
        arguments.tiles = static_cast<int>(number);
      } else if (name == "--noise") {
        arguments.noise = static_cast<int>(number);
      } else if (name == "--thought") {
        arguments.thought = number;
      } else if (name == "--slower") {
        arguments.slower = number;
      } else {
        return fail("unknown argument " + std::string(name));
      }
    }
  }
  return chameleon::benchmarks::run(arguments);
}
