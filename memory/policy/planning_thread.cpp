#include "memory/policy/planning_thread.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "backend/runtime/nvtx_range.h"
#include "memory/policy/planner.h"

namespace chameleon::memory {

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
  const auto found = find(path, budget_bytes);
  if (found == plans_.end()) return order(path, budget_bytes);
  plans_.splice(plans_.begin(), plans_, found);
  ++found->asked_for;
  PathPlanPtr plan = found->plan;
  if (isOutdated(*found)) order(path, budget_bytes);
  return plan;
}

PlanningThread::Plans::iterator PlanningThread::find(
    profiler::PathId path, std::uint64_t budget_bytes) {
  return std::find_if(plans_.begin(), plans_.end(), [&](const Kept& kept) {
    return kept.plan->path == path && kept.plan->budget_bytes == budget_bytes;
  });
}

bool PlanningThread::isOutdated(const Kept& kept) const {
  if (differs_much(kept.plan->link, link_.now())) return true;
  return kept.asked_for > 1 && std::has_single_bit(kept.asked_for) &&
         builder_.timesOff(kept.plan->path) > kTimesOff;
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
    builder_.setTimes(profiler::times_of(search->map()));
    while (search->tryNext()) {
    }
    keep(search->plan());
    return plans_.front().plan;
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
  profiler::PathTimes times = profiler::times_of(search->map());
  lock.lock();
  working_.reset();
  std::erase_if(searches_, [&](const SearchPtr& other) {
    return other->path() == made->path &&
           other->budgetBytes() == made->budget_bytes;
  });
  keep(std::move(made));
  times_.push_back(std::move(times));
  if (search->goesOn()) searches_.push_back(std::move(search));
  if (searches_.size() > kMaxSearches) searches_.erase(searches_.begin());
  lock.unlock();
  published_();
  lock.lock();
}

void PlanningThread::goOn(std::unique_lock<Mutex>& lock) {
  const runtime::NvtxRange range("plan");
  SearchPtr search = std::move(searches_.back());
  searches_.pop_back();
  working_ = std::pair(search->path(), search->budgetBytes());
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
  const auto old = find(plan->path, plan->budget_bytes);
  const std::uint64_t asked_for = old == plans_.end() ? 0 : old->asked_for;
  if (old != plans_.end()) plans_.erase(old);
  plans_.push_front({std::move(plan), asked_for});
  if (plans_.size() > kMaxPlans) plans_.pop_back();
}

std::vector<Assignment> PlanningThread::hints(profiler::PathId path) const {
  std::vector<Assignment> found;
  for (const auto& [plan, asked_for] : plans_) {
    if (plan->path != path || plan->assignment.joins.empty()) continue;
    found.push_back(plan->assignment);
  }
  return found;
}

PlanningThread::SearchPtr PlanningThread::begin(
    const Order& order, const std::vector<Assignment>& hints) const {
  const PlanSearch::Request request{order.path, order.budget_bytes, order.link,
                                    keptBytes(order.budget_bytes), recompute_};
  return std::make_unique<PlanSearch>(
      request, profiler::CycleBuilder::cycle(order.snapshot), hints);
}

} // namespace chameleon::memory
