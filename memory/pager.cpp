// The pager's parts, put together; what is asked of several of them at once.
#include "memory/pager.h"

#include <algorithm>
#include <utility>

#include "backend/runtime/check.h"
#include "memory/policy/make_policy.h"
#include "memory/room/out_of_memory.h"

namespace chameleon::memory {

using runtime::Error;
using runtime::ErrorCode;
using runtime::Result;

// ---- construction ----------------------------------------------------------

Result<std::unique_ptr<Pager>> Pager::create(runtime::DeviceRuntime& runtime,
                                             const Limits& limits,
                                             std::string_view policy,
                                             int device_index) {
  Result<std::unique_ptr<LogicalSpace>> space = LogicalSpace::create(runtime);
  if (!space.ok()) return space.takeError();
  std::unique_ptr<Pager> pager(
      new Pager(runtime, limits, device_index, std::move(*space)));
  if (Error error = pager->open(policy)) return error;
  return pager;
}

Pager::Pager(runtime::DeviceRuntime& runtime, const Limits& limits,
             int device_index, std::unique_ptr<LogicalSpace> space)
    : core_(runtime, limits, device_index),
      meter_(core_),
      residency_(core_, meter_.timer()),
      table_(core_, residency_, this, std::move(space)),
      mirror_(core_, residency_, meter_.mirrorRate()),
      compaction_(core_, residency_),
      recomputer_(core_, meter_, residency_, table_),
      room_(core_, meter_, residency_, table_, compaction_, recomputer_),
      stress_(core_, residency_, table_, recomputer_, room_),
      memory_(core_, residency_, table_, room_),
      kernel_room_(core_, residency_, table_, compaction_, room_, memory_),
      overwrites_(core_, residency_),
      plans_(core_, meter_, residency_, table_, compaction_, room_),
      walker_(core_, residency_, table_, mirror_, memory_),
      pins_({.core = core_,
             .meter = meter_,
             .plans = plans_,
             .stress = stress_,
             .recomputer = recomputer_,
             .residency = residency_,
             .mirror = mirror_,
             .table = table_,
             .room = room_,
             .kernel_room = kernel_room_,
             .memory = memory_,
             .overwrites = overwrites_,
             .walker = walker_}),
      host_access_(core_, residency_, table_, mirror_, recomputer_, pins_),
      budgets_(core_, meter_, residency_, table_, compaction_, room_,
               recomputer_),
      policy_(core_, meter_, table_, plans_) {}

Error Pager::open(std::string_view policy) {
  Result<std::unique_ptr<Policy>> made =
      make_policy(policy, plans_.policyInputs());
  if (!made.ok()) return made.takeError();
  // Address space is free: enough for the largest budget there can be.
  const std::size_t range = std::max({core_.runtime.deviceMemory().total_bytes,
                                      core_.runtime.hostMemory().total_bytes,
                                      core_.limits.hbm_budget_bytes});
  Result<std::unique_ptr<Arena>> arena = Arena::create(
      core_.runtime, core_.streams, range, core_.admission.budgetBytes());
  if (!arena.ok()) return arena.takeError();
  Result<std::unique_ptr<HostPool>> host_pool = HostPool::create(
      core_.runtime, core_.streams, core_.limits.host_budget_bytes);
  if (!host_pool.ok()) return host_pool.takeError();
  core_.policy = std::move(*made);
  core_.arena = std::move(*arena);
  core_.host_pool = std::move(*host_pool);
  core_.host_pool->followMachine(core_.limits.host_growth_share);
  plans_.policyChanged();
  meter_.begin(runtime::kDefaultComputeStream);
  return {};
}

Pager::~Pager() {
  if (core_.policy != nullptr) { // else open() failed
    CHAMELEON_CHECK(core_.admission.load().calls == 0,
                    "a pager is destroyed while a call runs");
    const PagerLock locked(core_);
    // A failure means that the device is lost: nothing uses the memory then.
    (void)core_.streams.synchronizeAll().ok();
    table_.destroyAll(locked);
  }
  core_.policy.reset(); // it knows parts that go before the core
}

// ---- blocks ----------------------------------------------------------------

Result<Block*> Pager::createBlock(std::size_t bytes) {
  const PagerLock locked(core_);
  return table_.create(locked, bytes);
}

void Pager::recordUse(Block& block, runtime::Stream stream) {
  const StreamIndex index = core_.streams.indexOf(stream);
  const PagerLock locked(core_);
  core_.uses().stamp(block, core_.streams.advance(index));
}

Error Pager::begin(Call& call, runtime::Stream stream,
                   std::span<const Operand> operands, OpMemory* memory,
                   std::string_view op, bool may_retry,
                   const OpIdentity* identity) {
  const OpKind kind{.name = op, .memory = memory, .may_retry = may_retry};
  return begin(call, {kind, stream, operands, identity});
}

Result<BlockValue> Pager::mirror(const MirrorCopy& copy, BlockValue had,
                                 runtime::Stream stream) {
  if (mirror_.add(copy, had) == Mirror::Added::kInUse) {
    if (Error error = read(*copy.block, copy.offset, copy.destination,
                           copy.bytes, stream)) {
      return error;
    }
  }
  return had;
}

// ---- on request ------------------------------------------------------------

Error Pager::evict(Block& block) {
  const PagerLock locked(core_);
  table_.drainReleased(locked);
  residency_.settle(locked, block);
  if (block.device == nullptr) return {};
  Shortage shortage;
  switch (residency_.evict(locked, block, shortage)) {
    case Residency::Evicted::kDone:
      return {};
    case Residency::Evicted::kBusy:
      return {
          ErrorCode::kInvalidArgument,
          core_.name() + ": a tensor that a running op uses cannot be evicted"};
    case Residency::Evicted::kHostFull:
      shortage.host_full = true;
      break;
    case Residency::Evicted::kFailed:
      break;
  }
  return eviction_error(locked, core_, shortage);
}

Error Pager::evictAll() {
  const PagerLock locked(core_);
  table_.drainReleased(locked);
  Shortage shortage;
  while (room_.evictNext(locked, shortage)) {
  }
  return eviction_error(locked, core_, shortage);
}

Error Pager::synchronize() {
  if (Error error = core_.streams.synchronizeAll()) return error;
  meter_.timer().collect();
  const PagerLock locked(core_);
  for (Block* block = table_.firstLive(locked); block != nullptr;
       block = block->next_live) {
    residency_.settle(locked, *block);
  }
  return {};
}

void Pager::trim() {
  const PagerLock locked(core_);
  table_.drainReleased(locked);
  table_.giveBackSpares(locked);
  core_.host_pool->trim();
}

// ---- figures ---------------------------------------------------------------

Pager::Levels Pager::levels() const noexcept {
  return {table_.logicalBytes(), table_.logicalRoundedBytes(),
          table_.residentBytes(),
          core_.used_bytes.host.load(std::memory_order_relaxed)};
}

std::vector<Pager::BlockInfo> Pager::blocks() {
  const PagerLock locked(core_);
  std::vector<BlockInfo> rows;
  for (const Block* block = table_.firstLive(locked); block != nullptr;
       block = block->next_live) {
    if (block->isReleased()) continue;
    rows.push_back({block->identity, block->logical_address, block->bytes,
                    block->rounded_bytes, block->state()});
  }
  return rows;
}

Stats Pager::stats() {
  const PagerLock locked(core_);
  table_.drainReleased(locked);
  const auto bytes = [](std::size_t value) {
    return static_cast<std::int64_t>(value);
  };
  const Counters& counters = core_.counters;
  Stats stats;
  stats.logical_bytes = bytes(table_.logicalBytes());
  stats.peak_logical_bytes = counters.peak_logical_bytes.load();
  stats.resident_bytes = bytes(table_.residentNow(locked));
  stats.peak_resident_bytes = bytes(counters.peak_resident_bytes.load());
  stats.host_bytes = bytes(core_.host_pool->usedBytes());
  stats.host_reserved_bytes = bytes(core_.host_pool->reservedBytes());
  stats.peak_host_bytes = bytes(core_.host_pool->peakUsedBytes());
  stats.hbm_budget = bytes(core_.limits.hbm_budget_bytes);
  stats.host_budget = bytes(core_.host_pool->budgetBytes());
  stats.faults = counters.faults.load();
  stats.evictions = counters.evictions.load();
  stats.clean_evictions = counters.clean_evictions.load();
  stats.bytes_in = counters.bytes_in.load();
  stats.bytes_out = counters.bytes_out.load();
  stats.mirrored_bytes = counters.mirrored_bytes.load();
  stats.prefetched_bytes = counters.prefetched_bytes.load();
  stats.prefetch_hits = counters.prefetch_hits.load();
  const runtime::ComputeTimes times = core_.runtime.computeTimes();
  stats.stall_ns = core_.runtime.modelsTime()
                       ? times.stalled_ns - counters.times_base.stalled_ns
                       : counters.stall_ns.load();
  stats.compute_ns = times.busy_ns - counters.times_base.busy_ns;
  stats.host_waits =
      bytes(core_.admission.waits()) - counters.host_waits_base.load();
  stats.ops =
      static_cast<std::int64_t>(core_.ticks.load()) - counters.ops_base.load();
  const profiler::RunCounts run = core_.profiler.counts();
  const profiler::RunCounts& base = counters.run_base;
  stats.steps = static_cast<std::int64_t>(run.steps - base.steps);
  stats.forecast_misses =
      static_cast<std::int64_t>(run.forecast_misses - base.forecast_misses);
  stats.forecast_hits =
      static_cast<std::int64_t>(run.ops - base.ops) - stats.forecast_misses;
  stats.compactions = counters.compactions.load();
  stats.pinned_bytes = bytes(room_.pinnedBytes(locked));
  stats.foreign_bytes = bytes(core_.arena->foreignBytes());
  stats.held_bytes = bytes(core_.records.heldBytes());
  stats.dropped_bytes = counters.dropped_bytes.load();
  stats.rerun_ops = counters.rerun_ops.load();
  stats.rerun_ns = counters.rerun_ns.load();
  stats.commits = bytes(core_.arena->range().commits() - counters.commits_base);
  const runtime::TransferGaps gaps = core_.runtime.transferGaps();
  const runtime::TransferGaps& gaps_base = counters.gaps_base;
  stats.pinning_refusals =
      bytes(gaps.pinning_refusals - gaps_base.pinning_refusals);
  stats.pageable_bytes = bytes(gaps.pageable_bytes - gaps_base.pageable_bytes);
  stats.batch_refusals = bytes(gaps.batch_refusals - gaps_base.batch_refusals);
  return stats;
}

void Pager::resetStats() {
  const PagerLock locked(core_);
  meter_.rebase(locked);
  Counters& counters = core_.counters;
  counters.run_base = core_.profiler.counts();
  for (std::atomic<std::int64_t>* counter :
       {&counters.faults, &counters.evictions, &counters.clean_evictions,
        &counters.bytes_in, &counters.bytes_out, &counters.mirrored_bytes,
        &counters.mirror_bytes_out, &counters.prefetched_bytes,
        &counters.prefetch_hits, &counters.stall_ns, &counters.compactions,
        &counters.dropped_bytes, &counters.rerun_ops, &counters.rerun_ns}) {
    counter->store(0, std::memory_order_relaxed);
  }
  counters.times_base = core_.runtime.computeTimes();
  counters.gaps_base = core_.runtime.transferGaps();
  counters.commits_base = core_.arena->range().commits();
  counters.ops_base = static_cast<std::int64_t>(core_.ticks.load());
  counters.host_waits_base = static_cast<std::int64_t>(core_.admission.waits());
  counters.peak_logical_bytes =
      static_cast<std::int64_t>(table_.logicalBytes());
  counters.peak_resident_bytes = table_.residentNow(locked);
  core_.host_pool->resetPeak();
}

} // namespace chameleon::memory
