#include "memory/policy/recomputing/joint_planner.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "memory/policy/plan/plan_model.h"

namespace chameleon::memory {
namespace {

// What the search tries of the swap planner's portfolio, but for a new best.
constexpr std::size_t kSwapCandidates = 2;
constexpr double kNever = std::numeric_limits<double>::infinity();

std::uint64_t hash_of(const std::vector<std::uint8_t>& dropped) {
  std::uint64_t hash = 1469598103934665603ULL; // FNV-1a
  for (const std::uint8_t one : dropped) hash = (hash ^ one) * 1099511628211ULL;
  return hash;
}

double sum_of(const std::vector<std::int64_t>& durations) {
  return std::accumulate(durations.begin(), durations.end(), 0.0);
}

} // namespace

JointPlanner::JointPlanner(const profiler::Cycle& cycle,
                           const PlannerOptions& options, PlanPtr swapping)
    : cycle_(cycle),
      options_(options),
      graph_(cycle),
      choices_(cycle, graph_),
      compute_ns_(sum_of(cycle.duration_ns)),
      search_(choices_, 1 / options.link.in_bytes_per_ns +
                            1 / options.link.out_bytes_per_ns),
      portfolio_(options.portfolio) {
  best_.dropped.resize(cycle.values());
  if (swapping == nullptr) return;
  tried_.insert(hash_of(best_.dropped));
  search_.tookTime(swapping->modelled.duration_ns, search_.keepAll());
  best_.plan = std::move(swapping);
}

bool JointPlanner::tryNext() {
  if (graph_.nodes.empty()) return false;
  if (search_.hasBest() &&
      !ModelledStep{search_.best_ns(), compute_ns_}.waits()) {
    return false;
  }
  const std::optional<Assignment> assignment = search_.next();
  if (!assignment) return false;
  tryOne(*assignment);
  return true;
}

void JointPlanner::tryOne(const Assignment& assignment) {
  const std::vector<std::uint8_t> dropped = choices_.choose(assignment);
  if (!tried_.insert(hash_of(dropped)).second) return;
  const ExtendedCycle extended = extend_cycle(cycle_, graph_, dropped);
  // It takes at least its compute time.
  if (sum_of(extended.cycle.duration_ns) >= search_.limit_ns()) {
    ++skipped_;
    return;
  }
  ++planned_;
  const double duration_ns = model(extended);
  if (duration_ns < kNever && search_.tookTime(duration_ns, assignment)) {
    is_stale_ = true;
  }
}

double JointPlanner::model(const ExtendedCycle& extended) {
  auto table = make_use_table(extended.cycle, options_);
  if (!table.ok()) return kNever;
  const double limit_ns = search_.hasBest() ? search_.best_ns() : kNever;
  double best_ns = kNever;
  std::vector<std::pair<double, PlanParameters>> tried;
  for (const PlanParameters& parameters : portfolio_) {
    if (tried.size() >= kSwapCandidates && best_ns >= limit_ns) break;
    const Plan plan = plan_once(*table, options_, parameters);
    const double duration_ns =
        model_plan(*table, plan, options_.link, 1, 3).duration_ns;
    best_ns = std::min(best_ns, duration_ns);
    tried.emplace_back(duration_ns, parameters);
    if (plan.actions.empty()) break;
  }
  if (tried.size() == portfolio_.size()) {
    std::ranges::sort(tried, {}, [](const auto& one) { return one.first; });
    std::ranges::transform(tried, portfolio_.begin(),
                           [](const auto& one) { return one.second; });
  }
  return best_ns;
}

PlanPtr JointPlanner::best() {
  if (!is_stale_) return best_.plan;
  is_stale_ = false;
  Best made;
  made.assignment = search_.best();
  made.dropped = choices_.choose(made.assignment);
  made.cycle = extend_cycle(cycle_, graph_, made.dropped);
  auto planned = plan_cycle(made.cycle->cycle, options_);
  if (!planned.ok()) return best_.plan;
  made.extended = std::move(*planned);
  if (best_.plan == nullptr ||
      made.extended->modelled.duration_ns < best_.plan->modelled.duration_ns) {
    made.plan =
        std::make_shared<const Plan>(program_plan(*made.cycle, *made.extended));
    best_ = std::move(made);
  }
  return best_.plan;
}

} // namespace chameleon::memory
