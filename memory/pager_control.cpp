// Construction, limits, statistics.
#include <algorithm>
#include <utility>

#include "backend/runtime/check.h"
#include "backend/runtime/options.h"
#include "memory/pager_impl.h"

namespace chameleon::memory {

using runtime::Error;
using runtime::ErrorCode;
using runtime::format_bytes;

namespace {

// oversubscription x budget, as far as a size_t goes.
std::size_t scaled(double factor, std::size_t bytes) {
  const double product = factor * static_cast<double>(bytes);
  constexpr double kMax = 9.0e18;
  return static_cast<std::size_t>(std::min(product, kMax));
}

std::size_t round_down(std::size_t bytes) {
  return bytes / ExtentMap::kAlignment * ExtentMap::kAlignment;
}

Error copy_of(const Error& error) { return {error.code(), error.message()}; }

} // namespace

PagerImpl::PagerImpl(Pager& owner, runtime::DeviceRuntime& runtime,
                     const Limits& limits, int device_index)
    : owner_(owner),
      runtime_(runtime),
      device_index_(device_index),
      checks_callers_(runtime.checksCallers()),
      timelines_(runtime),
      timer_(runtime, durations_, timeline_),
      link_(durations_, runtime.link()),
      transfers_(runtime, timelines_, timer_),
      admission_(mutex_, round_down(limits.hbm_budget_bytes)),
      logical_limit_(scaled(limits.oversubscription, limits.hbm_budget_bytes)),
      limits_(limits),
      meter_(runtime),
      watch_(device_index) {}

Error PagerImpl::open(std::string_view policy) {
  runtime::Result<std::unique_ptr<Policy>> made =
      make_policy(policy, policyInputs());
  if (!made.ok()) return made.takeError();
  policy_ = std::move(*made);
  if (policy_->plansAhead()) gate_.ask();
  runtime::Result<std::unique_ptr<LogicalSpace>> space =
      LogicalSpace::create(runtime_);
  if (!space.ok()) return space.takeError();
  logical_space_ = std::move(*space);
  // Address space is free: enough for the largest budget there can be.
  const std::size_t range =
      std::max({runtime_.deviceMemory().total_bytes,
                runtime_.hostMemory().total_bytes, limits_.hbm_budget_bytes});
  runtime::Result<std::unique_ptr<Arena>> arena =
      Arena::create(runtime_, timelines_, range, admission_.budgetBytes());
  if (!arena.ok()) return arena.takeError();
  arena_ = std::move(*arena);
  host_pool_ = std::make_unique<HostPool>(runtime_, timelines_,
                                          limits_.host_budget_bytes);
  host_pool_->followMachine(limits_.host_growth_share);
  meter_.begin(runtime::kDefaultComputeStream);
  return {};
}

PagerImpl::~PagerImpl() {
  if (host_pool_ == nullptr) return; // open() failed
  CHAMELEON_CHECK(admission_.load().calls == 0,
                  "a pager is destroyed while a call runs");
  const Lock lock(*this);
  // A failure means that the device is lost: nothing uses the memory then.
  (void)timelines_.synchronizeAll().ok();
  released_.store(nullptr, std::memory_order_relaxed); // they are live_ too
  recreation_.clear();
  while (live_ != nullptr) destroy(*live_);
  while (recycled_ != nullptr) {
    delete std::exchange(recycled_, recycled_->next_live);
  }
}

std::string PagerImpl::name() const {
  return "chameleon:" + std::to_string(device_index_);
}

// ---- limits --------------------------------------------------------------

Error PagerImpl::setHbmBudget(std::size_t bytes) {
  Error error = restoreBefore(round_down(bytes));
  if (error && (error.code() == ErrorCode::kOutOfDeviceMemory ||
                error.code() == ErrorCode::kOutOfHostMemory)) {
    return {ErrorCode::kInvalidArgument,
            "torch_chameleon.config.hbm_budget = " + format_bytes(bytes) +
                " is too low: a tensor was dropped whose op does not fit into "
                "that, and it cannot be made again before: " +
                error.message()};
  }
  if (error) return error;
  Lock lock(*this);
  const bool done = serve(lock, /*exclusive=*/false, [&](bool) {
    drainReleased();
    giveBackSpares();
    return tryHbmBudget(bytes, error);
  });
  if (done) {
    watch_.restart();
    return {};
  }
  if (error) return error;
  return {ErrorCode::kInvalidArgument,
          "torch_chameleon.config.hbm_budget = " + format_bytes(bytes) +
              " is too low: pinned memory lies above that border and cannot "
              "be moved (pinned " +
              format_bytes(pinnedBytes()) + ")"};
}

PagerImpl::Attempt PagerImpl::tryHbmBudget(std::size_t bytes, Error& error) {
  const auto refuse = [&](const std::string& why) {
    error = Error(ErrorCode::kInvalidArgument,
                  "torch_chameleon.config.hbm_budget = " + format_bytes(bytes) +
                      " " + why);
    return Attempt::kFailed;
  };
  if (bytes > arena_->rangeBytes()) {
    return refuse("is more than the device can have; at most " +
                  format_bytes(arena_->rangeBytes()));
  }
  const std::size_t live = logical_bytes_.load(std::memory_order_relaxed);
  if (live > scaled(limits_.oversubscription, bytes)) {
    return refuse("is too low: " + format_bytes(live) +
                  " of tensors are live and the limit would be " +
                  format_bytes(scaled(limits_.oversubscription, bytes)) +
                  " (oversubscription x hbm_budget)");
  }
  // With the gate closed and the budget in force no call can pin past it.
  const std::size_t old = admission_.budgetBytes();
  const std::size_t budget = round_down(bytes);
  admission_.close();
  admission_.setBudget(budget);
  Shortage shortage;
  const std::size_t pinned = pinnedBytes();
  bool fits = pinned <= budget;
  while (fits && arena_->usedBytes() > budget) fits = evictNext(shortage);
  if (fits && !arena_->setBudget(budget)) {
    // What is in use lies too high: slide it down, evict what stays above.
    slideAll(shortage);
    Extent* extent = arena_->extents().first();
    while (extent != nullptr) {
      Extent* const next = extent->next;
      if (extent->use == ExtentUse::kBlock &&
          extent->offset + extent->bytes > budget) {
        if (evict(*extent->block, shortage) == Evicted::kDone) {
          extent = arena_->extents().first(); // neighbours may be one now
          continue;
        }
      }
      extent = next;
    }
    fits = arena_->setBudget(budget);
  }
  if (!fits) admission_.setBudget(old);
  admission_.open();
  if (fits) {
    limits_.hbm_budget_bytes = bytes;
    logical_limit_.store(scaled(limits_.oversubscription, bytes),
                         std::memory_order_relaxed);
    policy_->budgetChanged(bytes);
    admission_.wakeLocked(); // there may be more room now
    return Attempt::kDone;
  }
  if (pinned > budget) {
    return refuse("is too low: " + format_bytes(pinned) +
                  " are pinned by running ops or held outside of tensors");
  }
  if (shortage.failure) {
    error = std::move(shortage.failure);
    return Attempt::kFailed;
  }
  if (const Error& failure = arena_->lastError()) {
    error = copy_of(failure);
    return Attempt::kFailed;
  }
  if (shortage.host_full) {
    return refuse("is too low: the host budget of " +
                  format_bytes(host_pool_->budgetBytes()) +
                  " cannot take what would have to leave HBM; raise "
                  "torch_chameleon.config.host_budget");
  }
  return Attempt::kLater; // when the calls that pin have ended
}

Error PagerImpl::setHostBudget(std::size_t bytes, double growth_share) {
  const Lock lock(*this);
  drainReleased();
  while (!host_pool_->setBudget(bytes)) {
    if (dropOldestHostCopy()) continue;
    return {ErrorCode::kInvalidArgument,
            "torch_chameleon.config.host_budget = " + format_bytes(bytes) +
                " is too low: evicted tensors use " +
                format_bytes(host_pool_->usedBytes()) + " in " +
                format_bytes(host_pool_->reservedBytes()) + " of host memory"};
  }
  host_pool_->followMachine(growth_share);
  limits_.host_growth_share = growth_share;
  admission_.wakeLocked();
  return {};
}

Error PagerImpl::setOversubscription(double factor) {
  const Lock lock(*this);
  const std::size_t live = logical_bytes_.load(std::memory_order_relaxed);
  if (!(factor > 0)) {
    return {ErrorCode::kInvalidArgument,
            "torch_chameleon.config.oversubscription = " +
                std::to_string(factor) + " is not allowed; it must be > 0"};
  }
  const std::size_t limit = scaled(factor, limits_.hbm_budget_bytes);
  if (live > limit) {
    return {ErrorCode::kInvalidArgument,
            "torch_chameleon.config.oversubscription = " +
                std::to_string(factor) + " is too low: " + format_bytes(live) +
                " of tensors are live and the limit would be " +
                format_bytes(limit) + " (oversubscription x hbm_budget)"};
  }
  limits_.oversubscription = factor;
  logical_limit_.store(limit, std::memory_order_relaxed);
  return {};
}

Error PagerImpl::setPolicy(std::string_view name) {
  // Without the lock: plans may be made, or waited for.
  runtime::Result<std::unique_ptr<Policy>> made = make_policy(name, [this] {
    const Lock lock(*this);
    return policyInputs();
  }());
  if (!made.ok()) return made.takeError();
  std::unique_ptr<Policy> policy = std::move(*made);
  {
    const Lock lock(*this);
    policy->budgetChanged(limits_.hbm_budget_bytes);
    for (Block* block = live_; block != nullptr; block = block->next_live) {
      if (block->device == nullptr) continue;
      policy_->left(*block);
      policy->entered(*block);
    }
    std::swap(policy_, policy);
    profiler_.trustOperands(false); // the new one says anew
    watch_.restart();
  }
  policy.reset();
  const Lock lock(*this);
  policy_->plansAhead() ? gate_.ask() : gate_.close();
  return {};
}

Error PagerImpl::setRecompute(bool on) {
  std::string policy;
  {
    const Lock lock(*this);
    if (std::exchange(recompute_, on) == on) return {};
    policy = policy_->name();
  }
  return setPolicy(policy); // another one, which knows
}

Limits PagerImpl::limits() const {
  const Lock lock(*this);
  Limits now = limits_;
  now.host_budget_bytes = host_pool_->budgetBytes();
  return now;
}

// ---- on request ------------------------------------------------------------

Error PagerImpl::evictBlock(Block& block) {
  const Lock lock(*this);
  drainReleased();
  settle(block);
  if (block.device == nullptr) return {};
  Shortage shortage;
  switch (evict(block, shortage)) {
    case Evicted::kDone:
      return {};
    case Evicted::kBusy:
      return {ErrorCode::kInvalidArgument,
              name() + ": a tensor that a running op uses cannot be evicted"};
    case Evicted::kHostFull:
      shortage.host_full = true;
      break;
    case Evicted::kFailed:
      break;
  }
  return evictionError(shortage);
}

Error PagerImpl::evictAll() {
  const Lock lock(*this);
  drainReleased();
  Shortage shortage;
  while (evictNext(shortage)) {
  }
  return evictionError(shortage);
}

Error PagerImpl::evictionError(Shortage& shortage) const {
  if (shortage.failure) return std::move(shortage.failure);
  if (!shortage.host_full) return {};
  return {ErrorCode::kOutOfHostMemory,
          name() + " out of memory. Evicted tensors use " +
              format_bytes(host_pool_->usedBytes()) + " of the host budget " +
              format_bytes(host_pool_->budgetBytes()) +
              " and another does not fit. Raise "
              "torch_chameleon.config.host_budget"};
}

Error PagerImpl::synchronize() {
  if (Error error = timelines_.synchronizeAll()) return error;
  timer_.collect();
  const Lock lock(*this);
  for (Block* block = live_; block != nullptr; block = block->next_live) {
    settle(*block);
  }
  return {};
}

void PagerImpl::trim() {
  const Lock lock(*this);
  drainReleased();
  giveBackSpares();
  host_pool_->trim();
}

void PagerImpl::setStress(Pager::Stress stress, std::uint64_t seed) {
  const Lock lock(*this);
  const bool was = everyCallLocks();
  stress_ = stress;
  updateGate(was);
  stress_random_.seed(seed);
}

// Whether every call has to come for the lock.
void PagerImpl::updateGate(bool was) {
  if (everyCallLocks() && !was) admission_.close();
  if (was && !everyCallLocks()) admission_.open();
}

// ---- statistics ----------------------------------------------------------

std::size_t PagerImpl::pinnedBytes() const noexcept {
  std::size_t bytes = 0;
  for (const Extent* extent = arena_->extents().first(); extent != nullptr;
       extent = extent->next) {
    const bool pinned =
        extent->use == ExtentUse::kInCall ||
        extent->use == ExtentUse::kForeign ||
        (extent->use == ExtentUse::kBlock && extent->block->pins() > 0);
    if (pinned) bytes += extent->bytes;
  }
  return bytes;
}

Pager::Levels PagerImpl::levels() const noexcept {
  return {logical_bytes_.load(std::memory_order_relaxed),
          logical_rounded_bytes_.load(std::memory_order_relaxed),
          residentBytes(), host_bytes_.load(std::memory_order_relaxed)};
}

std::vector<Pager::BlockInfo> PagerImpl::blocks() {
  const Lock lock(*this);
  std::vector<Pager::BlockInfo> rows;
  for (const Block* block = live_; block != nullptr; block = block->next_live) {
    if (block->released_at.load(std::memory_order_relaxed) != Block::kAlive) {
      continue;
    }
    rows.push_back({block->identity, block->logical_address, block->bytes,
                    block->rounded_bytes, block->state()});
  }
  return rows;
}

Stats PagerImpl::stats() {
  const Lock lock(*this);
  drainReleased();
  const auto bytes = [](std::size_t value) {
    return static_cast<std::int64_t>(value);
  };
  Stats stats;
  stats.logical_bytes = bytes(logical_bytes_.load());
  stats.peak_logical_bytes = counters_.peak_logical_bytes.load();
  stats.resident_bytes = bytes(residentNow());
  stats.peak_resident_bytes = bytes(counters_.peak_resident_bytes.load());
  stats.host_bytes = bytes(host_pool_->usedBytes());
  stats.peak_host_bytes = bytes(host_pool_->peakUsedBytes());
  stats.hbm_budget = bytes(limits_.hbm_budget_bytes);
  stats.host_budget = bytes(host_pool_->budgetBytes());
  stats.faults = counters_.faults.load();
  stats.evictions = counters_.evictions.load();
  stats.clean_evictions = counters_.clean_evictions.load();
  stats.bytes_in = counters_.bytes_in.load();
  stats.bytes_out = counters_.bytes_out.load();
  stats.prefetched_bytes = counters_.prefetched_bytes.load();
  stats.prefetch_hits = counters_.prefetch_hits.load();
  const runtime::ComputeTimes times = runtime_.computeTimes();
  stats.stall_ns = runtime_.modelsTime()
                       ? times.stalled_ns - counters_.times_base.stalled_ns
                       : counters_.stall_ns.load();
  stats.compute_ns = times.busy_ns - counters_.times_base.busy_ns;
  stats.host_waits =
      bytes(admission_.waits()) - counters_.host_waits_base.load();
  stats.ops =
      static_cast<std::int64_t>(ticks_.load()) - counters_.ops_base.load();
  const profiler::RunCounts run = profiler_.counts();
  const profiler::RunCounts& base = counters_.run_base;
  stats.steps = static_cast<std::int64_t>(run.steps - base.steps);
  stats.forecast_misses =
      static_cast<std::int64_t>(run.forecast_misses - base.forecast_misses);
  stats.forecast_hits =
      static_cast<std::int64_t>(run.ops - base.ops) - stats.forecast_misses;
  stats.compactions = counters_.compactions.load();
  stats.pinned_bytes = bytes(pinnedBytes());
  stats.foreign_bytes = bytes(arena_->foreignBytes());
  stats.held_bytes = bytes(recreation_.heldBytes());
  stats.dropped_bytes = counters_.dropped_bytes.load();
  stats.rerun_ops = counters_.rerun_ops.load();
  stats.rerun_ns = counters_.rerun_ns.load();
  stats.commits = bytes(arena_->commits() - counters_.commits_base);
  const runtime::TransferGaps gaps = runtime_.transferGaps();
  const runtime::TransferGaps& gaps_base = counters_.gaps_base;
  stats.pinning_refusals =
      bytes(gaps.pinning_refusals - gaps_base.pinning_refusals);
  stats.pageable_bytes = bytes(gaps.pageable_bytes - gaps_base.pageable_bytes);
  stats.batch_refusals = bytes(gaps.batch_refusals - gaps_base.batch_refusals);
  return stats;
}

void PagerImpl::resetStats() {
  const Lock lock(*this);
  meter_.rebase(stepCounts());
  counters_.run_base = profiler_.counts();
  for (std::atomic<std::int64_t>* counter :
       {&counters_.faults, &counters_.evictions, &counters_.clean_evictions,
        &counters_.bytes_in, &counters_.bytes_out, &counters_.prefetched_bytes,
        &counters_.prefetch_hits, &counters_.stall_ns, &counters_.compactions,
        &counters_.dropped_bytes, &counters_.rerun_ops, &counters_.rerun_ns}) {
    counter->store(0, std::memory_order_relaxed);
  }
  counters_.times_base = runtime_.computeTimes();
  counters_.gaps_base = runtime_.transferGaps();
  counters_.commits_base = arena_->commits();
  counters_.ops_base = static_cast<std::int64_t>(ticks_.load());
  counters_.host_waits_base = static_cast<std::int64_t>(admission_.waits());
  counters_.peak_logical_bytes =
      static_cast<std::int64_t>(logical_bytes_.load());
  counters_.peak_resident_bytes = residentNow();
  host_pool_->resetPeak();
}

} // namespace chameleon::memory
