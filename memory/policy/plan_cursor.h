// Where the run stands in the plan that it follows: which actions were handed
// out, which ops are recorded, and which blocks the plan moves after the
// program has let them go. Plans speak of values; here they become blocks.
//
// Thread safety: as Policy says.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "memory/policy/path_plan.h"
#include "memory/policy/policy.h"
#include "profiler/forecast.h"

namespace chameleon::memory {

class PlanCursor {
 public:
  // REQUIRES: `profiler` outlives it.
  explicit PlanCursor(const profiler::Profiler& profiler)
      : forecast_(profiler) {}

  const PathPlanPtr& plan() const noexcept { return plan_; } // null: none
  // A round begins, or goes on, with this plan; null: none.
  void follow(PathPlanPtr plan) noexcept;
  // Actions before ops from this position on are not taken yet; those before it
  // are behind the run.
  void moveTo(std::uint32_t position) noexcept { done_ = position; }
  std::uint32_t position() const noexcept { return done_; }
  // Blocks that were let go belong to another place.
  void forgetHeld() noexcept { held_.clear(); }

  // Adds what the plan wants before the op at `position`, beside what it wanted
  // before earlier ones and was not taken. True: the op is to be recorded.
  bool advance(std::uint32_t position, std::vector<PlannedAction>& list);
  // The position before which advance() has something to do; kNone: none.
  std::uint32_t nextPosition() const noexcept;

  // ---- where results lie (placement.h) -------------------------------------
  // Now all that is live is to be moved together. Once a round.
  bool takePacking() noexcept { return std::exchange(packing_is_due_, false); }
  // It was, and ends there: places begin.
  void packed(std::uint64_t end_bytes) noexcept;
  bool isPlacing() const noexcept { return base_bytes_ != kNotPacked; }
  // What an op allocates, at offsets from baseBytes(). Empty: anywhere.
  std::span<const Placement::Place> placesOf(
      std::uint32_t position) const noexcept;
  std::uint64_t baseBytes() const noexcept { return base_bytes_; }

  // The plan is known to move and to record nothing.
  bool movesNothing() const noexcept;
  bool reruns() const noexcept { // ops
    return plan_ != nullptr && !plan_->plan->recorded.empty();
  }

 private:
  using Bound = profiler::Forecast::Bound;
  void add(ValueIndex value); // to what lookUp() asks for
  void lookUp();
  const Bound& found(std::size_t i) const noexcept; // the i-th that was added
  void resolve(std::vector<PlannedAction>& list);
  void findHeld(std::uint32_t position);

  static constexpr std::uint64_t kNotPacked = ~std::uint64_t{0};

  profiler::Forecast forecast_;
  PathPlanPtr plan_;
  std::uint64_t base_bytes_ = kNotPacked;
  bool packing_is_due_ = false;
  std::uint32_t done_ = 0;        // actions before ops < done_ were taken
  std::size_t held_done_ = 0;     // of the plan's held values, in this round
  std::size_t recorded_done_ = 0; // of its recorded ops: those before done_
  // By value of the plan: blocks that it may move after they are let go.
  std::unordered_map<ValueIndex, Bound> held_;
  // Scratch, to spare the heap.
  std::vector<Action> actions_;
  std::vector<std::uint32_t> values_;
  std::vector<Bound> bound_;
};

} // namespace chameleon::memory
