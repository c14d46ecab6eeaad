// How long a run takes: an event graph of ops and copies, evaluated.
//
// Ops and actions are given in host order; three FIFO queues carry them out:
// compute, copies in, copies out (link_model.h). The host is never in the way
// and never waits. What a queue's next entry waits for:
//   an op        its operands' copies in; the copy out of what it will write;
//                the room that it takes;
//   a copy in    the copy out of the same value; its room;
//   a copy out   the last use of the value and its copy in; under a plan, all
//                ops before it.
// Room is bytes with the events after which they are free: fragments do not
// exist. A copy in takes the oldest room. An op takes what ops gave back, the
// newest first: it comes after them anyway, and leaves the oldest to copies;
// then what was copied out, the oldest first.
//
// Since queues are FIFO, "after all of these" is three numbers: how many
// entries of each queue must have ended.
//
// Cost: O(entries); one walk in host order and one in time. Thread safety:
// none; a model is used once.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "memory/policy/plan/link_model.h"
#include "memory/policy/plan/plan.h"
#include "memory/policy/plan/use_table.h"

namespace chameleon::memory {

class PlanModel {
 public:
  // Begins with all values that live across the end of the step in HBM, and
  // no copy of any on the host.
  PlanModel(const UseTable& table, std::int64_t budget);

  // Other places to begin with. REQUIRES: nothing was run.
  void beginClean(ValueIndex value) { values_[value].dirty = false; }
  void beginAway(ValueIndex value);

  // In host order. REQUIRES: what plan.h says of the action holds.
  void act(const Action& action);
  // Lets a value go now, writing it back first if it has to be; that copy
  // waits for the value's last use alone.
  void evict(ValueIndex value);
  void fetch(ValueIndex value, bool joined = false);
  void run(std::int32_t op);

  bool isPlaced(ValueIndex value) const { return values_[value].placed; }
  std::int64_t room() const { return room_; } // free bytes, in host order
  // What run(op) takes beside what it needs and finds in HBM.
  std::int64_t roomFor(std::int32_t op) const;

  // Lets time pass until all ops have ended.
  void evaluate(const LinkModel& link);
  // REQUIRES: evaluate(). The mean of the steps [from, to).
  ModelledStep meanStep(int from, int to) const;

 private:
  enum Queue : std::size_t { kCompute, kIn, kOut };
  using After = std::array<std::uint32_t, 3>; // entries that must have ended

  struct Entry {
    After after;
    double work; // ns or bytes
  };
  struct Value {
    std::int64_t bytes = 0;
    After used{};          // last use, copy in
    std::uint32_t out = 0; // its copy out, counted as in After; 0: none
    bool placed = false;
    bool dirty = false;
  };
  struct Room {
    std::int64_t bytes;
    After after;
    std::uint64_t order;
  };

  static void join(After& after, const After& other);
  void evict(Value& value, const After& after); // HBM
  void writeBack(ValueIndex value, const After& after, bool joined);
  void evictClean(ValueIndex value);
  void add(Queue queue, const After& after, std::int64_t bytes, bool joined);
  void give(std::int64_t bytes, const After& after);
  void take(std::int64_t bytes, bool oldest, After& after);
  std::uint32_t count(Queue queue) const {
    return static_cast<std::uint32_t>(queues_[queue].size());
  }

  const UseTable& table_;
  std::vector<Value> values_;
  std::array<std::vector<Entry>, 3> queues_;
  std::vector<double> op_ends_;
  // What the copy queues held when each op was run.
  std::vector<std::array<std::uint32_t, 2>> copies_at_;
  std::array<std::deque<Room>, 2> rooms_; // by ops, by copies out
  std::uint64_t rooms_given_ = 0;
  std::int64_t room_ = 0;
  // What is on the host and not in HBM; now, and the most at a time.
  std::int64_t away_bytes_ = 0;
  std::int64_t peak_away_bytes_ = 0;
  std::int64_t settled_ = 0; // fixed bytes that stay between two ops
};

// What a step under the plan finds where it begins, and leaves where it ends.
struct Places {
  std::vector<std::uint8_t> away;  // per value: outside HBM
  std::vector<std::uint8_t> clean; // has a copy on the host
};
Places places_at_start(const UseTable& table, const Plan& plan);

// What `link` sends to the mirror in each step takes the time that the plan
// leaves on the way out, and then the next step's: mirror_ns says how much.
void add_mirror(ModelledStep& step, const LinkModel& link);

// The plan's steady state: the mean of the steps [from, to) of to + 1.
ModelledStep model_plan(const UseTable& table, const Plan& plan,
                        const LinkModel& link, int from = 2, int to = 6);

} // namespace chameleon::memory
