// Blocks whose bytes are nowhere: giving bytes up, and running the ops again
// that made them. Re-runs are op calls like any other, without the lock and
// with nothing pinned in between; what they create are blocks of their own,
// whose places the Dropped blocks take over when all is done. So a failure on
// the way leaves everything as it was, and nobody waits for anybody: two
// threads that need the same block may both make it, and one result is thrown
// away.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "backend/runtime/check.h"
#include "memory/pager_hot.h"
#include "memory/phase_range.h"

namespace chameleon::memory {

using runtime::Error;
using runtime::Result;

void PagerImpl::record(Call& call, std::unique_ptr<RecordedOp> op,
                       std::span<Block* const> created) {
  CHAMELEON_CHECK(call.active_ && call.recording_ && !call.rerun_,
                  "record() of a call that is not to be recorded");
  for (const Block* const block : created) {
    const auto is_it = [=](const Block* each) { return each == block; };
    CHAMELEON_CHECK(call.adopted_.findIf(is_it) < call.adopted_.size(),
                    "a call created what it did not adopt");
  }
  const Lock lock(*this);
  recreation_.add(
      {call.pins_.data(), call.pins_.size()}, created, std::move(op),
      call.token_,
      call.operand_bytes_ + std::max(call.peak_bytes_, call.layout_.span()));
  freeUnheld();
}

bool PagerImpl::dropBlock(Block& block) {
  const Lock lock(*this);
  drainReleased();
  return block.state() == BlockState::kDropped || drop(block);
}

void PagerImpl::dropAll() {
  const Lock lock(*this);
  drainReleased();
  for (Block* block = live_; block != nullptr; block = block->next_live) {
    if (block->lineage != nullptr) (void)drop(*block);
  }
}

bool PagerImpl::drop(Block& block) {
  std::uint64_t word = block.word.load(std::memory_order_acquire);
  const BlockState state = Block::stateOf(word);
  const bool has_bytes = state == BlockState::kResident ||
                         state == BlockState::kHost ||
                         state == BlockState::kEvicting;
  if (!has_bytes || Block::pinsOf(word) > 0 || block.claims > 0 ||
      block.awaited > 0 || block.host_pins > 0 || block.host_writing ||
      !recreation_.droppable(block) ||
      !fits(Recreation::makerOf(block), admission_.budgetBytes()) ||
      !block.word.compare_exchange_strong(
          word,
          Block::stateBits(BlockState::kDropped) | (word & Block::kRecordedBit),
          std::memory_order_acq_rel)) {
    return false;
  }
  note(Decision::kDrop, block, block.bytes);
  counters_.dropped_bytes.fetch_add(static_cast<std::int64_t>(block.bytes),
                                    std::memory_order_relaxed);
  blocksLeave();
  giveUpPlaces(block, (word & Block::kHostCopyBit) != 0);
  return true;
}

// It could run again within the budget. What could not is not dropped.
bool PagerImpl::fits(const Record& record, std::size_t budget_bytes) noexcept {
  return Recreation::neededBytes(record) <= budget_bytes;
}

// Makes what is Dropped and would not fit() any more.
Error PagerImpl::restoreBefore(std::size_t budget_bytes) {
  for (std::size_t made = 0, most = 0;; ++made) {
    Record* record = nullptr;
    std::size_t count = 0;
    {
      const Lock lock(*this);
      drainReleased();
      for (Block* block = live_; block != nullptr; block = block->next_live) {
        if (block->state() != BlockState::kDropped) continue;
        Record& maker = Recreation::makerOf(*block);
        if (fits(maker, budget_bytes)) continue;
        record = &maker;
        ++count;
      }
      if (record == nullptr) return {};
      if (made == 0) most = count;
      if (made > most) { // one is dropped for the other
        return {runtime::ErrorCode::kOutOfHostMemory,
                name() + " out of memory. What was dropped has no place"};
      }
      Recreation::use(*record);
    }
    if (Error error = restore(*record, {}, "a lower hbm_budget")) return error;
  }
}

void PagerImpl::freeUnheld() noexcept {
  while (Block* const block = recreation_.takeUnheld()) destroy(*block);
}

// ---- the host is short of memory -------------------------------------------

// Where the host could not take what is in HBM, and HBM is half full, all calls
// are recorded, so that there is something to drop when the host is full. It
// costs HBM: what a record reads is kept after its tensor died. A plan that
// drops needs little of the host: where one is followed whose moves all fit
// there, calls are recorded once both together are nearly full.
void PagerImpl::noteHostUse() {
  if (!recompute_ && !host_short_) return;
  const std::size_t budget = admission_.budgetBytes();
  const std::size_t used = arena_->usedBytes();
  const std::size_t host_free =
      host_pool_->budgetBytes() - host_pool_->usedBytes();
  // Of the budget, in eighths; less once it is short, so that it does not
  // flicker.
  const std::size_t eighth = budget / 8;
  bool is_short =
      recompute_ && host_free < used && used > eighth * (host_short_ ? 2 : 4);
  if (is_short) {
    const PlanPtr plan = policy_->plan();
    const std::size_t both = budget - used + host_free + copy_bytes_;
    is_short = plan == nullptr || plan->recorded.empty() ||
               plan->modelled.bytes_in + eighth > host_pool_->budgetBytes() ||
               both < eighth * (host_short_ ? 3 : 2);
  }
  if (is_short == host_short_) return;
  const bool was = everyCallLocks();
  host_short_ = is_short;
  updateGate(was);
}

// The last resort before "out of memory", where nothing can leave for the host.
// True: there is more room than before, in HBM or on the host.
bool PagerImpl::giveUpForHost(std::size_t bytes) {
  return giveUpHeld() || dropWorst(bytes, /*resident=*/true) ||
         dropWorst(bytes, /*resident=*/false);
}

// Frees a dead block that is held for what has its bytes.
bool PagerImpl::giveUpHeld() {
  for (Block* block = live_; block != nullptr; block = block->next_live) {
    const bool has_bytes = block->device != nullptr || block->host != nullptr;
    if (!Recreation::isHeld(*block) || !has_bytes || block->pins() > 0 ||
        block->claims > 0 || !Recreation::holdsInVain(*block)) {
      continue;
    }
    recreation_.written(*block, /*extends=*/true);
    freeUnheld();
    return true;
  }
  return false;
}

// Drops what is largest, was not used for longest and takes the fewest ops to
// make (dynamic tensor rematerialization): `bytes` or more, if it can.
bool PagerImpl::dropWorst(std::size_t bytes, bool resident) {
  struct Candidate {
    Block* block;
    double score;
  };
  std::vector<Candidate> candidates;
  const std::uint64_t now = ticks_.load(std::memory_order_relaxed);
  for (Block* block = live_; block != nullptr; block = block->next_live) {
    if (block->lineage == nullptr || block->lineage->maker == nullptr ||
        (block->state() == BlockState::kResident) != resident) {
      continue;
    }
    const auto idle = static_cast<double>(
        now + 1 - block->last_use_tick.load(std::memory_order_relaxed));
    const auto ops = static_cast<double>(block->lineage->maker->steps.size());
    candidates.push_back(
        {block, static_cast<double>(block->rounded_bytes) * idle / ops});
  }
  std::sort(
      candidates.begin(), candidates.end(),
      [](const Candidate& a, const Candidate& b) { return a.score > b.score; });
  std::size_t freed_bytes = 0;
  for (const auto& [block, score] : candidates) {
    if (freed_bytes >= bytes) break;
    if (drop(*block)) freed_bytes += block->rounded_bytes;
  }
  return freed_bytes > 0;
}

// ---- back again -----------------------------------------------------------

Record* PagerImpl::missing(std::span<const Operand> operands) {
  for (const auto [block, access] : operands) {
    if (block->lineage == nullptr) continue;
    Record* const record = block->state() == BlockState::kDropped
                               ? &Recreation::makerOf(*block)
                           : writes(access) ? Recreation::dependent(*block)
                                            : nullptr;
    if (record == nullptr) continue;
    Recreation::use(*record);
    return record;
  }
  return nullptr;
}

Error PagerImpl::restoreFor(Lock& lock, const Operand& operand,
                            std::string_view purpose) {
  while (Record* const record = missing({&operand, 1})) {
    lock.unlock();
    Error error = restore(*record, {&operand, 1}, purpose);
    lock.base().lock();
    if (error) return error;
  }
  return {};
}

// What a call needs beside may not be dropped in turn: it would never begin.
Error PagerImpl::restore(Record& record, std::span<const Operand> operands,
                         std::string_view purpose) {
  {
    const Lock lock(*this);
    for (const Operand& operand : operands) ++operand.block->awaited;
  }
  Error error = restoreAll(record, purpose);
  const Lock lock(*this);
  for (const Operand& operand : operands) --operand.block->awaited;
  return error;
}

// Depth first, without recursion: chains may be long.
Error PagerImpl::restoreAll(Record& record, std::string_view purpose) {
  std::vector<Record*> open{&record};
  Error error;
  while (!open.empty() && !error) {
    Record& next = *open.back();
    {
      const Lock lock(*this);
      if (!Recreation::needed(next)) {
        recreation_.letGo(next);
        open.pop_back();
        freeUnheld();
        continue;
      }
      if (Record* const deeper = Recreation::deeper(next)) {
        Recreation::use(*deeper);
        open.push_back(deeper);
        continue;
      }
    }
    error = rerun(next);
  }
  if (!error) return {};
  const Lock lock(*this);
  for (Record* const left : open) recreation_.letGo(*left);
  freeUnheld();
  return {error.code(), error.message() +
                            " (This op was to run again, to make an operand "
                            "of " +
                            std::string(purpose) + ".)"};
}

// REQUIRES: its operands have bytes, and cannot lose them.
Error PagerImpl::rerun(Record& record) {
  const PhaseRange range("run again");
  Fresh fresh;
  fresh.outputs.resize(record.outputs.size());
  Error error = makeFresh(record, fresh);
  if (!error) error = runSteps(record, fresh);

  const Lock lock(*this);
  const bool needed = Recreation::needed(record);
  if (!error && needed) {
    for (std::size_t i = 0; i < record.outputs.size(); ++i) {
      Block* const block = record.outputs[i].block;
      if (block == nullptr || block->state() != BlockState::kDropped) continue;
      takeOver(*block, *std::exchange(fresh.outputs[i], nullptr));
    }
    // It may have to be dropped once more.
    const bool again = host_short_ || drop_stress_ == Pager::DropStress::kAll ||
                       (drop_stress_ == Pager::DropStress::kRandom &&
                        stress_random_() % 2 == 0);
    if (!again) recreation_.remove(record);
  }
  for (Block* const block : fresh.outputs) {
    if (block != nullptr) destroy(*block);
  }
  for (Block* const block : fresh.scratch) destroy(*block);
  freeUnheld();
  // Where somebody else made it all, or it is gone, nothing has failed.
  return needed ? std::move(error) : Error();
}

// Memory for what the first step overwrites, and for side effects.
Error PagerImpl::makeFresh(const Record& record, Fresh& fresh) {
  const Lock lock(*this);
  Error error;
  const auto make = [&](std::size_t bytes) -> Block* {
    Result<Block*> block = newBlock(bytes, ExtentMap::round(bytes));
    if (block.ok()) return *block;
    error = block.takeError();
    return nullptr;
  };
  for (std::size_t i = 0; i < record.outputs.size() && !error; ++i) {
    const std::size_t bytes = record.outputs[i].overwritten_bytes;
    if (bytes != 0) fresh.outputs[i] = make(bytes);
  }
  for (const Record::Step& step : record.steps) {
    for (const Record::Source& source : step.operands) {
      if (source.scratch_bytes == 0 || error) continue;
      if (Block* const block = make(source.scratch_bytes)) {
        fresh.scratch.push_back(block);
      }
    }
  }
  return error;
}

Error PagerImpl::runSteps(const Record& record, Fresh& fresh) {
  std::vector<Block*> operands;
  std::vector<Block*> results;
  std::size_t scratch = 0;
  std::size_t output = 0;
  while (output < record.outputs.size() &&
         record.outputs[output].overwritten_bytes != 0) {
    ++output;
  }
  for (const Record::Step& step : record.steps) {
    operands.clear();
    for (const Record::Source& source : step.operands) {
      operands.push_back(source.block != nullptr ? source.block
                         : source.scratch_bytes != 0
                             ? fresh.scratch[scratch++]
                             : fresh.outputs[source.output]);
    }
    results.clear();
    quick_of_rerun = profiler::quick_half(step.token);
    Error error = step.op->run(operands, results);
    quick_of_rerun = 0;
    counters_.rerun_ops.fetch_add(1, std::memory_order_relaxed);
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
    counters_.rerun_ns.fetch_add(durations_.op(step.token, bytes),
                                 std::memory_order_relaxed);
  }
  return {};
}

// The block's bytes are those of `fresh`, wherever they are; that goes.
void PagerImpl::takeOver(Block& block, Block& fresh) {
  CHAMELEON_CHECK(block.bytes == fresh.bytes &&
                      block.rounded_bytes == fresh.rounded_bytes &&
                      fresh.pins() == 0,
                  "an op that ran again created another result");
  settle(fresh);
  if (fresh.device != nullptr) {
    policy_->left(fresh);
    fresh.device->block = &block;
  }
  if (fresh.hasHostCopy()) {
    unlinkCopy(fresh);
    linkCopy(block);
  }
  block.device = std::exchange(fresh.device, nullptr);
  block.device_address = std::exchange(fresh.device_address, nullptr);
  block.host = std::exchange(fresh.host, nullptr);
  block.host_address = std::exchange(fresh.host_address, nullptr);
  block.host_ready = std::exchange(fresh.host_ready, {});
  block.host_read = std::exchange(fresh.host_read, {});
  block.copied_ahead = fresh.copied_ahead;
  block.last_write.store(fresh.last_write.load());
  for (std::size_t i = 0; i < Block::kUseSlots; ++i) {
    block.last_use[i].store(fresh.last_use[i].load());
  }
  block.last_use_tick.store(fresh.last_use_tick.load());
  block.become(fresh.word.load() & ~Block::kRecordedBit);
  fresh.become(Block::stateBits(BlockState::kUnbacked));
  if (block.device != nullptr) policy_->entered(block);
  note(Decision::kRerun, block, block.bytes);
  destroy(fresh);
}

// ---- for tests ------------------------------------------------------------

void PagerImpl::setDropStress(Pager::DropStress stress, std::uint64_t seed) {
  const Lock lock(*this);
  const bool was = everyCallLocks();
  drop_stress_ = stress;
  updateGate(was);
  stress_random_.seed(seed);
}

void PagerImpl::applyDropStress(Call& call) {
  using enum Pager::DropStress;
  if (drop_stress_ == kNever || call.rerun_) return;
  call.recording_ = call.observed_;
  if (drop_stress_ == kRecord) return;
  for (Block* block = live_; block != nullptr; block = block->next_live) {
    if (block->lineage != nullptr &&
        (drop_stress_ == kAll || stress_random_() % 2 == 0)) {
      (void)drop(*block);
    }
  }
}

} // namespace chameleon::memory
