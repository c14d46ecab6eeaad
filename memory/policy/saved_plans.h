// Plans of an earlier run, to begin with in this one: what it took a planner
// minutes to find, and trials many steps to compare, is there in the first step
// that is known.
//
// A plan is found again by what its step does (cycle_signature.h) and by the
// budget. It is followed where the link is about as fast as it was when the
// plan was made; else the path is planned as if there were none.
//
// Thread safety: any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "backend/runtime/ranked_mutex.h"
#include "backend/runtime/result.h"
#include "memory/policy/plan/link_model.h"
#include "memory/policy/plan/plan.h"
#include "memory/policy/recomputing/rerun_choice.h"
#include "profiler/cycle.h"

namespace chameleon::memory {

struct SavedPlan {
  std::uint64_t signature = 0; // of the cycle that it was made for
  std::uint64_t budget_bytes = 0;
  LinkModel link;                  // as it was taken to be
  std::int64_t headroom_level = 0; // what it leaves, see headroom_trial.h
  bool is_settled = false;         // it was compared with others
  Plan plan;                       // without shares
  Assignment assignment;           // what is run again; empty: nothing
};

class SavedPlans {
 public:
  SavedPlans() = default;
  SavedPlans(const SavedPlans& other);
  SavedPlans& operator=(const SavedPlans&) = delete;

  // Replaces the plan for the same cycle and budget: of those that only swap,
  // or of those that run ops again.
  void add(SavedPlan plan);
  // Hands over a plan that can be followed; nothing: none fits. `recompute`:
  // ops may be run again.
  std::optional<SavedPlan> take(std::uint64_t signature,
                                const profiler::Cycle& cycle,
                                std::uint64_t budget_bytes,
                                const LinkModel& link, bool recompute);
  std::size_t size() const;

  // As a file has them, with a checksum; and back, beside those there are.
  // kInvalidArgument, and nothing added, where it is no such text or damaged.
  std::string text() const;
  runtime::Result<std::size_t> addText(std::string_view text);

 private:
  void addLocked(SavedPlan plan);

  mutable runtime::RankedMutex<runtime::LockRank::kLog> mutex_; // of kLog
  std::vector<SavedPlan> plans_;                                // guarded by it
};

} // namespace chameleon::memory
