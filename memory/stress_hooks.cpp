#include "memory/stress_hooks.h"

namespace chameleon::memory {

void StressHooks::setStress(Stress stress, std::uint64_t seed) {
  const PagerLock locked(core_);
  closeGate(stress_ != Stress::kNever, stress != Stress::kNever);
  stress_ = stress;
  random_.seed(seed);
}

void StressHooks::setDropStress(DropStress stress, std::uint64_t seed) {
  const PagerLock locked(core_);
  closeGate(drop_stress_ != DropStress::kNever, stress != DropStress::kNever);
  drop_stress_ = stress;
  random_.seed(seed);
  std::function<bool()> keeps; // a record that was run again
  if (stress == DropStress::kAll) keeps = [] { return true; };
  if (stress == DropStress::kRandom) {
    keeps = [this]() NO_THREAD_SAFETY_ANALYSIS { return random_() % 2 == 0; };
  }
  recomputer_.keepRecordsIf(locked, std::move(keeps));
}

// Every call has to come for the lock while it is on.
void StressHooks::closeGate(bool was_on, bool is_on) noexcept {
  if (is_on && !was_on) core_.admission.close();
  if (was_on && !is_on) core_.admission.open();
}

void StressHooks::apply(const Locked& locked, CallState& call) {
  applyDropStress(locked, call);
  applyStress(locked);
}

// Failures do not matter here: what could not be evicted stays.
void StressHooks::applyStress(const Locked& locked) {
  Shortage ignored;
  switch (stress_) {
    case Stress::kNever:
      break;
    case Stress::kAll:
      while (room_.evictNext(locked, ignored)) {
      }
      break;
    case Stress::kRandom:
      table_.giveBackSpares(locked);
      for (Block* block = table_.firstLive(locked); block != nullptr;
           block = block->next_live) {
        if (random_() % 2 == 0) {
          (void)residency_.evict(locked, *block, ignored);
        }
      }
      break;
  }
}

void StressHooks::applyDropStress(const Locked& locked, CallState& call) {
  if (drop_stress_ == DropStress::kNever || call.rerun) return;
  call.wants_record = call.observed;
  if (drop_stress_ == DropStress::kRecord) return;
  for (Block* block = table_.firstLive(locked); block != nullptr;
       block = block->next_live) {
    if (block->lineage != nullptr &&
        (drop_stress_ == DropStress::kAll || random_() % 2 == 0)) {
      (void)residency_.drop(locked, *block);
    }
  }
}

} // namespace chameleon::memory
