#include "memory/policy/plan/plan_model.h"

#include <algorithm>
#include <numeric>

#include "backend/runtime/check.h"

namespace chameleon::memory {

PlanModel::PlanModel(const UseTable& table, std::int64_t budget)
    : table_(table), values_(table.values), room_(budget) {
  for (UseIndex use = 0; use < table.uses(); ++use) {
    Value& value = values_[table.value[use]];
    value.bytes = table.bytes[use];
    value.placed = value.placed || table.wraps(use);
    value.dirty = true;
  }
  settled_ = table.settledBytes(table.ops - 1);
  room_ -= settled_;
  for (const Value& value : values_) {
    if (value.placed) room_ -= value.bytes;
  }
  rooms_[0].push_back({room_, {}, rooms_given_++});
}

void PlanModel::beginAway(ValueIndex value) {
  Value& state = values_[value];
  if (!state.placed) return;
  state.dirty = false;
  evict(state, {});
}

void PlanModel::evict(Value& value, const After& after) {
  value.placed = false;
  away_bytes_ += value.bytes;
  peak_away_bytes_ = std::max(peak_away_bytes_, away_bytes_);
  give(value.bytes, after);
}

void PlanModel::join(After& after, const After& other) {
  for (std::size_t i = 0; i < after.size(); ++i) {
    after[i] = std::max(after[i], other[i]);
  }
}

void PlanModel::give(std::int64_t bytes, const After& after) {
  if (bytes == 0) return;
  room_ += bytes;
  rooms_[after[kOut] > 0 ? 1 : 0].push_back({bytes, after, rooms_given_++});
}

// More may be owed at first than there is: values that begin away give their
// room after the constructor took it.
void PlanModel::take(std::int64_t bytes, bool oldest, After& after) {
  CHAMELEON_CHECK(bytes <= room_, "no room in host order");
  room_ -= bytes;
  while (bytes > 0) {
    // For a copy the oldest of all; for an op the newest that ops gave back,
    // which it need not wait for, and then the oldest that was copied out.
    std::deque<Room>& by_ops = rooms_[0];
    std::deque<Room>& by_copies = rooms_[1];
    const bool copied =
        by_ops.empty() || (oldest && !by_copies.empty() &&
                           by_copies.front().order < by_ops.front().order);
    const bool back = !copied && !oldest;
    std::deque<Room>& rooms = copied ? by_copies : by_ops;
    Room& room = back ? rooms.back() : rooms.front();
    join(after, room.after);
    if (room.bytes > bytes) {
      room.bytes -= bytes;
      return;
    }
    bytes -= room.bytes;
    if (back) {
      rooms.pop_back();
    } else {
      rooms.pop_front();
    }
  }
}

void PlanModel::add(Queue queue, const After& after, std::int64_t bytes,
                    bool joined) {
  std::vector<Entry>& entries = queues_[queue];
  if (!joined) entries.push_back({{}, 0});
  join(entries.back().after, after);
  entries.back().work += static_cast<double>(bytes);
}

void PlanModel::writeBack(ValueIndex value, const After& after, bool joined) {
  Value& state = values_[value];
  CHAMELEON_CHECK(state.placed, "write-back of what is not in HBM");
  add(kOut, after, state.bytes, joined);
  state.out = count(kOut);
  state.dirty = false;
}

void PlanModel::evictClean(ValueIndex value) {
  Value& state = values_[value];
  CHAMELEON_CHECK(state.placed, "eviction of what is not in HBM");
  CHAMELEON_CHECK(!state.dirty, "eviction of what has no copy");
  After after = state.used;
  after[kOut] = state.out;
  evict(state, after);
}

void PlanModel::act(const Action& action) {
  switch (action.kind()) {
    case Action::Kind::kWriteBack: {
      After after = values_[action.value()].used;
      after[kCompute] = count(kCompute);
      writeBack(action.value(), after, action.joined());
      break;
    }
    case Action::Kind::kEvict:
      evictClean(action.value());
      break;
    case Action::Kind::kFetch:
      fetch(action.value(), action.joined());
      break;
    case Action::Kind::kDrop:
      CHAMELEON_CHECK(false, "a cycle with re-runs has two values instead");
      break;
  }
}

void PlanModel::evict(ValueIndex value) {
  if (values_[value].dirty) writeBack(value, values_[value].used, false);
  evictClean(value);
}

void PlanModel::fetch(ValueIndex value, bool joined) {
  Value& state = values_[value];
  CHAMELEON_CHECK(!state.placed, "fetch of what is in HBM");
  state.placed = true;
  away_bytes_ -= state.bytes;
  After after{};
  after[kOut] = state.out;
  take(state.bytes, true, after);
  add(kIn, after, state.bytes, joined);
  state.used = {};
  state.used[kIn] = count(kIn);
}

std::int64_t PlanModel::roomFor(std::int32_t op) const {
  std::int64_t bytes =
      table_.fixed_bytes[static_cast<std::size_t>(op)] - settled_;
  for (UseIndex use = table_.firstUse(op); use < table_.endUse(op); ++use) {
    if (table_.needs[use] == 0 && !values_[table_.value[use]].placed) {
      bytes += table_.bytes[use];
    }
  }
  return bytes;
}

void PlanModel::run(std::int32_t op) {
  const auto slot = static_cast<std::size_t>(op);
  copies_at_.push_back({count(kIn), count(kOut)});
  After after{};
  take(roomFor(op), false, after);
  After used{};
  used[kCompute] = count(kCompute) + 1;
  for (UseIndex use = table_.firstUse(op); use < table_.endUse(op); ++use) {
    Value& state = values_[table_.value[use]];
    CHAMELEON_CHECK(state.placed || table_.needs[use] == 0,
                    "an operand is not in HBM");
    if (state.placed) {
      join(after, state.used);
    } else if (!state.dirty) { // it was away, and is overwritten
      away_bytes_ -= state.bytes;
    }
    if (table_.dirties[use] != 0) {
      after[kOut] = std::max(after[kOut], state.out);
      state.dirty = true;
    }
    state.placed = true;
    state.used = used;
  }
  queues_[kCompute].push_back(
      {after, static_cast<double>(table_.duration_ns[slot])});
  for (const UseIndex use : table_.dyingAfter(op)) {
    Value& state = values_[table_.value[use]];
    After freed = used;
    freed[kOut] = state.out;
    if (state.placed) {
      give(state.bytes, freed);
    } else if (!state.dirty) {
      away_bytes_ -= state.bytes;
    }
    state = Value{state.bytes, {}, 0, false, true};
  }
  settled_ = table_.settledBytes(op);
  give(table_.fixed_bytes[slot] - settled_, used);
}

void PlanModel::evaluate(const LinkModel& model) {
  DuplexLink link(model);
  std::array<std::uint32_t, 3> ended{};
  const auto ready = [&](Queue queue) {
    if (ended[queue] == queues_[queue].size()) return false;
    const After& after = queues_[queue][ended[queue]].after;
    return after[kCompute] <= ended[kCompute] && after[kIn] <= ended[kIn] &&
           after[kOut] <= ended[kOut];
  };
  const auto begin = [&](Lane lane, Queue queue) {
    if (link.busy(lane) || !ready(queue)) return;
    link.start(lane, queues_[queue][ended[queue]].work);
  };
  double now = 0;
  double rest = DuplexLink::kNever; // of the op that runs
  op_ends_.reserve(queues_[kCompute].size());
  while (op_ends_.size() < queues_[kCompute].size()) {
    begin(Lane::kIn, kIn);
    begin(Lane::kOut, kOut);
    if (rest == DuplexLink::kNever && ready(kCompute)) {
      rest = queues_[kCompute][ended[kCompute]].work;
    }
    const double wait = std::min(link.untilChange(), rest);
    CHAMELEON_CHECK(wait < DuplexLink::kNever, "the event graph has a cycle");
    const bool in = link.busy(Lane::kIn);
    const bool out = link.busy(Lane::kOut);
    now += wait;
    rest -= wait;
    link.advance(wait);
    if (in && !link.busy(Lane::kIn)) ++ended[kIn];
    if (out && !link.busy(Lane::kOut)) ++ended[kOut];
    if (rest <= 0) {
      op_ends_.push_back(now);
      ++ended[kCompute];
      rest = DuplexLink::kNever;
    }
  }
}

ModelledStep PlanModel::meanStep(int from, int to) const {
  const auto ops = static_cast<std::size_t>(table_.ops);
  const std::size_t first = static_cast<std::size_t>(from) * ops;
  const std::size_t last = static_cast<std::size_t>(to) * ops;
  const auto steps = static_cast<unsigned>(to - from);
  const auto bytes = [&](Queue queue) {
    double sum = 0;
    for (std::size_t i = copies_at_[first][queue - 1];
         i < copies_at_[last][queue - 1]; ++i) {
      sum += queues_[queue][i].work;
    }
    return static_cast<std::uint64_t>(sum / steps);
  };
  ModelledStep step;
  step.duration_ns =
      (op_ends_[last - 1] - (first == 0 ? 0 : op_ends_[first - 1])) / steps;
  step.compute_ns = std::accumulate(table_.duration_ns.begin(),
                                    table_.duration_ns.end(), 0.0);
  step.bytes_in = bytes(kIn);
  step.bytes_out = bytes(kOut);
  step.copies = (copies_at_[last][0] - copies_at_[first][0] +
                 copies_at_[last][1] - copies_at_[first][1]) /
                steps;
  step.away_bytes = static_cast<std::uint64_t>(peak_away_bytes_);
  return step;
}

Places places_at_start(const UseTable& table, const Plan& plan) {
  Places places{std::vector<std::uint8_t>(table.values),
                std::vector<std::uint8_t>(table.values)};
  for (std::int32_t op = 0; op < table.ops; ++op) {
    for (const Action action :
         plan.actionsBefore(static_cast<std::size_t>(op))) {
      const bool leaves = action.kind() == Action::Kind::kEvict;
      if (action.kind() != Action::Kind::kWriteBack) {
        places.away[action.value()] = leaves ? 1 : 0;
      }
      places.clean[action.value()] = 1;
    }
    for (UseIndex use = table.firstUse(op); use < table.endUse(op); ++use) {
      places.away[table.value[use]] = 0;
      if (table.dirties[use] != 0) places.clean[table.value[use]] = 0;
    }
  }
  return places;
}

void add_mirror(ModelledStep& step, const LinkModel& link) {
  step.duration_ns -= step.mirror_ns;
  const double out_ns =
      (static_cast<double>(step.bytes_out) + link.mirrored_bytes) /
      link.out_bytes_per_ns;
  step.mirror_ns =
      link.mirrored_bytes > 0 ? std::max(0.0, out_ns - step.duration_ns) : 0;
  step.duration_ns += step.mirror_ns;
}

ModelledStep model_plan(const UseTable& table, const Plan& plan,
                        const LinkModel& link, int from, int to) {
  if (table.ops == 0) return {};
  PlanModel model(table, static_cast<std::int64_t>(plan.budget_bytes));
  const Places start = places_at_start(table, plan);
  for (ValueIndex value = 0; value < start.away.size(); ++value) {
    if (start.away[value] != 0) model.beginAway(value);
    if (start.clean[value] != 0) model.beginClean(value);
  }
  for (int step = 0; step <= to; ++step) {
    for (std::int32_t op = 0; op < table.ops; ++op) {
      for (const Action action :
           plan.actionsBefore(static_cast<std::size_t>(op))) {
        model.act(action);
      }
      model.run(op);
    }
  }
  model.evaluate(link);
  ModelledStep step = model.meanStep(from, to);
  add_mirror(step, link);
  return step;
}

} // namespace chameleon::memory
