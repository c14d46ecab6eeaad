// Stage 2 of the planner: when the chosen gaps' bytes move.
//
// Runs the cycle in virtual time on three engines: compute in program order,
// copies out, copies in. Rules:
//   out  begins as soon as a value was written for the last time before the
//        gap in which it leaves, long before the pressure; first whose gap
//        begins first.
//   in   strictly by deadline (the gap's end). A copy may begin when its gap
//        has begun, when there is room now, and when it takes no room that any
//        op up to its deadline will need (reservation).
//   room is given back only where it is needed: of the values whose bytes are
//        safe and whose gap has begun as many are let go then, farthest next
//        use first. What is still there at its turn stays: no copy, and a
//        write-back that has not begun is called off. What is let go leaves as
//        soon as its bytes are safe, though, not when its room is needed: with
//        more free meanwhile, what comes finds holes that fit.
//
// The outcome is an order, not a timetable: the position (next op to begin) at
// which each copy begins and each value leaves. Positions of gap u count from
// the repetition in which the gap begins, those of a write-back from the
// repetition of the write.
//
// Cost: O((uses + copies) * log). Thread safety: a function of its arguments.
//
// Tests: planner_test.cpp, planner_random_test.cpp.
#pragma once

#include <cstdint>
#include <vector>

#include "memory/policy/plan/link_model.h"
#include "memory/policy/plan/use_table.h"
#include "memory/policy/swapping/victim_gaps.h"

namespace chameleon::memory {

struct SwapSchedule {
  static constexpr std::int32_t kNever = -1;

  struct Moment {
    std::int32_t position = kNever;
    std::uint32_t order = 0; // among all moments
  };
  // Per use u.
  std::vector<Moment> write_back; // of what u wrote
  std::vector<Moment> leaves;     // in gap u
  std::vector<Moment> fetch;      // at the end of gap u
};

// `lead_bytes` >= 0: while a copy in is under way and at least so many bytes
// are free, no write back begins, so that the copy in has the link alone. < 0:
// a write back is never held back.
SwapSchedule schedule_swaps(const UseTable& table, const VictimGaps& gaps,
                            std::int64_t budget, const LinkModel& link,
                            std::int64_t lead_bytes);

} // namespace chameleon::memory
