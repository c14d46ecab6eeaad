#include "memory/policy/planning_thread.h"

#include <algorithm>
#include <utility>

#include "backend/runtime/nvtx_range.h"
#include "memory/policy/planner.h"

namespace chameleon::memory {

using profiler::kNone;

namespace {

// What the plan must leave of the budget: holes between blocks, and what is
// resident without being part of the cycle.
constexpr std::uint64_t kSlackShare = 200;
// More, if that takes no longer: a plan that hardly waits for the link has time
// to move more. The first of these that does is taken.
constexpr std::uint64_t kFreeSlackShares[] = {8, 16, 32, 64};
constexpr double kHardlyWaits = 1.05;
constexpr double kFree = 1.002;
// The same where ops may be run again: bytes that are made again cost little,
// and moves for fragments' sake cost more (README.md). So such a plan may also
// take a little longer, by the model, than one that only swaps and leaves less.
constexpr std::uint64_t kRerunSlackShare = 16;
constexpr double kSlackWorth = 1.01;
// But where such a plan waits for the link that long, moves take none of its
// time, and room is worth more.
constexpr std::uint64_t kLinkBoundSlackShare = 32;
constexpr double kLinkBound = 1.1;

} // namespace

struct PlanningThread::Search {
  profiler::PathId path = 0;
  std::uint64_t budget_bytes = 0;
  PlannerOptions options;
  profiler::CycleMap map;
  PlanPtr swapping; // null: it cannot be planned
  std::optional<CarriedBytes> carried;
  std::optional<JointPlanner> planner;
  double published_ns = 0;
  std::uint64_t slack_share = kSlackShare;

  // What plans leave of the budget from now on.
  void leave(std::uint64_t share) {
    slack_share = share;
    options.budget_bytes = budget_bytes - budget_bytes / share;
  }
  void leaveMore();
  // False: they cannot be planned.
  bool searchReruns(std::uint64_t share);
  bool leaveLess();
  // False: there is nothing more to try.
  bool tryNext() {
    if (!planner) return false;
    if (planner->planned() < kMaxTries && planner->tryNext()) return true;
    return leaveLess();
  }
  // A plan is made anew for a hundredth less time; at the end for any less;
  // and not before all prices were tried once.
  bool isWorthIt(bool more) const {
    const double now_ns = planner->searched_ns();
    if (more && planner->isEarly()) return false;
    return now_ns < (more ? 0.99 : 1) * published_ns;
  }
  PathPlanPtr plan();
  void nameValues(PathPlan& plan) const;
  void findHeld(PathPlan& plan) const;
};

PlanningThread::PlanningThread(profiler::Profiler& profiler,
                               const profiler::Durations& durations,
                               const LinkEstimate& link,
                               std::function<void()> published, bool at_once,
                               bool recompute)
    : builder_(profiler, durations),
      link_(link),
      published_(std::move(published)),
      at_once_(at_once),
      recompute_(recompute) {}

PlanningThread::~PlanningThread() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

std::optional<PathPlanPtr> PlanningThread::plan(profiler::PathId path,
                                                std::uint64_t budget_bytes) {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return std::nullopt;
  return findOrOrder(path, budget_bytes);
}

void PlanningThread::planAndWait(profiler::PathId path,
                                 std::uint64_t budget_bytes) {
  std::unique_lock lock(mutex_);
  (void)findOrOrder(path, budget_bytes);
  changed_.wait(
      lock, [&] { return orders_.empty() && searches_.empty() && !working_; });
}

PathPlanPtr PlanningThread::findOrOrder(profiler::PathId path,
                                        std::uint64_t budget_bytes) {
  for (profiler::PathTimes& times : times_) builder_.setTimes(std::move(times));
  times_.clear();
  const auto found =
      std::find_if(plans_.begin(), plans_.end(), [&](const PathPlanPtr& plan) {
        return plan->path == path && plan->budget_bytes == budget_bytes;
      });
  if (found == plans_.end()) return order(path, budget_bytes);
  plans_.splice(plans_.begin(), plans_, found);
  PathPlanPtr plan = plans_.front();
  if (differs_much(plan->link, link_.now())) order(path, budget_bytes);
  return plan;
}

// The last one ordered is the first one served. Null: it will take a while.
PathPlanPtr PlanningThread::order(profiler::PathId path,
                                  std::uint64_t budget_bytes) {
  if (working_ == std::pair(path, budget_bytes)) return nullptr;
  const auto ordered =
      std::find_if(orders_.begin(), orders_.end(), [&](const Order& other) {
        return other.path == path && other.budget_bytes == budget_bytes;
      });
  if (ordered != orders_.end()) {
    std::rotate(ordered, ordered + 1, orders_.end());
    return nullptr;
  }
  std::optional<profiler::PathSnapshot> snapshot = builder_.take(path);
  if (!snapshot) return nullptr;
  Order order{path, budget_bytes, link_.now(), std::move(*snapshot)};
  if (at_once_) {
    const SearchPtr search = begin(order, hints(path));
    builder_.setTimes(profiler::times_of(search->map));
    while (search->tryNext()) {
    }
    keep(search->plan());
    return plans_.front();
  }
  orders_.push_back(std::move(order));
  if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
  changed_.notify_all();
  return nullptr;
}

// Small values move in small budgets, too.
std::uint64_t PlanningThread::keptBytes(std::uint64_t budget_bytes) {
  return std::min(PlannerOptions::kKeepBytes, budget_bytes >> 12);
}

std::uint64_t PlanningThread::plansMade() const {
  const std::lock_guard lock(mutex_);
  return plans_made_;
}

void PlanningThread::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(
        lock, [&] { return stop_ || !orders_.empty() || !searches_.empty(); });
    if (stop_) return;
    if (!orders_.empty()) {
      serveOrder(lock);
    } else {
      goOn(lock);
    }
    changed_.notify_all();
  }
}

void PlanningThread::serveOrder(std::unique_lock<Mutex>& lock) {
  // For NVIDIA's tools alone: torch's profilers stop without asking whether a
  // range of this thread is open.
  const runtime::NvtxRange range("plan");
  const Order order = std::move(orders_.back());
  orders_.pop_back();
  working_ = std::pair(order.path, order.budget_bytes);
  const std::vector<Assignment> known = hints(order.path);
  lock.unlock();
  SearchPtr search = begin(order, known);
  PathPlanPtr made = search->plan();
  profiler::PathTimes times = profiler::times_of(search->map);
  lock.lock();
  working_.reset();
  std::erase_if(searches_, [&](const SearchPtr& other) {
    return other->path == made->path &&
           other->budget_bytes == made->budget_bytes;
  });
  keep(std::move(made));
  times_.push_back(std::move(times));
  if (search->planner) searches_.push_back(std::move(search));
  if (searches_.size() > kMaxSearches) searches_.erase(searches_.begin());
  lock.unlock();
  published_();
  lock.lock();
}

void PlanningThread::goOn(std::unique_lock<Mutex>& lock) {
  const runtime::NvtxRange range("plan");
  SearchPtr search = std::move(searches_.back());
  searches_.pop_back();
  working_ = std::pair(search->path, search->budget_bytes);
  lock.unlock();
  const bool more = search->tryNext();
  PathPlanPtr better;
  if (search->isWorthIt(more)) better = search->plan();
  lock.lock();
  working_.reset();
  const bool is_better = better != nullptr;
  if (is_better) keep(std::move(better));
  if (more) searches_.push_back(std::move(search));
  if (!is_better) return;
  lock.unlock();
  published_();
  lock.lock();
}

void PlanningThread::keep(PathPlanPtr plan) {
  ++plans_made_;
  plans_.remove_if([&](const PathPlanPtr& old) {
    return old->path == plan->path && old->budget_bytes == plan->budget_bytes;
  });
  plans_.push_front(std::move(plan));
  if (plans_.size() > kMaxPlans) plans_.pop_back();
}

std::vector<Assignment> PlanningThread::hints(profiler::PathId path) const {
  std::vector<Assignment> found;
  for (const PathPlanPtr& plan : plans_) {
    if (plan->path != path || plan->assignment.joins.empty()) continue;
    found.push_back(plan->assignment);
  }
  return found;
}

PlanningThread::SearchPtr PlanningThread::begin(
    const Order& order, const std::vector<Assignment>& hints) const {
  auto search = std::make_unique<Search>();
  search->path = order.path;
  search->budget_bytes = order.budget_bytes;
  search->leave(kSlackShare);
  search->options.link = order.link;
  search->options.keep_bytes = keptBytes(order.budget_bytes);
  search->map = profiler::CycleBuilder::cycle(order.snapshot);
  const profiler::Cycle& cycle = search->map.cycle;
  runtime::Result<PlanPtr> swapping = plan_cycle(cycle, search->options);
  if (!swapping.ok()) return search;
  search->swapping = std::move(*swapping);
  search->leaveMore();
  search->carried.emplace(cycle);
  if (!recompute_ || search->swapping->actions.empty()) return search;
  search->published_ns = kSlackWorth * search->swapping->modelled.duration_ns;
  if (!search->searchReruns(kRerunSlackShare)) return search;
  // What was best under another budget or link is no worse than swaps alone.
  for (const Assignment& hint : hints) search->planner->alsoTry(hint);
  for (std::size_t i = 0; i < hints.size(); ++i) search->tryNext();
  return search;
}

void PlanningThread::Search::leaveMore() {
  const ModelledStep& tight = swapping->modelled;
  if (swapping->actions.empty() ||
      tight.duration_ns > kHardlyWaits * tight.compute_ns) {
    return;
  }
  for (const std::uint64_t share : kFreeSlackShares) {
    leave(share);
    runtime::Result<PlanPtr> roomy = plan_cycle(map.cycle, options);
    if (roomy.ok() &&
        (*roomy)->modelled.duration_ns < kFree * tight.duration_ns) {
      swapping = std::move(*roomy);
      return;
    }
  }
}

bool PlanningThread::Search::searchReruns(std::uint64_t share) {
  leave(share);
  runtime::Result<PlanPtr> roomy = plan_cycle(map.cycle, options);
  if (!roomy.ok()) return false;
  planner.emplace(map.cycle, options, std::move(*roomy));
  return true;
}

// The search begins again with what was best. False: it had better not.
bool PlanningThread::Search::leaveLess() {
  if (slack_share == kLinkBoundSlackShare) return false;
  const PlanPtr best = planner->best();
  const ModelledStep& modelled = best->modelled;
  if (best->recorded.empty() ||
      modelled.duration_ns < kLinkBound * modelled.compute_ns) {
    return false;
  }
  Assignment found = planner->bestAssignment();
  if (!searchReruns(kLinkBoundSlackShare)) return false;
  planner->alsoTry(std::move(found));
  return planner->tryNext();
}

PathPlanPtr PlanningThread::Search::plan() {
  auto made = std::make_shared<PathPlan>();
  made->path = path;
  made->budget_bytes = budget_bytes;
  made->link = options.link;
  if (swapping == nullptr) return made;
  PlanPtr chosen = swapping;
  if (planner) {
    const PlanPtr best = planner->best();
    // Where nothing is dropped the plan is the one without re-runs.
    if (!best->recorded.empty() &&
        best->modelled.duration_ns <
            kSlackWorth * swapping->modelled.duration_ns) {
      chosen = best;
      made->assignment = planner->bestAssignment();
      published_ns = planner->searched_ns();
    }
  }
  auto plan = std::make_shared<Plan>(*chosen);
  plan->shares = carried->under(*plan);
  made->plan = std::move(plan);
  nameValues(*made);
  findHeld(*made);
  return made;
}

void PlanningThread::Search::nameValues(PathPlan& plan) const {
  plan.names.resize(map.cycle.values());
  for (std::uint32_t v = 0; v < map.value_of.size(); ++v) {
    if (map.value_of[v] == kNone) continue;
    PathPlan::Names& names = plan.names[map.value_of[v]];
    (names.first == kNone ? names.first : names.second) = v;
  }
}

// A transient is found up to its last use; a copy after its death is meant for
// what ops that run again still need. (What is dead and can be made again drops
// its bytes without being told.)
void PlanningThread::Search::findHeld(PathPlan& plan) const {
  if (plan.plan->recorded.empty()) return;
  const profiler::Cycle& cycle = map.cycle;
  std::vector<std::uint32_t> created(cycle.values(), kNone);
  std::vector<std::uint32_t> used(cycle.values(), kNone);
  std::vector<std::uint32_t> freed(cycle.values(), kNone);
  for (std::uint32_t op = 0; op < cycle.ops(); ++op) {
    for (const profiler::Operand operand : cycle.operandsOf(op)) {
      if (operand.creates()) created[operand.value()] = op;
      used[operand.value()] = op;
    }
    for (const ValueIndex value : cycle.freedAfter(op)) freed[value] = op;
  }
  std::vector<std::uint8_t> is_held(cycle.values());
  for (std::uint32_t op = 0; op < cycle.ops(); ++op) {
    for (const Action action : plan.plan->actionsBefore(op)) {
      const ValueIndex value = action.value();
      if (action.kind() == Action::Kind::kDrop) continue;
      if (freed[value] == kNone || created[value] == kNone ||
          created[value] >= used[value] || freed[value] < created[value] ||
          op <= freed[value] || is_held[value] != 0) {
        continue;
      }
      is_held[value] = 1;
      plan.held.push_back({used[value], value});
    }
  }
  std::sort(plan.held.begin(), plan.held.end(),
            [](const auto& a, const auto& b) { return a.op < b.op; });
}

std::size_t PathPlan::memoryBytes() const noexcept {
  std::size_t bytes = sizeof(PathPlan) + names.capacity() * sizeof(Names) +
                      held.capacity() * sizeof(Held);
  if (plan != nullptr) {
    bytes += sizeof(Plan) + plan->actions.capacity() * sizeof(Action) +
             (plan->action_end.capacity() + plan->recorded.capacity()) *
                 sizeof(std::uint32_t);
  }
  return bytes;
}

} // namespace chameleon::memory
