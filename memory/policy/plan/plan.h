// What moves when, for a whole cycle: the planner's product, as plain data.
//
// A plan is a list of actions before each op, in *host order*: whoever carries
// it out takes the actions before op i, in their order, just before it submits
// op i. Actions never wait on the host. They mean:
//   write back  queue a copy of the value's bytes to the host. It begins after
//               all ops that were submitted by then, which is how a plan
//               holds a copy back while the link has better things to do;
//   evict       give the value's room in HBM back. Its bytes are on the host or
//               being copied there; who gets the room waits for that copy on
//               the stream;
//   fetch       take room, queue a copy in, after the value's own copy out.
// Copies of one direction run in the order of their actions. A value that the
// next op overwrites completely is not fetched: the op takes its room. A
// value may also be dropped:
//   drop        give up the value's bytes, wherever they are. The ops that made
//               it were recorded; the op that needs it next has them run again
//               just before it begins, and gives what they make its room.
// A transient takes its room with the op that creates it and gives it back with
// the op that frees it, wherever it is. Values without an action stay.
//
// Room holds in host order, with no regard to time: after every action, and
// before every op with the op's own room, what is placed is within the budget.
//
// A `joined` copy belongs to the copy of its kind before it, at the same
// position: one batch, one latency, ready together.
//
// The plan is cyclic, like its cycle: it leads from the places at the start of
// a step to the same places at its end (places_at_start() in plan_model.h). Who
// starts one from other places must get there first: what should be away may
// have to be evicted, and what should be clean be written back before its
// first eviction.
//
// Thread safety: immutable once published as shared_ptr<const Plan>.
// Size: 4 bytes per op and per action.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "memory/policy/plan/plan_shares.h"
#include "profiler/cycle.h"

namespace chameleon::memory {

using profiler::ValueIndex;

class Action {
 public:
  enum class Kind : std::uint32_t { kWriteBack, kEvict, kFetch, kDrop };

  Action(Kind kind, ValueIndex value, bool joined = false) noexcept
      : bits_(value << 4 | (joined ? 8U : 0U) |
              static_cast<std::uint32_t>(kind)) {}

  Kind kind() const noexcept { return static_cast<Kind>(bits_ & 3); }
  ValueIndex value() const noexcept { return bits_ >> 4; }
  bool joined() const noexcept { return (bits_ & 8) != 0; }

  friend bool operator==(Action, Action) = default;

 private:
  std::uint32_t bits_;
};

// What the planner's model says about a plan: modelled, never measured.
struct ModelledStep {
  double duration_ns = 0;
  double compute_ns = 0;
  // Of the duration: the way out is not done with the step's bytes and with
  // what the mirror sends beside them.
  double mirror_ns = 0;
  std::uint64_t bytes_in = 0;
  std::uint64_t bytes_out = 0;
  std::uint64_t copies = 0; // batches, both ways
  // What is on the host and not in HBM, the most at a time, in host order.
  std::uint64_t away_bytes = 0;
  double stall_ns() const noexcept { return duration_ns - compute_ns; }
  // False: it takes its compute time, as far as a model can tell.
  bool waits() const noexcept { return duration_ns > kWaits * compute_ns; }

 private:
  static constexpr double kWaits = 1.001;
};

struct Plan {
  // Actions before op i: actions[action_end[i - 1] .. action_end[i]).
  std::vector<std::uint32_t> action_end;
  std::vector<Action> actions;
  // Ops whose calls are kept so that they can be run again, ascending.
  std::vector<std::uint32_t> recorded;
  std::uint64_t budget_bytes = 0;
  ModelledStep modelled;
  PlanShares shares; // of a plan that is followed

  std::size_t ops() const noexcept { return action_end.size(); }
  std::span<const Action> actionsBefore(std::size_t op) const noexcept {
    return actionsBefore(op, op);
  }
  // Before each of these ops, `last` included.
  std::span<const Action> actionsBefore(std::size_t first,
                                        std::size_t last) const noexcept {
    const std::size_t from = first == 0 ? 0 : action_end[first - 1];
    return {actions.data() + from, action_end[last] - from};
  }
};

using PlanPtr = std::shared_ptr<const Plan>;

} // namespace chameleon::memory
