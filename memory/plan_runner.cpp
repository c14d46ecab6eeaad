#include "memory/plan_runner.h"

#include "memory/phase_range.h"

namespace chameleon::memory {

PolicyInputs PlanRunner::policyInputs() noexcept {
  return {core_.profiler,
          meter_.durations(),
          next_actions_,
          meter_.link(),
          core_.limits.hbm_budget_bytes,
          core_.runtime.modelsTime(),
          core_.limits.recompute,
          &saved_};
}

bool PlanRunner::fulfil(const CallState& call) {
  const PhaseRange range("follow the plan");
  const PagerLock locked(core_);
  table_.drainReleased(locked);
  planned_.clear();
  const bool recorded = core_.policy->plannedActions(call.ticket, planned_);
  Shortage ignored;
  for (std::size_t i = 0; i < planned_.size(); ++i) {
    const PlannedAction& action = planned_[i];
    Block& block = *action.block;
    const bool meant =
        block.identity.load(std::memory_order_relaxed) == action.identity &&
        (!block.isReleased() || RecomputeRecords::isHeld(block));
    // Of one batch, and not the last of it.
    const bool goes_on = i + 1 < planned_.size() && planned_[i + 1].joined &&
                         planned_[i + 1].kind == action.kind;
    switch (action.kind) {
      case Action::Kind::kWriteBack:
        if (meant) residency_.beginWriteBack(locked, block);
        if (!goes_on) (void)residency_.copyOut(locked, ignored);
        break;
      case Action::Kind::kEvict:
        if (meant)
          (void)residency_.evict(locked, block, ignored, Decision::kEvict);
        break;
      case Action::Kind::kFetch:
        if (meant && mayFetchAhead(block)) {
          block.claims = 1; // once; no victim, and not moved by compaction
          ahead_.push_back({.block = &block,
                            .write = false,
                            .missing = true,
                            .overwrite = false});
        }
        if (!goes_on) fetchAhead(locked, action.needed_at);
        break;
      case Action::Kind::kDrop:
        if (meant) (void)residency_.drop(locked, block);
        break;
    }
  }
  if (core_.policy->wantsPacking()) pack(locked);
  table_.keepSpares(!core_.policy->isPlacing());
  return recorded;
}

// What is pinned stays where it is, and what lies above it too.
void PlanRunner::pack(const Locked& locked) {
  (void)table_.giveBackSpares(locked);
  Shortage ignored;
  compaction_.packDown(locked, ignored);
  core_.policy->packed(core_.arena->usedEnd());
}

bool PlanRunner::mayFetchAhead(const Block& block) noexcept {
  return (block.state() == BlockState::kHost ||
          block.state() == BlockState::kEvicting) &&
         !block.host_writing && block.claims == 0;
}

// Fetches what is in `ahead_` in one batch, as far as there is room.
void PlanRunner::fetchAhead(const Locked& locked, std::uint64_t needed_at) {
  if (ahead_.empty()) return;
  Shortage shortage;
  std::int64_t bytes = 0;
  for (WantedBlock& wanted : ahead_) {
    if (!room_.placeBlock(locked, wanted, kCopyIn, shortage, needed_at)) break;
    bytes += static_cast<std::int64_t>(wanted.block->bytes);
  }
  while (!ahead_.empty() && ahead_.back().extent == nullptr) {
    ahead_.back().block->claims = 0;
    ahead_.pop_back();
  }
  const bool fetched =
      !ahead_.empty() && residency_.fetch(locked, ahead_, shortage);
  for (const WantedBlock& wanted : ahead_) {
    Block& block = *wanted.block;
    block.claims = 0;
    if (!fetched) {
      room_.giveBack(locked, wanted);
      continue;
    }
    block.prefetched_tick = core_.ticks.load(std::memory_order_relaxed);
    residency_.markResident(locked, wanted, /*pins=*/0, Decision::kFetch);
  }
  if (fetched) {
    core_.counters.prefetched_bytes.fetch_add(bytes, std::memory_order_relaxed);
  }
  ahead_.clear();
}

void PlanRunner::policyChanged() noexcept {
  core_.policy->plansAhead() ? next_actions_.ask() : next_actions_.setNone();
}

} // namespace chameleon::memory
