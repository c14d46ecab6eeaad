#include "memory/policy/planning_thread.h"

#include <algorithm>
#include <utility>

#include "memory/policy/planner.h"

namespace chameleon::memory {

using profiler::kNone;

namespace {

// What the plan must leave of the budget: holes between blocks, and what is
// resident without being part of the cycle.
constexpr std::uint64_t kSlackShare = 32;

} // namespace

PlanningThread::PlanningThread(profiler::Profiler& profiler,
                               const profiler::Durations& durations,
                               const LinkEstimate& link,
                               std::function<void()> published)
    : builder_(profiler, durations),
      link_(link),
      published_(std::move(published)) {}

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
  const Order order{path, budget_bytes};
  const auto found =
      std::find_if(plans_.begin(), plans_.end(),
                   [&](const PathPlanPtr& plan) { return order.isOf(*plan); });
  if (found == plans_.end()) {
    demand(order);
    return nullptr;
  }
  plans_.splice(plans_.begin(), plans_, found);
  if (differs_much(plans_.front()->link, link_.now())) demand(order);
  return plans_.front();
}

// The last one demanded is the first one served.
void PlanningThread::demand(const Order& order) {
  if (working_ == order) return;
  std::erase(orders_, order);
  orders_.push_back(order);
  if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
  changed_.notify_all();
}

void PlanningThread::drain() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return orders_.empty() && !working_; });
}

void PlanningThread::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stop_ || !orders_.empty(); });
    if (stop_) return;
    working_ = orders_.back();
    orders_.pop_back();
    lock.unlock();
    PathPlanPtr made = make(*working_);
    lock.lock();
    working_.reset();
    if (made != nullptr) {
      plans_.remove_if([&](const PathPlanPtr& plan) {
        return Order{made->path, made->budget_bytes}.isOf(*plan);
      });
      plans_.push_front(std::move(made));
      if (plans_.size() > kMaxPlans) plans_.pop_back();
    }
    changed_.notify_all();
    lock.unlock();
    published_();
    lock.lock();
  }
}

// Null: the path is not known any more.
PathPlanPtr PlanningThread::make(const Order& order) {
  const std::optional<profiler::CycleMap> map = builder_.build(order.path);
  if (!map) return nullptr;
  auto made = std::make_shared<PathPlan>();
  made->path = order.path;
  made->budget_bytes = order.budget_bytes;
  made->link = link_.now();
  PlannerOptions options;
  options.budget_bytes = order.budget_bytes - order.budget_bytes / kSlackShare;
  options.link = made->link;
  // Small values move in small budgets, too.
  options.keep_bytes = std::min(options.keep_bytes, order.budget_bytes >> 12);
  runtime::Result<PlanPtr> plan = plan_cycle(map->cycle, options);
  if (!plan.ok()) return made;
  made->plan = std::move(*plan);
  made->names.resize(map->cycle.values());
  for (std::uint32_t v = 0; v < map->value_of.size(); ++v) {
    if (map->value_of[v] == kNone) continue;
    PathPlan::Names& names = made->names[map->value_of[v]];
    (names.first == kNone ? names.first : names.second) = v;
  }
  return made;
}

} // namespace chameleon::memory
