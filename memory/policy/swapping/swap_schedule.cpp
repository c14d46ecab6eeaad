#include "memory/policy/swapping/swap_schedule.h"

#include <algorithm>

#include "backend/runtime/check.h"
#include "memory/policy/swapping/dary_heap.h"
#include "memory/policy/swapping/range_max.h"

namespace chameleon::memory {
namespace {

// Where a value is, for the gap that it is in or heads for.
struct State {
  UseIndex use = kNone;       // its last use: it is in the gap behind it
  std::int32_t used_at = 0;   // position of that use
  UseIndex writer = kNone;    // the use that wrote last
  std::int32_t written = 0;   // repetition of that write
  std::int32_t wanted_at = 0; // key of its entry among the write-backs
  bool alive = false;
  bool present = false;  // has room in HBM
  bool arriving = false; // its copy in is under way
  bool dirty = false;
  bool waiting = false; // among the write-backs
  bool leaving = false; // its copy out is under way
  bool away = false;    // its gap has begun
  bool spare = false;   // present, clean and away: may be let go
  SwapSchedule::Moment spare_since;
};

class Schedule {
 public:
  Schedule(const UseTable& table, const VictimGaps& gaps, std::int64_t budget,
           const LinkModel& link, std::int64_t lead_bytes, SwapSchedule& result)
      : table_(table),
        gaps_(gaps),
        budget_(budget),
        lead_bytes_(lead_bytes),
        link_(link),
        reserved_(gaps.resident, kPasses + 1),
        states_(table.values),
        result_(result) {
    result_.write_back.resize(table.uses());
    result_.leaves.resize(table.uses());
    result_.fetch.resize(table.uses());
    findTargets();
    listGaps();
    begin();
  }

  void run() {
    const std::int32_t all = kPasses * table_.ops;
    while (next_ < all || computing_) {
      submit();
      const double idle = link_.untilChange();
      const double rest = computing_ ? compute_end_ - now_ : DuplexLink::kNever;
      const double wait = std::min(idle, rest);
      CHAMELEON_CHECK(wait < DuplexLink::kNever, "the schedule is stuck");
      now_ += wait;
      const bool in = link_.busy(Lane::kIn);
      const bool out = link_.busy(Lane::kOut);
      link_.advance(wait);
      if (out && !link_.busy(Lane::kOut)) endOut();
      if (in && !link_.busy(Lane::kIn)) endIn();
      if (rest <= wait) endOp();
    }
  }

 private:
  static constexpr std::int32_t kPasses = 2;

  struct WriteBack {
    std::int32_t key; // minus the position at which its gap begins
    ValueIndex value;
  };
  struct Spare {
    std::int32_t key; // its next use
    ValueIndex value;
    std::int32_t used_at; // another one by now: stale
  };

  std::int32_t nextUse(UseIndex use, std::int32_t used_at) const {
    if (table_.isTail(use)) return std::int32_t{1} << 30;
    return used_at + table_.end[use] - table_.op[use];
  }

  // For each use, how many positions later the first gap begins in which the
  // value is away before it is written again; -1: in none.
  void findTargets() {
    target_.assign(table_.uses(), -1);
    for (int round = 0; round < 2; ++round) {
      for (UseIndex use = static_cast<UseIndex>(table_.uses()); use-- > 0;) {
        if (gaps_.away[use] != 0) {
          target_[use] = gaps_.away_from[use] - table_.op[use];
          continue;
        }
        const UseIndex next = table_.next[use];
        if (next == kNone || table_.dirties[next] != 0 || target_[next] < 0) {
          continue;
        }
        target_[use] = target_[next] + table_.end[use] - table_.op[use];
      }
    }
  }

  // Gaps by the op after which they begin, and by the op at which they end.
  void listGaps() {
    const auto ops = static_cast<std::size_t>(table_.ops);
    starts_end_.assign(ops + 1, 0);
    std::vector<std::uint32_t> due_end(ops + 1, 0);
    const auto slot = [&](std::int32_t position) {
      return static_cast<std::size_t>(position % table_.ops);
    };
    for (UseIndex use = 0; use < table_.uses(); ++use) {
      if (gaps_.away[use] == 0) continue;
      ++starts_end_[slot(gaps_.away_from[use] - 1) + 1];
      if (table_.comesBack(use)) ++due_end[slot(table_.end[use]) + 1];
    }
    for (std::size_t op = 0; op < ops; ++op) {
      starts_end_[op + 1] += starts_end_[op];
      due_end[op + 1] += due_end[op];
    }
    starts_.resize(starts_end_[ops]);
    due_.resize(due_end[ops]);
    std::vector<std::uint32_t> start_at = starts_end_;
    for (UseIndex use = 0; use < table_.uses(); ++use) {
      if (gaps_.away[use] == 0) continue;
      starts_[start_at[slot(gaps_.away_from[use] - 1)]++] = use;
      if (table_.comesBack(use)) due_[due_end[slot(table_.end[use])]++] = use;
    }
  }

  // What is where before op 0: as if all copies were done in time.
  void begin() {
    const std::int32_t ops = table_.ops;
    for (UseIndex use = 0; use < table_.uses(); ++use) {
      State& state = states_[table_.value[use]];
      if (table_.dirties[use] != 0) {
        state.writer = use;
        state.written = -1;
        state.dirty = true;
      }
      if (gaps_.away[use] != 0 &&
          (!table_.wraps(use) || gaps_.away_from[use] <= ops)) {
        state.dirty = false;
      }
      if (!table_.wraps(use)) continue;
      state.use = use;
      state.used_at = table_.op[use] - ops;
      state.alive = true;
      state.away = gaps_.away[use] != 0 && gaps_.away_from[use] <= ops;
      state.present = !state.away;
    }
    for (ValueIndex value = 0; value < states_.size(); ++value) {
      State& state = states_[value];
      if (!state.alive) {
        state = State{};
        continue;
      }
      if (state.present) used_ += bytesOf(state);
      if (state.dirty) wantWriteBack(value, state.used_at);
    }
    settled_ = table_.settledBytes(ops - 1);
    used_ += settled_;
  }

  std::int64_t bytesOf(const State& state) const {
    return table_.bytes[state.use];
  }

  void wantWriteBack(ValueIndex value, std::int32_t used_at) {
    State& state = states_[value];
    const std::int32_t distance = target_[state.use];
    state.waiting = distance >= 0;
    if (!state.waiting) return;
    state.wanted_at = used_at + distance;
    write_backs_.push({-state.wanted_at, value});
  }

  void submit() {
    for (bool again = true; again;) {
      again = beginIn();
      again = beginOut() || again;
      again = beginOp() || again;
    }
  }

  // Now, counted from a repetition: after the ops that have ended, before the
  // one that runs.
  SwapSchedule::Moment moment(std::int32_t pass) {
    return {next_ - (computing_ ? 1 : 0) - pass * table_.ops, order_++};
  }

  bool beginOut() {
    if (lead_bytes_ >= 0 && link_.busy(Lane::kIn) &&
        budget_ - used_ + spare_bytes_ >= lead_bytes_) {
      return false;
    }
    while (!link_.busy(Lane::kOut) && !write_backs_.empty()) {
      const WriteBack top = write_backs_.top();
      State& state = states_[top.value];
      write_backs_.pop();
      if (!state.waiting || state.wanted_at != -top.key) continue;
      state.waiting = false;
      state.leaving = true;
      going_out_ = top.value;
      link_.start(Lane::kOut, static_cast<double>(bytesOf(state)));
      result_.write_back[state.writer] = moment(state.written);
      return true;
    }
    return false;
  }

  void endOut() {
    State& state = states_[going_out_];
    // It may have died and begun anew meanwhile.
    if (!state.leaving) {
      used_ -= orphan_bytes_;
      return;
    }
    state.leaving = false;
    state.dirty = false;
    if (state.away) makeSpare(going_out_);
  }

  void makeSpare(ValueIndex value) {
    State& state = states_[value];
    state.spare = true;
    state.spare_since = moment(passOf(state));
    spare_bytes_ += bytesOf(state);
    spares_.push({nextUse(state.use, state.used_at), value, state.used_at});
  }

  void unspare(State& state) {
    if (!state.spare) return;
    state.spare = false;
    spare_bytes_ -= bytesOf(state);
  }

  // Lets spare values go until `bytes` more fit.
  void makeRoom(std::int64_t bytes) {
    while (used_ + bytes > budget_) {
      const Spare top = spares_.top();
      spares_.pop();
      State& state = states_[top.value];
      if (!state.spare || state.used_at != top.used_at) continue;
      unspare(state);
      state.present = false;
      used_ -= bytesOf(state);
      if (counts(state)) {
        result_.leaves[state.use] = state.spare_since;
      }
    }
  }

  std::int32_t passOf(const State& state) const {
    return (state.used_at + table_.ops) / table_.ops - 1;
  }
  // Is this the instance of its gap that the plan is made of?
  bool counts(const State& state) const {
    return passOf(state) == kPasses - (table_.wraps(state.use) ? 2 : 1);
  }

  bool beginIn() {
    if (due_.empty()) return false;
    const UseIndex use = due_[next_due_];
    const std::int32_t deadline =
        due_pass_ * table_.ops + table_.end[use] % table_.ops;
    const ValueIndex value = table_.value[use];
    State& state = states_[value];
    if (state.use != use || !state.away || next_ < blocked_until_) return false;
    if (state.present ? false : link_.busy(Lane::kIn)) return false;
    const std::int64_t bytes = table_.bytes[use];
    const std::int32_t crowded =
        reserved_.lastAbove(next_, deadline, budget_ - bytes);
    if (crowded != RangeMax::kNone) {
      blocked_until_ = crowded + 1;
      return false;
    }
    if (!state.present) {
      if (used_ - spare_bytes_ + bytes > budget_) return false;
      makeRoom(bytes);
      used_ += bytes;
      state.present = true;
      state.arriving = true;
      coming_in_ = value;
      link_.start(Lane::kIn, static_cast<double>(bytes));
      if (counts(state)) {
        result_.fetch[use] = moment(passOf(state));
      }
    }
    reserved_.add(next_, deadline, bytes);
    unspare(state);
    state.away = false;
    if (state.waiting) retarget(value);
    if (++next_due_ == due_.size()) {
      next_due_ = 0;
      ++due_pass_;
    }
    return true;
  }

  // The value stays through this gap: its write-back is due before the next
  // one, if at all.
  void retarget(ValueIndex value) {
    State& state = states_[value];
    state.waiting = false;
    const UseIndex next = table_.next[state.use];
    if (table_.dirties[next] != 0 || target_[next] < 0) return;
    state.waiting = true;
    state.wanted_at = nextUse(state.use, state.used_at) + target_[next];
    write_backs_.push({-state.wanted_at, value});
  }

  void endIn() { states_[coming_in_].arriving = false; }

  bool beginOp() {
    if (computing_ || next_ >= kPasses * table_.ops) return false;
    const std::int32_t op = next_ % table_.ops;
    const auto slot = static_cast<std::size_t>(op);
    std::int64_t bytes = table_.fixed_bytes[slot] - settled_;
    std::int64_t spare = spare_bytes_;
    for (UseIndex use = table_.firstUse(op); use < table_.endUse(op); ++use) {
      const State& state = states_[table_.value[use]];
      if (table_.needs[use] != 0) {
        if (!state.present || state.arriving || state.away) return false;
        if (state.leaving && table_.dirties[use] != 0) return false;
      } else {
        if (state.leaving) return false;
        if (!state.present) bytes += table_.bytes[use];
        if (state.spare) spare -= table_.bytes[use];
      }
    }
    if (used_ - spare + bytes > budget_) return false;
    for (UseIndex use = table_.firstUse(op); use < table_.endUse(op); ++use) {
      State& state = states_[table_.value[use]];
      unspare(state);
      state.waiting = state.waiting && table_.dirties[use] == 0;
    }
    makeRoom(bytes);
    used_ += bytes;
    settled_ = table_.fixed_bytes[slot];
    for (UseIndex use = table_.firstUse(op); use < table_.endUse(op); ++use) {
      State& state = states_[table_.value[use]];
      state.present = true;
      state.away = false;
    }
    computing_ = true;
    compute_end_ = now_ + static_cast<double>(table_.duration_ns[slot]);
    ++next_;
    return true;
  }

  void endOp() {
    computing_ = false;
    const std::int32_t at = next_ - 1;
    const std::int32_t op = at % table_.ops;
    const auto slot = static_cast<std::size_t>(op);
    for (UseIndex use = table_.firstUse(op); use < table_.endUse(op); ++use) {
      State& state = states_[table_.value[use]];
      state.use = use;
      state.used_at = at;
      state.alive = true;
      if (table_.dirties[use] == 0) continue;
      state.dirty = true;
      state.writer = use;
      state.written = at / table_.ops;
      wantWriteBack(table_.value[use], at);
    }
    for (std::uint32_t i = starts_end_[slot]; i < starts_end_[slot + 1]; ++i) {
      const UseIndex use = starts_[i];
      State& state = states_[table_.value[use]];
      if (state.use != use || !state.alive || !state.present) continue;
      state.away = true;
      if (!state.dirty) makeSpare(table_.value[use]);
    }
    for (const UseIndex use : table_.dyingAfter(op)) die(table_.value[use]);
    // Workspace ends with the op; small values that died, before the next.
    const std::int64_t settled = table_.settledBytes(op);
    used_ += settled - settled_;
    settled_ = settled;
  }

  void die(ValueIndex value) {
    State& state = states_[value];
    unspare(state);
    if (state.leaving) {
      orphan_bytes_ = bytesOf(state); // until the copy has passed
    } else if (state.present) {
      used_ -= bytesOf(state);
    }
    state = State{};
  }

  const UseTable& table_;
  const VictimGaps& gaps_;
  std::int64_t budget_;
  std::int64_t lead_bytes_;
  DuplexLink link_;
  RangeMax reserved_;
  std::vector<State> states_;
  SwapSchedule& result_;

  std::vector<std::int32_t> target_;
  std::vector<std::uint32_t> starts_end_; // gaps that begin after op i:
  std::vector<UseIndex> starts_;          // starts_[starts_end_[i] .. [i + 1])
  std::vector<UseIndex> due_; // gaps whose values come back, by their ends

  double now_ = 0;
  double compute_end_ = 0;
  bool computing_ = false;
  std::int32_t next_ = 0;    // position of the next op to begin
  std::int64_t used_ = 0;    // bytes in HBM
  std::int64_t settled_ = 0; // of these, small values and workspace
  std::int64_t spare_bytes_ = 0;
  std::int64_t orphan_bytes_ = 0;
  DaryHeap<WriteBack> write_backs_;
  DaryHeap<Spare> spares_;
  ValueIndex going_out_ = 0;
  ValueIndex coming_in_ = 0;
  std::size_t next_due_ = 0;
  std::int32_t due_pass_ = 0;
  std::int32_t blocked_until_ = 0; // copies in: no room before this position
  std::uint32_t order_ = 0;
};

} // namespace

SwapSchedule schedule_swaps(const UseTable& table, const VictimGaps& gaps,
                            std::int64_t budget, const LinkModel& link,
                            std::int64_t lead_bytes) {
  SwapSchedule result;
  if (table.ops > 0) {
    Schedule(table, gaps, budget, link, lead_bytes, result).run();
  }
  return result;
}

} // namespace chameleon::memory
