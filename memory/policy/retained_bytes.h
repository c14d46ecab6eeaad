// What a step has to retain, whatever the plan, and what becomes of it under
// one.
//
// Thread safety: const methods may be called from any thread.
#pragma once

#include <vector>

#include "memory/policy/plan/plan.h"
#include "memory/policy/plan/plan_shares.h"
#include "memory/policy/recomputing/rerun_graph.h"
#include "profiler/cycle.h"

namespace chameleon::memory {

class RetainedBytes {
 public:
  explicit RetainedBytes(const profiler::Cycle& cycle);
  // REQUIRES: a plan for the same cycle, which is still there.
  PlanShares under(const Plan& plan) const;

 private:
  const profiler::Cycle& cycle_;
  RerunGraph graph_;
  std::vector<PlanShares::Layer> layers_; // ascending; without shares
};

} // namespace chameleon::memory
