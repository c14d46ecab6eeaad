#include "memory/policy_control.h"

#include <memory>
#include <string>
#include <utility>

#include "memory/policy/make_policy.h"

namespace chameleon::memory {

using runtime::Error;
using runtime::Result;

Error PolicyControl::set(std::string_view name) {
  // Without the lock: plans may be made, or waited for.
  Result<std::unique_ptr<Policy>> made = make_policy(name, [this] {
    const PagerLock locked(core_);
    return plans_.policyInputs();
  }());
  if (!made.ok()) return made.takeError();
  std::unique_ptr<Policy> policy = std::move(*made);
  {
    const PagerLock locked(core_);
    policy->budgetChanged(core_.limits.hbm_budget_bytes);
    for (Block* block = table_.firstLive(locked); block != nullptr;
         block = block->next_live) {
      if (block->device == nullptr) continue;
      core_.policy->left(*block);
      policy->entered(*block);
    }
    std::swap(core_.policy, policy);
    core_.profiler.trustOperands(false); // the new one says anew
    meter_.restartWatch(locked);
  }
  policy.reset(); // it may have asked the gate until now
  const PagerLock locked(core_);
  plans_.policyChanged();
  return {};
}

Error PolicyControl::setRecompute(bool on) {
  std::string policy;
  {
    const PagerLock locked(core_);
    if (std::exchange(core_.limits.recompute, on) == on) return {};
    policy = core_.policy->name();
  }
  return set(policy); // another one, which knows
}

PolicyCosts PolicyControl::costs() const {
  const PagerLock locked(core_);
  return core_.policy->costs();
}

SavedPlans PolicyControl::savedPlans() const {
  SavedPlans plans(plans_.saved());
  const PagerLock locked(core_);
  core_.policy->savePlans(plans);
  return plans;
}

} // namespace chameleon::memory
