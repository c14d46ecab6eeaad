#include "memory/policy/planning_thread.h"

#include <algorithm>
#include <utility>

#include "memory/policy/planner.h"

namespace chameleon::memory {

using profiler::kNone;

namespace {

// What the plan must leave of the budget: holes between blocks, and what is
// resident without being part of the cycle.
constexpr std::uint64_t kSlackShare = 200;

} // namespace

PlanningThread::PlanningThread(profiler::Profiler& profiler,
                               const profiler::Durations& durations,
                               const LinkEstimate& link,
                               std::function<void()> published, bool at_once)
    : builder_(profiler, durations),
      link_(link),
      published_(std::move(published)),
      at_once_(at_once) {}

PlanningThread::~PlanningThread() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

PathPlanPtr PlanningThread::plan(profiler::PathId path,
                                 std::uint64_t budget_bytes) {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return nullptr;
  return findOrOrder(path, budget_bytes);
}

void PlanningThread::planAndWait(profiler::PathId path,
                                 std::uint64_t budget_bytes) {
  std::unique_lock lock(mutex_);
  (void)findOrOrder(path, budget_bytes);
  changed_.wait(lock, [&] { return orders_.empty() && !working_; });
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
  const auto same = [&](const Order& other) {
    return other.path == path && other.budget_bytes == budget_bytes;
  };
  if (working_ && same(*working_)) return nullptr;
  const auto ordered = std::find_if(orders_.begin(), orders_.end(), same);
  if (ordered != orders_.end()) {
    std::rotate(ordered, ordered + 1, orders_.end());
    return nullptr;
  }
  std::optional<profiler::PathSnapshot> snapshot = builder_.take(path);
  if (!snapshot) return nullptr;
  Order order{path, budget_bytes, link_.now(), std::move(*snapshot)};
  if (at_once_) {
    profiler::CycleMap map;
    keep(make(order, map));
    builder_.setTimes(profiler::times_of(map));
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
    changed_.wait(lock, [&] { return stop_ || !orders_.empty(); });
    if (stop_) return;
    working_ = std::move(orders_.back());
    orders_.pop_back();
    lock.unlock();
    profiler::CycleMap map;
    PathPlanPtr made = make(*working_, map);
    profiler::PathTimes times = profiler::times_of(map);
    lock.lock();
    working_.reset();
    keep(std::move(made));
    times_.push_back(std::move(times));
    changed_.notify_all();
    lock.unlock();
    published_();
    lock.lock();
  }
}

void PlanningThread::keep(PathPlanPtr plan) {
  ++plans_made_;
  plans_.remove_if([&](const PathPlanPtr& old) {
    return old->path == plan->path && old->budget_bytes == plan->budget_bytes;
  });
  plans_.push_front(std::move(plan));
  if (plans_.size() > kMaxPlans) plans_.pop_back();
}

PathPlanPtr PlanningThread::make(const Order& order,
                                 profiler::CycleMap& map) const {
  map = profiler::CycleBuilder::cycle(order.snapshot);
  auto made = std::make_shared<PathPlan>();
  made->path = order.path;
  made->budget_bytes = order.budget_bytes;
  made->link = order.link;
  PlannerOptions options;
  options.budget_bytes = order.budget_bytes - order.budget_bytes / kSlackShare;
  options.link = made->link;
  options.keep_bytes = keptBytes(order.budget_bytes);
  runtime::Result<PlanPtr> plan = plan_cycle(map.cycle, options);
  if (!plan.ok()) return made;
  made->plan = std::move(*plan);
  made->names.resize(map.cycle.values());
  for (std::uint32_t v = 0; v < map.value_of.size(); ++v) {
    if (map.value_of[v] == kNone) continue;
    PathPlan::Names& names = made->names[map.value_of[v]];
    (names.first == kNone ? names.first : names.second) = v;
  }
  return made;
}

std::size_t PathPlan::memoryBytes() const noexcept {
  std::size_t bytes = sizeof(PathPlan) + names.capacity() * sizeof(Names);
  if (plan != nullptr) {
    bytes += sizeof(Plan) + plan->actions.capacity() * sizeof(Action) +
             plan->action_end.capacity() * sizeof(std::uint32_t);
  }
  return bytes;
}

} // namespace chameleon::memory
