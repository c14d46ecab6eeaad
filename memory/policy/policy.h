// What to evict, and when; and what to move ahead of need. A policy decides,
// the pager acts; a policy never touches memory, streams or tensors.
//
// Thread safety: every method is called under the pager's lock. A policy must
// not call back into the pager. Decisions never affect correctness: whatever
// is answered, every op sees the right bits.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "memory/block.h"
#include "memory/policy/link_estimate.h"
#include "memory/policy/placement.h"
#include "memory/policy/plan/plan.h"
#include "memory/policy/saved_plans.h"
#include "profiler/durations.h"
#include "profiler/profiler.h"

namespace chameleon::memory {

// What a policy wants done with a block before the next op. The block may have
// died meanwhile: it is meant only while it has this identity.
struct PlannedAction {
  Action::Kind kind;
  Block* block;
  std::uint64_t identity;
  bool joined; // with the action of its kind before it: one batch
  // Of a fetch: the number of the op that it is for. It evicts no block that is
  // needed at that op or before it. 0: it may evict any block.
  std::uint64_t needed_at = 0;
};

// Where the results of an op are to lie.
struct PlannedPlaces {
  std::size_t base_bytes = 0; // what offsets are counted from
  std::span<const Placement::Place> places;
};

// Tells an op without any lock whether the policy has planned actions before
// it. An op of another thread may be told one op late.
class NextActions {
 public:
  bool due(const profiler::OpTicket& ticket) const noexcept {
    const std::uint32_t position = position_.load(std::memory_order_relaxed);
    const bool is_there =
        ticket.position >= position ||
        ticket.epoch != epoch_.load(std::memory_order_relaxed);
    // As a rule the answer is known by now.
    return is_there && ticket.position != profiler::kNone && position != kNone;
  }
  // No actions, ever / ask at the next op.
  void setNone() noexcept { position_.store(kNone, std::memory_order_relaxed); }
  void ask() noexcept { position_.store(kAsk, std::memory_order_relaxed); }
  // From now on due() is true from op `position` of this epoch on, and at any
  // op of another epoch, such as the first op of a round. If ask() was called
  // since takeAsk(), it stays true at the next op. Two threads may not call
  // askAt() at once.
  void askAt(std::uint32_t epoch, std::uint32_t position) noexcept {
    epoch_.store(epoch, std::memory_order_relaxed);
    std::uint32_t before = position_.load(std::memory_order_relaxed);
    if (before == kAsk) return;
    position_.compare_exchange_strong(before, std::max(position, kAsk + 1),
                                      std::memory_order_relaxed);
  }
  bool takeAsk() noexcept {
    std::uint32_t position = kAsk;
    return position_.compare_exchange_strong(position, kNone,
                                             std::memory_order_relaxed);
  }

 private:
  static constexpr std::uint32_t kNone = profiler::kNone;
  static constexpr std::uint32_t kAsk = 0;
  std::atomic<std::uint32_t> position_{kNone};
  std::atomic<std::uint32_t> epoch_{0};
};

// What a policy takes for itself.
struct PolicyCosts {
  std::uint64_t plans_made = 0;
  std::size_t plan_bytes = 0; // the plan that is followed just now
  bool is_trying = false;     // others are still being compared with it
};

class Policy {
 public:
  Policy() = default;
  Policy(const Policy&) = delete;
  Policy& operator=(const Policy&) = delete;
  virtual ~Policy() = default;
  virtual std::string_view name() const noexcept = 0;

  // A block got its bytes into HBM: it is known from now on. It may die and be
  // born again as another (Block::identity) without leaving.
  virtual void entered(Block& block) = 0;
  // It lost them (evicted or freed). A block that is not known is ignored.
  virtual void left(Block& block) noexcept = 0;

  // What its room is wanted for.
  struct Need {
    // As PlannedAction says; there may be no victim then because all others are
    // needed sooner, as far as that is known.
    std::uint64_t needed_at = 0;
    // So much is free, but in pieces: one piece is wanted. 0: just more bytes.
    std::size_t piece_bytes = 0;
  };
  // The next victim in order of preference, or null when there is none that
  // `usable` accepts (pinned blocks are not).
  using Usable = bool (*)(const Block&);
  virtual Block* nextVictim(Usable usable, const Need& need) = 0;
  // The same, and it is not known any more: a victim that could not be evicted
  // after all comes back through entered().
  virtual Block* victim(Usable usable, const Need& need) = 0;
  Block* victim(Usable usable) { return victim(usable, {}); }

  virtual std::size_t size() const noexcept = 0; // known blocks

  // ---- policies that plan ahead ------------------------------------------
  virtual bool plansAhead() const noexcept { return false; }
  // What is to be done before the op of this ticket, in order. Called where
  // next_actions says so. True: the op's call is to be recorded.
  virtual bool plannedActions(const profiler::OpTicket& /*ticket*/,
                              std::vector<PlannedAction>& /*list*/) {
    return false;
  }
  // True, once, behind plannedActions(): first all that is live is to be moved
  // together at the bottom. Then the policy is told where that ends.
  virtual bool wantsPacking() { return false; }
  virtual void packed(std::size_t /*end_bytes*/) {}
  // It plans where results lie / where those of the op do. The first place of
  // that size that is free is meant; what has none may lie anywhere.
  virtual bool isPlacing() const { return false; }
  virtual PlannedPlaces placesOf(const profiler::OpTicket& /*ticket*/) const {
    return {};
  }
  virtual void budgetChanged(std::size_t /*budget_bytes*/) {}
  // A step ended that followed this plan and went as it foresaw; null: none.
  virtual void stepEnded(const Plan* /*plan*/, std::int64_t /*duration_ns*/) {}
  // The plan that is followed just now; null: none.
  virtual PlanPtr plan() const { return nullptr; }
  virtual PolicyCosts costs() { return {}; }
  // Adds the plans that there are.
  virtual void savePlans(SavedPlans& /*plans*/) const {}
};

// What policies decide from.
struct PolicyInputs {
  profiler::Profiler& profiler;
  const profiler::Durations& durations;
  NextActions& next_actions;
  LinkEstimate link;
  std::size_t budget_bytes;
  bool plan_at_once = false;   // see PlanningThread
  bool recompute = false;      // plans may drop blocks and run ops again
  SavedPlans* saved = nullptr; // of an earlier run; null: none
};

} // namespace chameleon::memory
