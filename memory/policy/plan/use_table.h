// A cycle seen from its values: who is used next, and which gaps between uses
// could be spent outside HBM. Made once per cycle, read by every stage of the
// planner.
//
// A *use* is one operand of one op whose value is worth moving; uses are
// numbered in program order, those of an op are neighbours. *Gap u* follows
// use u and ends at the value's next use (cyclic), or where it is freed: then
// it is a *tail*. Values of at most `keep_bytes` have no uses here: they stay,
// and count as part of their ops' fixed bytes. Persistent values that no op
// uses are taken to be outside HBM all the time.
//
// Positions: op i of the repetition r is position r * ops + i. Gap u is the
// range [begin(u), end(u)) of positions at which the value is not needed, with
// begin(u) in (0, ops].
//
// Tests: planner_test.cpp, planner_random_test.cpp.
//
// Thread safety: const methods may be called from any thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "profiler/cycle.h"

namespace chameleon::memory {

using profiler::kNone;
using profiler::ValueIndex;
using UseIndex = std::uint32_t;

struct UseTable {
  UseTable(const profiler::Cycle& cycle, std::uint64_t keep_bytes);

  std::int32_t ops;
  std::size_t values; // all of the cycle's, with uses or without

  // Per op.
  std::vector<std::int64_t> duration_ns;
  std::vector<UseIndex> use_end; // uses of op i: [use_end[i-1], use_end[i])
  // Everything that is in HBM during the op but cannot leave: its workspace
  // and the small values that live then.
  std::vector<std::int64_t> fixed_bytes;
  std::vector<std::int64_t> workspace_bytes;
  std::vector<std::int64_t> operand_bytes; // fixed, and all its uses
  std::vector<std::int64_t> live_bytes;    // if nothing ever leaves

  // Per use.
  std::vector<ValueIndex> value;
  std::vector<std::int32_t> op;
  std::vector<UseIndex> next;        // kNone: a tail follows, or nothing
  std::vector<std::int32_t> end;     // of gap u
  std::vector<std::int64_t> bytes;   // of the value
  std::vector<std::uint8_t> creates; // the value begins here
  std::vector<std::uint8_t> needs;   // must find its bytes
  std::vector<std::uint8_t> dirties; // a host copy is out of date after it

  // Transients that die after an op and have uses: dying[dying_end[i-1] ..
  // dying_end[i]), as the last use of each.
  std::vector<std::uint32_t> dying_end;
  std::vector<UseIndex> dying;

  std::size_t uses() const noexcept { return value.size(); }
  // Of live_bytes; 0: no ops.
  std::int64_t peakBytes() const noexcept {
    const auto most = std::max_element(live_bytes.begin(), live_bytes.end());
    return most == live_bytes.end() ? 0 : *most;
  }
  UseIndex firstUse(std::int32_t at) const noexcept {
    return at == 0 ? 0 : use_end[static_cast<std::size_t>(at) - 1];
  }
  UseIndex endUse(std::int32_t at) const noexcept {
    return use_end[static_cast<std::size_t>(at)];
  }
  std::span<const UseIndex> dyingAfter(std::int32_t at) const noexcept {
    const auto slot = static_cast<std::size_t>(at);
    const std::uint32_t from = slot == 0 ? 0 : dying_end[slot - 1];
    return {dying.data() + from, dying_end[slot] - from};
  }
  // Fixed bytes that are there from op `at` on to the next.
  std::int64_t settledBytes(std::int32_t at) const noexcept {
    const auto slot = static_cast<std::size_t>(at);
    const std::size_t after = at + 1 < ops ? slot + 1 : 0;
    return std::min(fixed_bytes[slot] - workspace_bytes[slot],
                    fixed_bytes[after] - workspace_bytes[after]);
  }
  std::int32_t begin(UseIndex use) const noexcept { return op[use] + 1; }
  std::int32_t length(UseIndex use) const noexcept {
    return end[use] - begin(use);
  }
  bool isTail(UseIndex use) const noexcept { return next[use] == kNone; }
  // The gap's end belongs to the next repetition.
  bool wraps(UseIndex use) const noexcept {
    return isTail(use) ? end[use] > ops : op[next[use]] <= op[use];
  }
  // What leaves in gap u has to come back by copy.
  bool comesBack(UseIndex use) const noexcept {
    return next[use] != kNone && needs[next[use]] != 0;
  }
};

} // namespace chameleon::memory
