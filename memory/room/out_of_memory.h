// The text of an out-of-memory error: which op, how much it needs, what is in
// use, and which option to change.
//
// Tests: begin_attempt_test.cpp, test_oom_advice.py.
//
// Thread safety: functions with a Locked need the pager's lock.
#pragma once

#include <cstddef>
#include <span>

#include "memory/pager_core.h"
#include "memory/room_request.h"

namespace chameleon::memory {

// What an op takes of HBM.
struct OpNeeds {
  std::span<const Operand> operands;
  std::size_t operand_bytes; // of all of them
  std::size_t inside_bytes;  // what its kernel allocates
};
// What there is of HBM.
struct RoomLeft {
  std::size_t resident_bytes;    // in use
  std::size_t largest_run_bytes; // by evicting: RoomFinder::largestRun()
};
// `needs` did not fit into `left`. If the device failed or lost bytes, that
// error is returned instead. The budget that the text names is enough where
// others pin no more than now.
runtime::Error out_of_memory(const Locked& locked, const PagerCore& core,
                             const CallState& call, const OpNeeds& needs,
                             const RoomLeft& left, Shortage& shortage)
    REQUIRES(pager_lock);
// A tensor beyond the logical limit / for which no logical address is left.
runtime::Error out_of_logical_memory(const Locked& locked,
                                     const PagerCore& core, std::size_t bytes,
                                     std::size_t live_bytes,
                                     std::size_t limit_bytes)
    REQUIRES(pager_lock);
runtime::Error out_of_addresses(const PagerCore& core, std::size_t bytes,
                                std::size_t range_bytes);
// Why eviction stopped before all was out; empty if only pins were in the way.
runtime::Error eviction_error(const Locked& locked, const PagerCore& core,
                              Shortage& shortage) REQUIRES(pager_lock);
// An op needs a block whose bytes the device failed to bring back.
runtime::Error lost_error(const PagerCore& core, const Block& block);

} // namespace chameleon::memory
