// What tests ask for before every begin(): evictions and drops that nobody
// needs. They are in the package too, so that what is tested is what ships.
// Off, it costs nothing: calls come for the lock only while it is on.
//
// Tests: pager_test.cpp.
//
// Thread safety: methods with a Locked need the pager's lock; the others take
// it.
#pragma once

#include <cstdint>
#include <random>

#include "memory/block_table.h"
#include "memory/pager_core.h"
#include "memory/recompute/recomputer.h"
#include "memory/residency.h"
#include "memory/room/room_finder.h"

namespace chameleon::memory {

// Whether or not there is need: nothing is evicted, everything, or each block
// with even chance.
enum class Stress : std::uint8_t { kNever, kAll, kRandom };
// All op calls are to be recorded. kAll, kRandom: and all blocks that can be
// dropped are, or each with even chance; a record stays (or may stay) when it
// was run again.
enum class DropStress : std::uint8_t { kNever, kRecord, kAll, kRandom };

class StressHooks {
 public:
  // REQUIRES: all outlive it.
  StressHooks(PagerCore& core, Residency& residency, BlockTable& table,
              Recomputer& recomputer, RoomFinder& room)
      : core_(core),
        residency_(residency),
        table_(table),
        recomputer_(recomputer),
        room_(room) {}

  void setStress(Stress stress, std::uint64_t seed = 0);
  void setDropStress(DropStress stress, std::uint64_t seed = 0);

  // Before the call's operands are pinned.
  void apply(const Locked& locked, CallState& call) REQUIRES(pager_lock);

 private:
  void applyStress(const Locked& locked) REQUIRES(pager_lock);
  void applyDropStress(const Locked& locked, CallState& call)
      REQUIRES(pager_lock);
  void closeGate(bool was_on, bool is_on) noexcept;

  PagerCore& core_;
  Residency& residency_;
  BlockTable& table_;
  Recomputer& recomputer_;
  RoomFinder& room_;
  Stress stress_ GUARDED_BY(pager_lock) = Stress::kNever;
  DropStress drop_stress_ GUARDED_BY(pager_lock) = DropStress::kNever;
  std::mt19937_64 random_ GUARDED_BY(pager_lock);
};

} // namespace chameleon::memory
