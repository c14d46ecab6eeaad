#include "memory/recompute/recomputer.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "backend/runtime/check.h"
#include "memory/phase_range.h"

namespace chameleon::memory {

using runtime::Error;
using runtime::Result;

constinit thread_local profiler::QuickToken Recomputer::quick_of_rerun = 0;

void Recomputer::record(CallState& call, std::unique_ptr<RecordedOp> op,
                        std::span<Block* const> created) {
  CHAMELEON_CHECK(call.active && call.wants_record && !call.rerun,
                  "record() of a call that is not to be recorded");
  for (const Block* const block : created) {
    const auto is_it = [=](const Block* each) { return each == block; };
    CHAMELEON_CHECK(call.adopted.findIf(is_it) < call.adopted.size(),
                    "a call created what it did not adopt");
  }
  const PagerLock locked(core_);
  core_.records.add(
      {call.pins.data(), call.pins.size()}, created, std::move(op), call.token,
      call.operand_bytes + std::max(call.peak_bytes, call.hole.layout.span()));
  table_.freeUnheld(locked);
}

bool Recomputer::drop(Block& block) {
  const PagerLock locked(core_);
  table_.drainReleased(locked);
  return block.state() == BlockState::kDropped ||
         residency_.drop(locked, block);
}

void Recomputer::dropAll() {
  const PagerLock locked(core_);
  table_.drainReleased(locked);
  for (Block* block = table_.firstLive(locked); block != nullptr;
       block = block->next_live) {
    if (block->lineage != nullptr) (void)residency_.drop(locked, *block);
  }
}

// Makes what is Dropped and would not fit() any more.
Error Recomputer::restoreBefore(std::size_t budget_bytes) {
  for (std::size_t made = 0, most = 0;; ++made) {
    Record* record = nullptr;
    std::size_t count = 0;
    {
      const PagerLock locked(core_);
      table_.drainReleased(locked);
      for (Block* block = table_.firstLive(locked); block != nullptr;
           block = block->next_live) {
        if (block->state() != BlockState::kDropped) continue;
        Record& maker = RecomputeRecords::makerOf(*block);
        if (Residency::fits(maker, budget_bytes)) continue;
        record = &maker;
        ++count;
      }
      if (record == nullptr) return {};
      if (made == 0) most = count;
      if (made > most) { // one is dropped for the other
        return {runtime::ErrorCode::kOutOfHostMemory,
                core_.name() + " out of memory. What was dropped has no place"};
      }
      RecomputeRecords::use(*record);
    }
    if (Error error = restore(*record, {}, "a lower hbm_budget")) return error;
  }
}

// Where the host could not take what is in HBM, and HBM is half full, all calls
// are recorded, so that there is something to drop when the host is full. It
// costs room: what a record reads is kept after its tensor died, until somebody
// needs its bytes. So it is not done where a plan is followed that the host has
// room for.
void Recomputer::noteHostUse(const Locked& /*locked*/) {
  if (!core_.limits.recompute && !host_short_) return;
  const std::size_t budget = core_.admission.budgetBytes();
  const std::size_t used = core_.arena->usedBytes();
  const HostPool& host = *core_.host_pool;
  // Of the budget; less once it is short, so that it does not flicker.
  bool is_short = core_.limits.recompute &&
                  host.budgetBytes() - host.usedBytes() < used &&
                  used > budget / (host_short_ ? 4 : 2);
  if (is_short) {
    const PlanPtr plan = core_.policy->plan();
    is_short =
        plan == nullptr || plan->modelled.away_bytes > host.budgetBytes();
  }
  if (is_short == host_short_) return;
  host_short_ = is_short;
  // Whether a call is recorded is asked under the lock: while all are, all come
  // for it.
  is_short ? core_.admission.close() : core_.admission.open();
}

// The last resort before "out of memory", where nothing can leave for the host.
// True: there is more room than before, in HBM or on the host.
bool Recomputer::giveUpForHost(const Locked& locked, std::size_t bytes) {
  return giveUpHeld(locked, bytes) ||
         dropWorst(locked, bytes, /*resident=*/true) ||
         dropWorst(locked, bytes, /*resident=*/false);
}

// Frees dead blocks that are held for what has its bytes: `bytes` or more, if
// there are.
bool Recomputer::giveUpHeld(const Locked& locked, std::size_t bytes) {
  std::vector<Block*> held;
  core_.records.findHeldInVain(held);
  std::size_t freed_bytes = 0;
  for (Block* const block : held) {
    if (freed_bytes >= bytes) break;
    const bool has_bytes =
        block->device != nullptr || block->host.extent != nullptr;
    const bool is_free = block->lineage->readers.empty(); // with another
    if (is_free || !has_bytes || block->pins() > 0 || block->claims > 0)
      continue;
    freed_bytes += block->rounded_bytes;
    core_.records.written(*block, /*extends=*/true);
  }
  table_.freeUnheld(locked);
  return freed_bytes > 0;
}

// Drops what is largest, was not used for longest and takes the fewest ops to
// make (dynamic tensor rematerialization): `bytes` or more, if it can.
bool Recomputer::dropWorst(const Locked& locked, std::size_t bytes,
                           bool resident) {
  struct Scored {
    Block* block;
    double score;
  };
  std::vector<Scored> candidates;
  const std::uint64_t now = core_.ticks.load(std::memory_order_relaxed);
  for (Block* block = table_.firstLive(locked); block != nullptr;
       block = block->next_live) {
    if (block->lineage == nullptr || block->lineage->maker == nullptr ||
        (block->state() == BlockState::kResident) != resident) {
      continue;
    }
    const auto idle = static_cast<double>(
        now + 1 - block->last_use_tick.load(std::memory_order_relaxed));
    const auto ops = static_cast<double>(block->lineage->maker->calls.size());
    candidates.push_back(
        {block, static_cast<double>(block->rounded_bytes) * idle / ops});
  }
  std::sort(candidates.begin(), candidates.end(),
            [](const Scored& a, const Scored& b) { return a.score > b.score; });
  std::size_t freed_bytes = 0;
  for (const auto& [block, score] : candidates) {
    if (freed_bytes >= bytes) break;
    if (residency_.drop(locked, *block)) freed_bytes += block->rounded_bytes;
  }
  return freed_bytes > 0;
}

Record* Recomputer::missing(const Locked& /*locked*/,
                            std::span<const Operand> operands) {
  for (const auto [block, access] : operands) {
    if (block->lineage == nullptr) continue;
    // mutant: re-run-first
    Record* const record = block->state() == BlockState::kDropped
                               ? &RecomputeRecords::makerOf(*block)
                           : writes(access) ? core_.records.dependent(*block)
                                            : nullptr;
    if (record == nullptr) continue;
    RecomputeRecords::use(*record);
    return record;
  }
  return nullptr;
}

Error Recomputer::restoreFor(PagerLock& locked, const Operand& operand,
                             std::string_view purpose) {
  while (Record* const record = missing(locked, {&operand, 1})) {
    locked.unlock();
    Error error = restore(*record, {&operand, 1}, purpose);
    locked.lock();
    if (error) return error;
  }
  return {};
}

// What a call needs beside may not be dropped in turn: it would never begin.
Error Recomputer::restore(Record& record, std::span<const Operand> operands,
                          std::string_view purpose) {
  {
    const PagerLock locked(core_);
    for (const Operand& operand : operands) ++operand.block->awaited;
  }
  Error error = restoreAll(record, purpose);
  const PagerLock locked(core_);
  for (const Operand& operand : operands) --operand.block->awaited;
  return error;
}

// Depth first, without recursion: chains may be long.
Error Recomputer::restoreAll(Record& record, std::string_view purpose) {
  std::vector<Record*> open{&record};
  Error error;
  while (!open.empty() && !error) {
    Record& next = *open.back();
    {
      const PagerLock locked(core_);
      if (!core_.records.needed(next)) {
        core_.records.stopUsing(next);
        open.pop_back();
        table_.freeUnheld(locked);
        continue;
      }
      if (Record* const deeper = RecomputeRecords::deeper(next)) {
        RecomputeRecords::use(*deeper);
        open.push_back(deeper);
        continue;
      }
    }
    error = rerun(next);
  }
  if (!error) return {};
  const PagerLock locked(core_);
  for (Record* const left : open) core_.records.stopUsing(*left);
  table_.freeUnheld(locked);
  return {error.code(), error.message() +
                            " (This op was to run again, to make an operand "
                            "of " +
                            std::string(purpose) + ".)"};
}

// REQUIRES: its operands have bytes, and cannot lose them.
Error Recomputer::rerun(Record& record) {
  const PhaseRange range("run again");
  Fresh fresh;
  fresh.outputs.resize(record.outputs.size());
  Error error = makeFresh(record, fresh);
  if (!error) error = runCalls(record, fresh);

  const PagerLock locked(core_);
  const bool needed = core_.records.needed(record);
  if (!error && needed) {
    for (std::size_t i = 0; i < record.outputs.size(); ++i) {
      Block* const block = record.outputs[i].block;
      if (block == nullptr || block->state() != BlockState::kDropped) continue;
      residency_.takeOver(locked, *block, *fresh.outputs[i]);
      table_.destroy(locked, *std::exchange(fresh.outputs[i], nullptr));
    }
    // It may have to be dropped once more.
    const bool again =
        host_short_ || (keeps_record_ != nullptr && keeps_record_());
    if (!again) core_.records.remove(record);
  }
  for (Block* const block : fresh.outputs) {
    if (block != nullptr) table_.destroy(locked, *block);
  }
  for (Block* const block : fresh.scratch) table_.destroy(locked, *block);
  table_.freeUnheld(locked);
  // Where somebody else made it all, or it is gone, nothing has failed.
  return needed ? std::move(error) : Error();
}

// Memory for what the first step overwrites, and for side effects.
Error Recomputer::makeFresh(const Record& record, Fresh& fresh) {
  const PagerLock locked(core_);
  Error error;
  const auto make = [&](std::size_t bytes) REQUIRES(pager_lock) -> Block* {
    Result<Block*> block =
        table_.newBlock(locked, bytes, ExtentMap::round(bytes));
    if (block.ok()) return *block;
    error = block.takeError();
    return nullptr;
  };
  for (std::size_t i = 0; i < record.outputs.size() && !error; ++i) {
    const std::size_t bytes = record.outputs[i].overwritten_bytes;
    if (bytes != 0) fresh.outputs[i] = make(bytes);
  }
  for (const Record::OpCall& op_call : record.calls) {
    for (const Record::Source& source : op_call.operands) {
      if (source.scratch_bytes == 0 || error) continue;
      if (Block* const block = make(source.scratch_bytes)) {
        fresh.scratch.push_back(block);
      }
    }
  }
  return error;
}

Error Recomputer::runCalls(const Record& record, Fresh& fresh) {
  std::vector<Block*> operands;
  std::vector<Block*> results;
  std::size_t scratch = 0;
  std::size_t output = 0;
  while (output < record.outputs.size() &&
         record.outputs[output].overwritten_bytes != 0) {
    ++output;
  }
  for (const Record::OpCall& op_call : record.calls) {
    operands.clear();
    for (const Record::Source& source : op_call.operands) {
      operands.push_back(source.block != nullptr ? source.block
                         : source.scratch_bytes != 0
                             ? fresh.scratch[scratch++]
                             : fresh.outputs[source.output]);
    }
    results.clear();
    quick_of_rerun = profiler::quick_half(op_call.token);
    Error error = op_call.op->run(operands, results);
    quick_of_rerun = 0;
    core_.counters.rerun_ops.fetch_add(1, std::memory_order_relaxed);
    if (error) {
      fresh.scratch.insert(fresh.scratch.end(), results.begin(), results.end());
      return error;
    }
    std::uint64_t bytes = 0;
    for (const Block* operand : operands) bytes += operand->bytes;
    for (Block* const result : results) {
      CHAMELEON_CHECK(output < record.outputs.size(),
                      "an op that ran again created more results");
      fresh.outputs[output++] = result;
      bytes += result->bytes;
    }
    CHAMELEON_CHECK(output == record.outputs.size(),
                    "an op that ran again created fewer results");
    // As an op takes by the samples: the device may not even have begun.
    core_.counters.rerun_ns.fetch_add(
        meter_.durations().op(op_call.token, bytes), std::memory_order_relaxed);
  }
  return {};
}

} // namespace chameleon::memory
