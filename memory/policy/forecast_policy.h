// Follows a plan for the sequence of ops that is running: write-backs,
// releases and fetches before each op, made in the background for the whole
// cycle. Where there is no plan, and where the plan did not foresee a need of
// room, victims are chosen by their next use; where nothing is known, by their
// last one.
//
// Victims: uses more than half a cycle away, and unknown ones, are all far
// away, and among those the one used longest ago goes first; nearer ones go by
// distance, a clean one as if it were kCleanFactor times as far (its eviction
// costs one copy, not two). What the program has let go, while ops that run
// again will read it, counts as used in the middle of what is left of the
// cycle.
//
// Victims are put in order for many ops at a time, since that takes as long as
// there are blocks; what is used meanwhile is no victim before the next time.
//
// Half a cycle of look-ahead is enough, and beyond it Belady's order does harm:
// a study found that, which simulated swap schedules on the traces of
// tests/benchmarks/policy/, and is not in the repository. No other constant
// below has a source; RESULTS.md there shows what all of them give.
//
// While a known sequence is followed, victims that no plan chose come back a
// little ahead of their next use, beside what the plan fetches. So does what a
// plan takes to be there and is not, where the sequence was entered from
// another one; and at its end what the next one begins with, if that is
// another. Blocks that are too small to be worth a copy are victims only where
// there is no other. Where one piece is wanted, and enough is free in many, a
// victim that is larger than the piece would leave for too little: the smallest
// that makes it is taken, of those that are not needed much sooner.
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
#include <unordered_map>
#include <utility>
#include <vector>

#include "memory/policy/planning_thread.h"
#include "memory/policy/policy.h"
#include "profiler/forecast.h"

namespace chameleon::memory {

class ForecastPolicy final : public Policy {
 public:
  explicit ForecastPolicy(const PolicyInputs& inputs);

  std::string_view name() const noexcept override { return "forecast"; }
  void entered(Block& block) override;
  void left(Block& block) noexcept override;
  using Policy::victim;
  Block* nextVictim(Usable usable, const Need& need) override;
  Block* victim(Usable usable, const Need& need) override;
  std::size_t size() const noexcept override { return blocks_.size(); }

  bool plansAhead() const noexcept override { return true; }
  bool plannedActions(const profiler::OpTicket& ticket,
                      std::vector<PlannedAction>& list) override;
  void budgetChanged(std::size_t budget_bytes) override;
  void stepEnded(const Plan* plan, std::int64_t duration_ns) override {
    planning_.stepEnded(plan, duration_ns);
  }
  PlanPtr plan() const override {
    return plan_ == nullptr ? nullptr : plan_->plan;
  }
  PolicyCosts costs() override;
  void savePlans(SavedPlans& plans) const override { planning_.save(plans); }

 private:
  static constexpr std::uint32_t kNotIn = ~std::uint32_t{0};
  // A clean victim counts as if its next use were so many times as far away.
  static constexpr double kCleanFactor = 4;
  // How often victims are put in order in one cycle, at most; off all paths, in
  // as many ops as there are blocks.
  static constexpr std::uint32_t kRanksPerCycle = 64;
  // A victim of a better size is taken if its next use is at least this part as
  // far away as that of the best one.
  static constexpr double kAsFar = 0.5;
  // What lookAhead() begins with at a place that was not foreseen, in ops.
  static constexpr std::uint32_t kLeastAhead = 8;
  // By so many ops lookAhead() grows with each op that comes as foreseen.
  static constexpr std::uint32_t kOpening = 4;
  // lookAlong() looks so many times lookAhead() farther at a time.
  static constexpr std::uint32_t kLookedAhead = 4;
  // A round may have so many ops more or fewer than its path, because some were
  // put in or left out, and still count as the same round.
  static constexpr std::uint32_t kCatchUp = 16;

  struct Victim {
    Block* block;
    std::uint64_t identity;
    bool small;
    bool far;
    std::uint64_t tick;     // of the last use
    std::uint64_t next_use; // number of that op, if it is near
    double distance_ops;    // near ones: to the next use
  };
  // What is to come back before the op of this number.
  struct Return {
    std::uint64_t next_use;
    Block* block;
    std::uint64_t identity;
    bool operator<(const Return& other) const noexcept { // the nearest on top
      return next_use > other.next_use;
    }
  };
  static bool better(const Victim& a, const Victim& b) noexcept;
  bool isVictim(const Victim& victim, Usable usable) const noexcept;
  const Victim* findVictim(Usable usable, const Need& need);
  const Victim& fitting(Usable usable, std::size_t piece_bytes) const noexcept;

  void arrive(const profiler::OpTicket& ticket);
  void lookAlong(std::uint32_t position);
  void takeUp(profiler::PathId path, std::uint32_t begin, std::uint32_t end,
              std::uint64_t at_begin);
  void plannedFetches(std::uint32_t begin, std::uint32_t end);
  using Bound = profiler::Forecast::Bound;
  const Bound& either(std::size_t i) const;
  void resolve(std::vector<PlannedAction>& list);
  bool nothingMoves() const noexcept;
  bool findHeld(std::uint32_t position);
  void expectBack(Block& block);
  void bringBack(std::vector<PlannedAction>& list);
  std::uint32_t lookAhead() const noexcept; // ops
  void setGate() noexcept;
  void rank();

  profiler::Forecast forecast_;
  profiler::Profiler& profiler_;
  PlanGate& gate_;
  std::uint64_t budget_bytes_;

  std::uint32_t epoch_ = 0;
  PathPlanPtr plan_; // null: none for where the run is
  profiler::PathId path_ = 0;
  std::uint32_t path_ops_ = 0;    // 0: it is not known where the run is
  std::uint32_t tail_ = 0;        // where the path after it is looked at; kNone
  std::uint32_t looked_to_ = 0;   // by lookAlong()
  std::uint32_t done_ = 0;        // actions before ops < done_ were taken
  std::size_t held_done_ = 0;     // of the plan's held values, in this round
  std::size_t recorded_done_ = 0; // of its recorded ops: those before done_
  // By value of the plan: blocks that it may move after they are let go.
  std::unordered_map<ValueIndex, Bound> held_;

  bool had_victims_ = false; // that no plan chose, since arrive()

  std::uint64_t begin_ = 0;      // number of the op at position 0
  std::uint64_t arrived_at_ = 0; // opCount() at the last unforeseen place
  std::vector<Return> returns_;  // a heap; of the path followed

  std::vector<Block*> blocks_;  // known ones, at their policy_slot
  std::vector<Victim> ranked_;  // the best victim last
  std::uint64_t ranked_at_ = 0; // opCount()

  std::vector<Action> actions_; // scratch
  std::vector<std::uint32_t> values_;
  std::vector<profiler::Forecast::Bound> bound_;
  std::vector<profiler::BlockSlot> slots_;
  std::vector<profiler::NextUse> uses_;
  std::vector<profiler::Forecast::Need> needs_;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> fetches_;

  PlanningThread planning_; // last: its thread opens the gate
};

} // namespace chameleon::memory
