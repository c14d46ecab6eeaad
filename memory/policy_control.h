// Which policy a pager follows: another one while it runs, what it has cost,
// and plans that outlive the process.
//
// Tests: pager_test.cpp, forecast_policy_test.cpp.
//
// Thread safety: every method may be called from any thread. They take the
// pager's lock; set() and setRecompute() give it up while plans may be made or
// waited for.
#pragma once

#include <cstddef>
#include <string_view>

#include "memory/block_table.h"
#include "memory/figures/meter.h"
#include "memory/pager_core.h"
#include "memory/plan_runner.h"

namespace chameleon::memory {

class PolicyControl {
 public:
  // REQUIRES: all outlive it.
  PolicyControl(PagerCore& core, Meter& meter, BlockTable& table,
                PlanRunner& plans)
      : core_(core), meter_(meter), table_(table), plans_(plans) {}

  // kInvalidArgument: there is none of that name.
  runtime::Error set(std::string_view name);
  // Plans may drop blocks and run ops again in place of moving bytes; off by
  // default. What was dropped comes back all the same.
  runtime::Error setRecompute(bool on);

  PolicyCosts costs() const;
  // The plans found so far, and those that were loaded and did not fit yet.
  SavedPlans savedPlans() const;
  // Plans of an earlier run, followed where they fit (saved_plans.h). Their
  // number, or why this is no text of theirs.
  runtime::Result<std::size_t> loadPlans(std::string_view text) {
    return plans_.saved().addText(text);
  }

 private:
  PagerCore& core_;
  Meter& meter_;
  BlockTable& table_;
  PlanRunner& plans_;
};

} // namespace chameleon::memory
