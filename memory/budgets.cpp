#include "memory/budgets.h"

#include <string>
#include <utility>

#include "backend/runtime/byte_size.h"

namespace chameleon::memory {

using runtime::Error;
using runtime::ErrorCode;
using runtime::format_bytes;

Error Budgets::setHbmBudget(std::size_t bytes) {
  Error error = recomputer_.restoreBefore(ExtentMap::roundDown(bytes));
  if (error && (error.code() == ErrorCode::kOutOfDeviceMemory ||
                error.code() == ErrorCode::kOutOfHostMemory)) {
    return {ErrorCode::kInvalidArgument,
            "torch_chameleon.config.hbm_budget = " + format_bytes(bytes) +
                " is too low: a tensor was dropped whose op does not fit into "
                "that, and it cannot be made again before: " +
                error.message()};
  }
  if (error) return error;
  PagerLock locked(core_);
  const bool done = core_.admission.serve(
      locked.base(), /*exclusive=*/false, CallState::of_thread == 0,
      [&](bool) REQUIRES(pager_lock) {
        table_.drainReleased(locked);
        table_.giveBackSpares(locked);
        return tryHbmBudget(locked, bytes, error);
      });
  if (done) {
    meter_.restartWatch(locked);
    return {};
  }
  if (error) return error;
  return {ErrorCode::kInvalidArgument,
          "torch_chameleon.config.hbm_budget = " + format_bytes(bytes) +
              " is too low: pinned memory lies above that border and cannot "
              "be moved (pinned " +
              format_bytes(room_.pinnedBytes(locked)) + ")"};
}

Admission::Attempt Budgets::tryHbmBudget(const Locked& locked,
                                         std::size_t bytes, Error& error) {
  const auto refuse = [&](const std::string& why) {
    error = Error(ErrorCode::kInvalidArgument,
                  "torch_chameleon.config.hbm_budget = " + format_bytes(bytes) +
                      " " + why);
    return Admission::Attempt::kFailed;
  };
  if (bytes > core_.arena->range().bytes()) {
    return refuse("is more than the device can have; at most " +
                  format_bytes(core_.arena->range().bytes()));
  }
  const std::size_t live = table_.logicalBytes();
  if (live > logical_limit_bytes(core_.limits, bytes)) {
    return refuse("is too low: " + format_bytes(live) +
                  " of tensors are live and the limit would be " +
                  format_bytes(logical_limit_bytes(core_.limits, bytes)) +
                  " (oversubscription x hbm_budget)");
  }
  // With the gate closed and the budget in force no call can pin past it.
  const std::size_t old = core_.admission.budgetBytes();
  const std::size_t budget = ExtentMap::roundDown(bytes);
  core_.admission.close();
  core_.admission.setBudget(budget);
  Shortage shortage;
  const std::size_t pinned = room_.pinnedBytes(locked);
  const bool fits = pinned <= budget && shrinkTo(locked, budget, shortage);
  if (!fits) core_.admission.setBudget(old);
  core_.admission.open();
  if (fits) {
    core_.limits.hbm_budget_bytes = bytes;
    table_.setLogicalLimit(logical_limit_bytes(core_.limits, bytes));
    core_.policy->budgetChanged(bytes);
    core_.admission.wakeLocked(); // there may be more room now
    return Admission::Attempt::kDone;
  }
  if (pinned > budget) {
    return refuse("is too low: " + format_bytes(pinned) +
                  " are pinned by running ops or held outside of tensors");
  }
  if (shortage.failure) {
    error = std::move(shortage.failure);
    return Admission::Attempt::kFailed;
  }
  if (const Error& failure = core_.arena->lastError()) {
    error = Error(failure.code(), failure.message());
    return Admission::Attempt::kFailed;
  }
  if (shortage.host_full) {
    return refuse("is too low: the host budget of " +
                  format_bytes(core_.host_pool->budgetBytes()) +
                  " cannot take what would have to leave HBM; raise "
                  "torch_chameleon.config.host_budget");
  }
  return Admission::Attempt::kLater; // when the calls that pin have ended
}

Error Budgets::setHostBudget(std::size_t bytes, double growth_share) {
  Error failure;
  PagerLock locked(core_);
  const bool done = core_.admission.serve(
      locked.base(), /*exclusive=*/false, CallState::of_thread == 0,
      [&](bool) REQUIRES(pager_lock) {
        table_.drainReleased(locked);
        return tryHostBudget(locked, bytes, failure);
      });
  if (done) {
    core_.host_pool->followMachine(growth_share);
    core_.limits.host_growth_share = growth_share;
    core_.admission.wakeLocked();
    return {};
  }
  if (failure) return failure;
  return {ErrorCode::kInvalidArgument,
          "torch_chameleon.config.host_budget = " + format_bytes(bytes) +
              " is too low: evicted tensors use " +
              format_bytes(core_.host_pool->usedBytes()) + " of host memory"};
}

Admission::Attempt Budgets::tryHostBudget(const Locked& locked,
                                          std::size_t bytes, Error& failure) {
  HostPool& pool = *core_.host_pool;
  const std::size_t usable = pool.usableBytes(bytes);
  while (pool.usedBytes() > usable &&
         residency_.host().freeOldestCopy(locked)) {
  }
  // What calls in flight have on the host may go, or be moved, when they end.
  if (pool.usedBytes() > usable) return Admission::Attempt::kLater;
  if (pool.setBudget(bytes)) return Admission::Attempt::kDone;
  if (pool.lastError().ok() && residency_.host().packDown(locked) &&
      pool.setBudget(bytes)) {
    return Admission::Attempt::kDone;
  }
  if (const Error& error = pool.lastError()) {
    failure = Error(error.code(), error.message());
    return Admission::Attempt::kFailed;
  }
  return Admission::Attempt::kLater;
}

Error Budgets::setOversubscription(double factor, double live_fraction) {
  const PagerLock locked(core_);
  const std::size_t live = table_.logicalBytes();
  if (!(factor > 0)) {
    return {ErrorCode::kInvalidArgument,
            "torch_chameleon.config.oversubscription = " +
                std::to_string(factor) + " is not allowed; it must be > 0"};
  }
  Limits limits = core_.limits;
  limits.oversubscription = factor;
  limits.live_fraction = live_fraction;
  const std::size_t limit =
      logical_limit_bytes(limits, limits.hbm_budget_bytes);
  if (live > limit) {
    return {ErrorCode::kInvalidArgument,
            "torch_chameleon.config.oversubscription = " +
                std::to_string(factor) + " is too low: " + format_bytes(live) +
                " of tensors are live and the limit would be " +
                format_bytes(limit) + " (oversubscription x hbm_budget)"};
  }
  core_.limits = limits;
  table_.setLogicalLimit(limit);
  return {};
}

Limits Budgets::limits() const {
  const PagerLock locked(core_);
  Limits now = core_.limits;
  now.host_budget_bytes = core_.host_pool->budgetBytes();
  return now;
}

// What is in use fits below that border from then on, or stays as it is.
bool Budgets::shrinkTo(const Locked& locked, std::size_t budget_bytes,
                       Shortage& shortage) {
  while (core_.arena->usedBytes() > budget_bytes) {
    if (!room_.evictNext(locked, shortage)) return false;
  }
  if (core_.arena->setBudget(budget_bytes)) return true;
  // What is in use lies too high: slide it down, evict what stays above.
  compaction_.packDown(locked, shortage);
  Extent* extent = core_.arena->extents().first();
  while (extent != nullptr) {
    Extent* const next = extent->next;
    if (extent->use == ExtentUse::kBlock &&
        extent->offset + extent->bytes > budget_bytes &&
        residency_.evict(locked, *extent->block, shortage) ==
            Residency::Evicted::kDone) {
      extent = core_.arena->extents().first(); // neighbours may be one now
      continue;
    }
    extent = next;
  }
  return core_.arena->setBudget(budget_bytes);
}

} // namespace chameleon::memory
