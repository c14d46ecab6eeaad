#include "memory/policy/joint_planner.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "memory/policy/plan_model.h"

namespace chameleon::memory {
namespace {

constexpr std::size_t kGroupSizes[] = {2, 1, 4};
constexpr std::size_t kTop = 8;
constexpr std::uint32_t kMovesInVain = 1000;
// What the search tries of the swap planner's portfolio, but for a new best.
constexpr std::size_t kSwapCandidates = 2;

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
      link_ns_per_byte_(1 / options.link.in_bytes_per_ns +
                        1 / options.link.out_bytes_per_ns),
      portfolio_(options.portfolio),
      best_dropped_(cycle.values()),
      best_(std::move(swapping)) {
  if (best_ == nullptr) return;
  seen_.insert(hash_of(std::vector<std::uint8_t>(cycle.values())));
  keep(best_->modelled.duration_ns, uniform(0, 1));
  stale_ = false;
}

double JointPlanner::price(int step) const {
  return link_ns_per_byte_ * std::pow(10, step / 6.0);
}

Assignment JointPlanner::uniform(double price,
                                 std::size_t segments_per_group) const {
  Assignment assignment;
  std::size_t in_group = 0;
  for (std::size_t i = 0; i < choices_.segments(); ++i) {
    if (choices_.beginsPass(i) || in_group == segments_per_group) in_group = 0;
    assignment.price_ns_per_byte.push_back(price);
    assignment.joins.push_back(in_group++ > 0 ? 1 : 0);
  }
  return assignment;
}

bool JointPlanner::tryNext() {
  if (graph_.nodes.empty()) return false;
  if (!top_.empty() &&
      !ModelledStep{top_.front().duration_ns, compute_ns_}.waits()) {
    return false;
  }
  const std::optional<Assignment> assignment = next();
  if (!assignment) return false;
  tryOne(*assignment);
  return true;
}

std::optional<Assignment> JointPlanner::next() {
  while (!hints_.empty()) {
    Assignment hint = std::move(hints_.back());
    hints_.pop_back();
    if (hint.joins.size() == choices_.segments()) return hint;
  }
  if (auto assignment = nextUniform()) return assignment;
  if (auto assignment = nextSplit()) return assignment;
  if (top_.empty() || moves_ > kMovesInVain) return std::nullopt;
  ++moves_;
  return nextMove();
}

// The price of moving first, then ever lower ones, then higher ones.
std::optional<Assignment> JointPlanner::nextUniform() {
  const std::uint32_t at = uniform_at_++;
  if (at >= kSteps * std::size(kGroupSizes)) return std::nullopt;
  const int down = static_cast<int>(at) % kSteps;
  const int step = down <= -kLowestStep ? -down : down + kLowestStep;
  return uniform(price(step), kGroupSizes[at / kSteps]);
}

std::optional<Assignment> JointPlanner::nextSplit() {
  if (!splits_) listSplits();
  if (splits_->empty()) return std::nullopt;
  Assignment assignment = std::move(splits_->back());
  splits_->pop_back();
  return assignment;
}

// They buy 2 % to 9 % (by the seed of the search) on ResNet-50 at a quarter of
// its peak over a link of 22 GB/s, and nothing elsewhere; all modelled.
void JointPlanner::listSplits() {
  splits_.emplace();
  std::vector<Assignment> parts{uniform(0, 1)};
  for (const Tried& tried : top_) parts.push_back(tried.assignment);
  const std::size_t count = choices_.segments();
  const auto mix = [&](const Assignment& a, const Assignment& b, auto take_b) {
    Assignment mixed = a;
    bool before = false;
    for (std::size_t i = 0; i < count; ++i) {
      const bool second = take_b(i);
      if (second) {
        mixed.price_ns_per_byte[i] = b.price_ns_per_byte[i];
        mixed.joins[i] = b.joins[i];
      }
      if (second != before) mixed.joins[i] = 0;
      before = second;
    }
    splits_->push_back(std::move(mixed));
  };
  for (const Assignment& a : parts) {
    for (const Assignment& b : parts) {
      if (a == b) continue;
      for (const std::size_t eighths : {1, 2, 4, 6, 7}) {
        mix(a, b, [&](std::size_t i) { return 8 * i >= eighths * count; });
      }
      for (const std::size_t every : {2, 3}) {
        mix(a, b, [&](std::size_t i) { return i / 2 % every == 0; });
      }
    }
  }
  std::reverse(splits_->begin(), splits_->end());
}

std::uint32_t JointPlanner::random(std::uint32_t below) {
  random_ = random_ * 6364136223846793005ULL + 1442695040888963407ULL;
  return static_cast<std::uint32_t>((random_ >> 33) % below);
}

Assignment JointPlanner::nextMove() {
  const std::size_t which =
      random(2) == 0 ? random(static_cast<std::uint32_t>(top_.size())) : 0;
  Assignment moved = top_[which].assignment;
  const auto count = static_cast<std::uint32_t>(choices_.segments());
  const std::uint32_t first = random(count);
  const std::uint32_t length =
      1 + (random(2) == 0 ? random(4) : random(count - first));
  const std::uint32_t end = std::min(first + length, count);
  switch (random(4)) {
    case 0: { // a range to a neighbouring price, or mostly to a slope of them:
              // what is kept of an early segment is in the way for longer
      const double factor =
          std::pow(10, (1 + random(4)) * (random(2) == 0 ? -1 : 1) / 6.0);
      const bool slopes = end - first > 1 && random(4) != 0;
      for (std::uint32_t i = first; i < end; ++i) {
        const double place = (i - first + 0.5) / (end - first); // 0 to 1
        double& price_here = moved.price_ns_per_byte[i];
        price_here =
            price_here > 0
                ? std::clamp(
                      price_here * std::pow(factor, slopes ? 2 * place - 1 : 1),
                      price(kLowestStep), price(kHighestStep))
                : price(kLowestStep + 5);
      }
      break;
    }
    case 1: { // a range to one price
      const auto step = static_cast<int>(random(kSteps + 1)) + kLowestStep - 1;
      for (std::uint32_t i = first; i < end; ++i) {
        moved.price_ns_per_byte[i] = step < kLowestStep ? 0 : price(step);
      }
      break;
    }
    case 2: { // one or two borders
      for (std::uint32_t n = 1 + random(2); n > 0; --n) {
        const std::uint32_t at = random(count);
        if (!choices_.beginsPass(at)) moved.joins[at] ^= 1;
      }
      break;
    }
    default: {
      const std::uint32_t other = random(count);
      std::swap(moved.price_ns_per_byte[first], moved.price_ns_per_byte[other]);
      break;
    }
  }
  return moved;
}

void JointPlanner::tryOne(const Assignment& assignment) {
  const std::vector<std::uint8_t> dropped = choices_.choose(assignment);
  if (!seen_.insert(hash_of(dropped)).second) return;
  const ExtendedCycle extended = extend_cycle(cycle_, graph_, dropped);
  // It takes at least its compute time.
  if (!top_.empty() && top_.size() >= kTop &&
      sum_of(extended.cycle.duration_ns) >= top_.back().duration_ns) {
    ++skipped_;
    return;
  }
  ++planned_;
  const double duration_ns = model(extended);
  if (duration_ns < std::numeric_limits<double>::infinity()) {
    keep(duration_ns, assignment);
  }
}

double JointPlanner::model(const ExtendedCycle& extended) {
  constexpr double kNever = std::numeric_limits<double>::infinity();
  auto table = make_use_table(extended.cycle, options_);
  if (!table.ok()) return kNever;
  const double limit_ns = top_.empty() ? kNever : top_.front().duration_ns;
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

void JointPlanner::keep(double duration_ns, const Assignment& assignment) {
  if (top_.empty() || duration_ns < top_.front().duration_ns) {
    stale_ = true;
    moves_ = 0;
  }
  const auto at = std::find_if(
      top_.begin(), top_.end(),
      [&](const Tried& other) { return duration_ns < other.duration_ns; });
  top_.insert(at, {duration_ns, assignment});
  if (top_.size() > kTop) top_.pop_back();
}

PlanPtr JointPlanner::best() {
  if (!stale_) return best_;
  stale_ = false;
  std::vector<std::uint8_t> dropped = choices_.choose(top_.front().assignment);
  ExtendedCycle extended = extend_cycle(cycle_, graph_, dropped);
  auto planned = plan_cycle(extended.cycle, options_);
  if (!planned.ok()) return best_;
  PlanPtr plan = std::move(*planned);
  if (best_ == nullptr ||
      plan->modelled.duration_ns < best_->modelled.duration_ns) {
    best_ = std::make_shared<const Plan>(program_plan(extended, *plan));
    best_assignment_ = top_.front().assignment;
    best_dropped_ = std::move(dropped);
    best_extended_ = std::move(plan);
    best_cycle_ = std::move(extended);
  }
  return best_;
}

} // namespace chameleon::memory
