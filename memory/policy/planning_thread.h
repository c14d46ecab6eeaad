// Plans paths in the background: the op side asks for a plan, goes on without
// it, and finds it there some milliseconds later.
//
// A path is planned once for each budget, and again when the link turns out to
// differ much from what it was taken to be (link_estimate.h), or what the
// mirror sends to cost another time, or its ops to take other times (looked at
// in its 2nd, 4th, 8th, ... round); the old plan holds meanwhile. Of several
// that are asked for the last comes first. The thread starts with the first
// request.
//
// The first plan of a path only swaps. Where ops may be run again, the thread
// then goes on to search for a better one (plan_search.h), and publishes what
// is worth it, until nothing better turns up; a path that is ordered meanwhile
// comes first. Under another budget or link the search begins with what was
// best under the last one. And while a path is followed step after step it is
// found out how much of the budget its plan had better leave
// (headroom_trial.h).
//
// Thread safety: any thread. plan() never waits for a plan that is being made,
// and not for the lock either: where another thread holds it, it answers "none
// yet". What a plan is made from is copied on the thread that asks for it, so
// the planning thread never makes an op wait.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "backend/runtime/ranked_mutex.h"
#include "memory/policy/headroom_trial.h"
#include "memory/policy/link_estimate.h"
#include "memory/policy/path_plan.h"
#include "memory/policy/plan_search.h"
#include "memory/policy/saved_plans.h"
#include "profiler/cycle_builder.h"
#include "profiler/durations.h"
#include "profiler/profiler.h"

namespace chameleon::memory {

class PlanningThread {
 public:
  // `published` is called from the thread, without locks, after each plan.
  // `at_once`: there is no thread, plan() makes what is missing; where time is
  // modelled, so that a run repeats. `saved`: plans of an earlier run, taken
  // from there; null: none.
  PlanningThread(profiler::Profiler& profiler,
                 const profiler::Durations& durations, const LinkEstimate& link,
                 std::function<void()> published, bool at_once = false,
                 bool recompute = false, SavedPlans* saved = nullptr);
  ~PlanningThread(); // waits for the plan that is being made
  PlanningThread(const PlanningThread&) = delete;
  PlanningThread& operator=(const PlanningThread&) = delete;

  // The plan for a path, ordered if there is none; null: none yet; nothing: the
  // thread is at its plans just now.
  std::optional<PathPlanPtr> plan(const PlanKey& key);
  // A step ended that followed this plan and went as it foresaw; null: none.
  // Where the thread is at its plans just now the step does not count.
  void stepEnded(const Plan* plan, std::int64_t duration_ns);
  // Plans with more and less headroom are being compared.
  bool isTrying(const PlanKey& key);
  std::uint64_t plansMade() const;
  // Adds the plans that there are.
  void save(SavedPlans& plans) const;
  // Values of at most so many bytes never move in a plan.
  static std::uint64_t keptBytes(std::uint64_t budget_bytes);

 private:
  static constexpr std::size_t kMaxPlans = 32;
  static constexpr std::size_t kMaxSearches = 4; // that wait
  // Where a step takes another time than a plan has it, by this share of it,
  // what is worth running again may be something else.
  static constexpr double kTimesOff = 0.05;

  using Mutex = runtime::RankedMutex<runtime::LockRank::kPlans>;
  struct Order {
    PlanKey key;
    int headroom_level;
    LinkModel link; // as it is taken to be
    profiler::PathSnapshot snapshot;
  };
  // A better plan for a path, while there is time.
  using SearchPtr = std::unique_ptr<PlanSearch>;
  struct Kept {
    HeadroomTrial trial;
    std::uint64_t asked_for; // how often its plans were
  };
  using Plans = std::list<Kept>;

  void run();
  // These REQUIRE mutex_.
  Plans::iterator find(const PlanKey& key);
  bool isOutdated(const Kept& kept) const;
  PathPlanPtr findOrOrder(const PlanKey& key);
  bool isAtWork(const PlanKey& key) const;
  PathPlanPtr order(const PlanKey& key, int headroom_level);
  void serveOrder(std::unique_lock<Mutex>& lock);
  void goOn(std::unique_lock<Mutex>& lock);
  std::vector<Assignment> hints(profiler::PathId path) const;
  void keep(PathPlanPtr plan);
  // Its first plan is made, but not kept. Needs no lock.
  SearchPtr begin(const Order& order,
                  const std::vector<Assignment>& hints) const;

  profiler::CycleBuilder builder_;
  const LinkEstimate link_;
  const std::function<void()> published_;
  const bool at_once_;
  const bool recompute_;
  SavedPlans* const saved_;

  // Guards what is below. Under it only LeafLocks and locks of
  // LockRank::kLog are taken.
  mutable Mutex mutex_;
  runtime::RankedCondition<runtime::LockRank::kPlans> changed_;
  Plans plans_;                            // used last first
  std::vector<Order> orders_;              // served from the back
  std::vector<profiler::PathTimes> times_; // for their paths, by plan()
  std::uint64_t plans_made_ = 0;
  std::optional<PlanKey> working_;
  std::vector<SearchPtr> searches_; // the last one goes on
  bool stop_ = false;
  std::thread thread_;
};

} // namespace chameleon::memory
