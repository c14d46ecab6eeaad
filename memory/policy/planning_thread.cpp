#include "memory/policy/planning_thread.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "backend/runtime/nvtx_range.h"
#include "memory/policy/cycle_signature.h"
#include "memory/policy/plan/plan_model.h"
#include "memory/policy/swapping/planner.h"

namespace chameleon::memory {

PlanningThread::PlanningThread(profiler::Profiler& profiler,
                               const profiler::Durations& durations,
                               const LinkEstimate& link,
                               std::function<void()> published, bool at_once,
                               bool recompute, SavedPlans* saved)
    : builder_(profiler, durations),
      link_(link),
      published_(std::move(published)),
      at_once_(at_once),
      recompute_(recompute),
      saved_(saved) {}

PlanningThread::~PlanningThread() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

std::optional<PathPlanPtr> PlanningThread::plan(const PlanKey& key) {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return std::nullopt;
  return findOrOrder(key);
}

PathPlanPtr PlanningThread::findOrOrder(const PlanKey& key) {
  for (const profiler::PathTimes& times : times_) builder_.setTimes(times);
  times_.clear();
  const auto found = find(key);
  if (found == plans_.end()) return order(key, HeadroomTrial::kOnce);
  plans_.splice(plans_.begin(), plans_, found);
  ++found->asked_for;
  PathPlanPtr plan = found->trial.plan();
  if (isOutdated(*found)) order(key, found->trial.headroomLevel());
  return plan;
}

PlanningThread::Plans::iterator PlanningThread::find(const PlanKey& key) {
  return std::find_if(plans_.begin(), plans_.end(), [&](const Kept& kept) {
    return kept.trial.plan()->key == key;
  });
}

bool PlanningThread::isOutdated(const Kept& kept) const {
  const PathPlan& plan = *kept.trial.plan();
  const LinkModel link = link_.now();
  if (differs_much(plan.link, link)) return true;
  if (plan.plan != nullptr) { // where the mirror is in the way, or was
    ModelledStep step = plan.plan->modelled;
    const double before_ns = step.duration_ns;
    add_mirror(step, link);
    if (std::abs(step.duration_ns - before_ns) > kTimesOff * before_ns) {
      return true;
    }
  }
  return kept.asked_for > 1 && std::has_single_bit(kept.asked_for) &&
         builder_.timesOff(plan.key.path) > kTimesOff;
}

// The last one ordered is the first one served. Null: it will take a while.
PathPlanPtr PlanningThread::order(const PlanKey& key, int headroom_level) {
  if (working_ == key) return nullptr;
  const auto ordered =
      std::find_if(orders_.begin(), orders_.end(),
                   [&](const Order& other) { return other.key == key; });
  if (ordered != orders_.end()) {
    std::rotate(ordered, ordered + 1, orders_.end());
    return nullptr;
  }
  std::optional<profiler::PathSnapshot> snapshot = builder_.take(key.path);
  if (!snapshot) return nullptr;
  Order order{key, headroom_level, link_.now(), std::move(*snapshot)};
  if (at_once_) {
    const SearchPtr search = begin(order, hints(key.path));
    builder_.setTimes(profiler::times_of(search->map()));
    while (search->tryNext()) {
    }
    keep(search->plan());
    return plans_.front().trial.plan();
  }
  orders_.push_back(std::move(order));
  if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
  changed_.notify_all();
  return nullptr;
}

void PlanningThread::stepEnded(const Plan* plan, std::int64_t duration_ns) {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return;
  const Kept* wanted = nullptr;
  for (Kept& kept : plans_) {
    const PathPlanPtr& followed = kept.trial.plan();
    const bool counts =
        followed->plan.get() == plan && !isAtWork(followed->key);
    if (!kept.trial.stepEnded(counts ? plan : nullptr, duration_ns)) continue;
    wanted = &kept;
  }
  if (wanted == nullptr) return;
  const PlanKey key = wanted->trial.plan()->key;
  order(key, wanted->trial.headroomLevel());
}

bool PlanningThread::isTrying(const PlanKey& key) {
  const std::lock_guard lock(mutex_);
  const auto found = find(key);
  return found != plans_.end() && !found->trial.isOver();
}

// Something for the same is ordered, or being made.
bool PlanningThread::isAtWork(const PlanKey& key) const {
  return working_ == key ||
         std::any_of(orders_.begin(), orders_.end(),
                     [&](const Order& order) { return order.key == key; }) ||
         std::any_of(
             searches_.begin(), searches_.end(),
             [&](const SearchPtr& search) { return search->key() == key; });
}

// Small values move in small budgets, too.
std::uint64_t PlanningThread::keptBytes(std::uint64_t budget_bytes) {
  return std::min(PlannerOptions::kKeepBytes, budget_bytes >> 12);
}

std::uint64_t PlanningThread::plansMade() const {
  const std::lock_guard lock(mutex_);
  return plans_made_;
}

void PlanningThread::save(SavedPlans& plans) const {
  const std::lock_guard lock(mutex_);
  for (const Kept& kept : plans_) {
    const PathPlan& made = *kept.trial.plan();
    // What was walked once may never be again.
    if (made.plan == nullptr || made.headroom_level == HeadroomTrial::kOnce)
      continue;
    SavedPlan saved{.signature = made.signature,
                    .budget_bytes = made.key.budget_bytes,
                    .link = made.link,
                    .headroom_level = made.headroom_level,
                    .is_settled = kept.trial.isOver() && !isAtWork(made.key),
                    .plan = *made.plan,
                    .assignment = made.assignment};
    saved.plan.shares = {};
    plans.add(std::move(saved));
  }
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
  working_ = order.key;
  const std::vector<Assignment> known = hints(order.key.path);
  lock.unlock();
  SearchPtr search = begin(order, known);
  PathPlanPtr made = search->plan();
  profiler::PathTimes times = profiler::times_of(search->map());
  lock.lock();
  working_.reset();
  std::erase_if(searches_, [&](const SearchPtr& other) {
    return other->key() == made->key;
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
  working_ = search->key();
  lock.unlock();
  const bool more = search->tryNext();
  PathPlanPtr better;
  if (search->isWorthIt(more)) better = search->better();
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
  const auto known = find(plan->key);
  if (known != plans_.end()) {
    known->trial.add(std::move(plan));
    plans_.splice(plans_.begin(), plans_, known);
    return;
  }
  plans_.push_front({HeadroomTrial(std::move(plan)), 0});
  if (plans_.size() > kMaxPlans) plans_.pop_back();
}

std::vector<Assignment> PlanningThread::hints(profiler::PathId path) const {
  std::vector<Assignment> found;
  for (const Kept& kept : plans_) {
    const PathPlan& plan = *kept.trial.plan();
    if (plan.key.path != path || plan.assignment.joins.empty()) continue;
    found.push_back(plan.assignment);
  }
  return found;
}

PlanningThread::SearchPtr PlanningThread::begin(
    const Order& order, const std::vector<Assignment>& hints) const {
  profiler::CycleMap map = profiler::CycleBuilder::cycle(order.snapshot);
  PlanSearch::Request request{order.key, order.link,
                              keptBytes(order.key.budget_bytes), recompute_,
                              order.headroom_level};
  request.signature = signature_of(map);
  // Its steps count when the search is over. What was best at another level is
  // nearly that at this one.
  if (order.headroom_level > 0 && order.headroom_level != HeadroomTrial::kOnce)
    request.most_tries = PlanSearch::kLeastTries;
  std::optional<SavedPlan> saved;
  if (saved_ != nullptr) {
    saved = saved_->take(request.signature, map.cycle, order.key.budget_bytes,
                         order.link, recompute_);
  }
  if (saved) {
    request.headroom_level = static_cast<int>(saved->headroom_level);
    return std::make_unique<PlanSearch>(request, std::move(map),
                                        *std::move(saved));
  }
  return std::make_unique<PlanSearch>(request, std::move(map), hints);
}

} // namespace chameleon::memory
