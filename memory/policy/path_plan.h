// A plan as the run follows it: its values are the path's.
//
// Tests: plan_cursor_test.cpp.
//
// Thread safety: none while it is made; freely shared once it is const.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "memory/policy/placement.h"
#include "memory/policy/plan/link_model.h"
#include "memory/policy/plan/plan.h"
#include "memory/policy/recomputing/rerun_choice.h"
#include "profiler/cycle_builder.h"

namespace chameleon::memory {

// What a plan is made for.
struct PlanKey {
  profiler::PathId path = 0;
  std::uint64_t budget_bytes = 0;
  friend bool operator==(const PlanKey&, const PlanKey&) = default;
};

// A plan, and what its values are on the path that it was made for.
struct PathPlan {
  PlanKey key;
  LinkModel link; // as it was taken to be
  PlanPtr plan;   // null: this path cannot be planned
  // Per value of the plan: the path's values that stand for it, kNone: none. A
  // value whose life crosses the end of the step is two of the path.
  struct Names {
    std::uint32_t first = profiler::kNone;
    std::uint32_t second = profiler::kNone;
  };
  std::vector<Names> names;
  // Values that the plan moves after the program has let them go, as inputs of
  // ops that run again: before which op they can be found last, ascending.
  struct Held {
    std::uint32_t op;
    ValueIndex value;
  };
  std::vector<Held> held;
  // Where results lie; nothing: wherever there is room.
  std::optional<Placement> placement;
  Assignment assignment;       // what is run again; empty: nothing
  int headroom_level = 0;      // what the plan leaves, see headroom_trial.h
  std::uint64_t signature = 0; // of the cycle, see cycle_signature.h
  bool is_settled = false;     // an earlier run compared it with others

  // What is to be known of `plan` on its path.
  void setPlan(PlanPtr plan, const profiler::CycleMap& map);
  std::size_t memoryBytes() const noexcept;

 private:
  void nameValues(const profiler::CycleMap& map);
  void findHeld(const profiler::Cycle& cycle);
};
using PathPlanPtr = std::shared_ptr<const PathPlan>;

} // namespace chameleon::memory
