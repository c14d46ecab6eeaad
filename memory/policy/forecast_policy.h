// Follows a plan for the sequence of ops that is running: write-backs,
// evictions and fetches before each op, made in the background for the whole
// cycle (PlanCursor). Where there is no plan, and where the plan did not
// foresee a need of room, victims are chosen by their next use; where nothing
// is known, by their last one (VictimOrder). What no plan fetches comes back
// ahead of its use (Readahead).
//
// A plan may also drop blocks and have ops run again: then the ops that it
// names are recorded, and drops are planned actions like others. Where the run
// leaves the path, nothing more is dropped; what is, comes back when it is
// needed. A better plan for the path that is followed waits for its next round.
//
// While the plan moves nothing, and no victim was asked for since the round
// before, the profiler need not look which blocks an op uses: it is told so.
//
// Thread safety: as Policy says.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "memory/policy/followed_path.h"
#include "memory/policy/plan_cursor.h"
#include "memory/policy/planning_thread.h"
#include "memory/policy/policy.h"
#include "memory/policy/readahead.h"
#include "memory/policy/victim_order.h"
#include "profiler/forecast.h"

namespace chameleon::memory {

class ForecastPolicy final : public Policy {
 public:
  explicit ForecastPolicy(const PolicyInputs& inputs);

  std::string_view name() const noexcept override { return "forecast"; }
  void entered(Block& block) override { victims_.add(block); }
  void left(Block& block) noexcept override { victims_.remove(block); }
  using Policy::victim;
  Block* nextVictim(Usable usable, const Need& need) override;
  Block* victim(Usable usable, const Need& need) override;
  std::size_t size() const noexcept override { return victims_.size(); }

  bool plansAhead() const noexcept override { return true; }
  bool plannedActions(const profiler::OpTicket& ticket,
                      std::vector<PlannedAction>& list) override;
  bool wantsPacking() override { return cursor_.takePacking(); }
  void packed(std::size_t end_bytes) override { cursor_.packed(end_bytes); }
  bool isPlacing() const override { return cursor_.isPlacing(); }
  PlannedPlaces placesOf(const profiler::OpTicket& ticket) const override;
  void budgetChanged(std::size_t budget_bytes) override;
  void stepEnded(const Plan* plan, std::int64_t duration_ns) override {
    planning_.stepEnded(plan, duration_ns);
  }
  PlanPtr plan() const override {
    return cursor_.plan() == nullptr ? nullptr : cursor_.plan()->plan;
  }
  PolicyCosts costs() override;
  void savePlans(SavedPlans& plans) const override { planning_.save(plans); }

 private:
  void findPlace(const profiler::OpTicket& ticket);
  PathPlanPtr planFor(const profiler::PathPosition& at,
                      const PathPlanPtr& before);
  const VictimOrder::Victim* findVictim(Usable usable, const Need& need);
  void setNextActions() noexcept;

  profiler::Forecast forecast_;
  profiler::Profiler& profiler_;
  NextActions& next_actions_;
  std::uint64_t budget_bytes_;

  std::uint32_t epoch_ = 0;
  FollowedPath path_;
  PlanCursor cursor_;
  Readahead readahead_;
  VictimOrder victims_;
  bool had_victims_ = false; // that no plan chose, since findPlace()

  PlanningThread planning_; // last: its thread opens the next_actions
};

} // namespace chameleon::memory
